"""The final answer of a response: pure text, no verdict.

Text inside a reasoning block is no answer. An unfinished reasoning block, box or answer tag earns
nothing, whatever stood before it. The last answer counts; boxes that one statement lists ("3 and
5") count together.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import IntEnum

_BOX = re.compile(r"\\(?:boxed|fbox)\s*")
_BRACE = re.compile(r"\\.|[{}]", re.DOTALL)
_BETWEEN = re.compile(r"[\s$]*(?:,|;|,?\s*(?:\\text\s*\{\s*)?(?:and|or)(?:\s*\})?)[\s$]*")
_LINE_MARK = re.compile(
    r"####[ \t]*(?P<hash>[^\n]*)"
    r"|\b(?:final\s+)?answer\s*(?:\*\*|__)?\s*[:\uff1a]\s*(?P<colon>[^\n]*)"
    r"|\bfinal\s+answer\s+is\s*:?\s*(?P<final>[^\n]*)",
    re.IGNORECASE,
)
_OPEN_TAG = re.compile(r"<answer>", re.IGNORECASE)
_CLOSE_TAG = re.compile(r"</answer>", re.IGNORECASE)
_BOLD = re.compile(r"\*\*([^*]+)\*\*")
_VALUE = re.compile(r"(?:(?<![\w)])-)?\$?\d+(?:,\d{3})*(?:\.\d+)?(?:/\d+)?(?:\s*\\?%)?")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+|\n+")


class Accept(IntEnum):
    """How plainly an answer must be marked; each level takes the ones before it too."""

    BOX = 1
    """In a box."""
    MARKED = 2
    """In ``<answer>`` tags, or after ``####``, ``Answer:`` or ``final answer is``."""
    STATEMENT = 3
    """A bold value, or else the last value, of the last sentence. For evaluation: it rewards
    numbers that were never given as the answer."""


@dataclass(frozen=True, slots=True)
class Found:
    """An extracted answer and where it stood."""

    text: str
    where: str


def after_reasoning(response: str, *, tag: str = "think") -> str:
    """What follows the last reasoning block; empty when one is unfinished."""
    closed = response.rfind(f"</{tag}>")
    if response.rfind(f"<{tag}>") > closed:
        return ""
    return response[closed + len(tag) + 3 :] if closed >= 0 else response


def final_answer(response: str, *, accept: Accept = Accept.MARKED) -> Found | None:
    """The final answer of a response, or None when there is none (or an unfinished one)."""
    text = after_reasoning(response)
    boxes, whole = _boxes(text)
    if boxes or not whole:
        return _last_boxes(text, boxes) if whole else None
    found = _marked(text) if accept >= Accept.MARKED else None
    if found is None and accept >= Accept.STATEMENT and "<answer>" not in text.lower():
        found = _stated(text)
    return found if found is not None and found.text else None


def _boxes(text: str) -> tuple[list[tuple[int, int, str]], bool]:
    """(start, end, content) of each box, and whether the last one is finished."""
    found: list[tuple[int, int, str]] = []
    at = 0
    while match := _BOX.search(text, at):
        start, at = match.span()
        if text[at : at + 1] == "{":
            end = closing_brace(text, at)
            if end < 0:
                return found, False
            found.append((start, end + 1, text[at + 1 : end].strip()))
            at = end + 1
        elif word := re.compile(r"[^\s$]+").match(text, at):
            found.append((start, word.end(), word.group().rstrip(".,;")))
            at = word.end()
        else:
            return found, False
    return found, True


def closing_brace(text: str, start: int) -> int:
    """Index of the brace that closes the one at ``start``; -1 when it stays open."""
    depth = 0
    for match in _BRACE.finditer(text, start):
        depth += {"{": 1, "}": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    return -1


def _last_boxes(text: str, boxes: list[tuple[int, int, str]]) -> Found | None:
    contents = [boxes[-1][2]]
    for left, right in zip(boxes[-2::-1], boxes[:0:-1], strict=True):
        if not _BETWEEN.fullmatch(between := text[left[1] : right[0]]) or "\n\n" in between:
            break
        contents.insert(0, left[2])
    different = list(dict.fromkeys(contents))
    return Found(", ".join(different), "box") if all(different) else None


def _marked(text: str) -> Found | None:
    opened, lines = list(_OPEN_TAG.finditer(text)), list(_LINE_MARK.finditer(text))
    if opened:
        closed = _CLOSE_TAG.search(text, opened[-1].end())
        if closed is None:
            return None
        if not lines or closed.end() > lines[-1].start():
            return Found(text[opened[-1].end() : closed.start()].strip(), "answer tag")
    if not lines:
        return None
    kind = str(lines[-1].lastgroup)
    where = {"hash": "####", "colon": "answer line", "final": "final answer line"}[kind]
    return Found(_bare(lines[-1].group(kind)), where)


def _stated(text: str) -> Found | None:
    sentences = [s for s in _SENTENCE_END.split(text) if re.search(r"\w", s)]
    if not sentences:
        return None
    if bold := _BOLD.findall(sentences[-1]):
        return Found(_bare(bold[-1]), "bold")
    values = _VALUE.findall(sentences[-1])
    return Found(values[-1], "last value") if values else None


def _bare(text: str) -> str:
    return text.strip().strip("*_").strip().removesuffix(".").strip()


def fold(text: str) -> str:
    """A text without case, outer punctuation and repeated spaces."""
    return " ".join(text.casefold().split()).strip(" .,;:!?\"'`*")
