"""One spelling for answers that are written in many: LaTeX, plain text, Unicode signs."""

from __future__ import annotations

import re

from posttrain.rewards.extract import closing_brace

_CHARACTERS = {
    "\u2212": "-", "\u2013": "-", "\u2014": "-", "\u00d7": r"\times ", "\u22c5": r"\cdot ",
    "\u00b7": r"\cdot ", "\u00f7": r"\div ", "\u03c0": r"\pi ", "\u221e": r"\infty ",
    "\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u222a": r"\cup ",
    "\u2229": r"\cap ", "\u2208": r"\in ", "\u00b1": r"\pm ", "\u2205": r"\emptyset ",
    "\u00b2": "^{2}", "\u00b3": "^{3}", "\u2026": r"\ldots ", "\u00a0": " ", "\u2009": " ",
    "\u202f": " ", "\uff0c": ",", "\uff08": "(", "\uff09": ")",
    "\u00bd": r"\frac{1}{2}", "\u2153": r"\frac{1}{3}", "\u2154": r"\frac{2}{3}",
    "\u00bc": r"\frac{1}{4}", "\u00be": r"\frac{3}{4}", "\u2155": r"\frac{1}{5}",
    "\u215b": r"\frac{1}{8}",
}  # fmt: skip
_REWRITES = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        (r"\\(?:left|right|[bB]igg?[lr]?)(?![a-zA-Z])\s*", ""),
        (r"\\(?:displaystyle|limits|,|!|;|:|>|quad|qquad)(?![a-zA-Z])|\\ |~", " "),
        (r"\\[dtc]frac(?![a-zA-Z])", r"\\frac"),
        (r"\{,\}", ","),
        (r"\\(?:operatorname|mathrm|mathit|mathbf)\s*\{\s*([a-zA-Z])\s*\}", r"\1"),
        (r"\\(?:leq|leqslant)(?![a-zA-Z])|<=", r"\\le "),
        (r"\\(?:geq|geqslant)(?![a-zA-Z])|>=", r"\\ge "),
        (r"\\lt(?![a-zA-Z])", "<"),
        (r"\\gt(?![a-zA-Z])", ">"),
        (r"\\(?:dots|cdots|dotsc)(?![a-zA-Z])|\.\.\.", r"\\ldots "),
        (r"\\varnothing(?![a-zA-Z])", r"\\emptyset "),
        (r"\\lbrace(?![a-zA-Z])", r"\\{"),
        (r"\\rbrace(?![a-zA-Z])", r"\\}"),
        (r"\\lbrack(?![a-zA-Z])", "["),
        (r"\\rbrack(?![a-zA-Z])", "]"),
        (r"\*\*", "^"),
        (r"\\frac\s*(\d)\s*(\d)", r"\\frac{\1}{\2}"),
        (r"\\frac\s*(\d)\s*\{", r"\\frac{\1}{"),
        (r"\\frac\s*(\{[^{}]*\})\s*(\d)", r"\\frac\1{\2}"),
        (r"\\sqrt\s*(\d)", r"\\sqrt{\1}"),
        (r"(?<![a-zA-Z\\])(sqrt|pi|infinity|sin|cos|tan|log|ln)(?![a-zA-Z])", r"\\\1 "),
        (r"\\infinity(?![a-zA-Z])", r"\\infty "),
        (r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        (r"[ \t\n]+", " "),
    )
)
_WRAPPERS = ("\\boxed{", "\\fbox{", "\\text{", "\\textbf{", "\\mathbf{", "\\mathrm{", "\\mbox{")
_DELIMITERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"))


def normalise(text: str) -> str:
    """The text in one spelling: no delimiters, wrappers, sizes, spaces or Unicode signs."""
    text = _unwrap(text)
    for old, new in _CHARACTERS.items():
        text = text.replace(old, new)
    for pattern, new in _REWRITES:
        text = pattern.sub(new, text)
    return _unwrap(text)


def _unwrap(text: str) -> str:
    while True:
        text = text.strip()
        if text.endswith(".") and not text.endswith("\\."):
            text = text[:-1].rstrip()
        inner = _inside(text)
        if inner is None:
            return text
        text = inner


def _inside(text: str) -> str | None:
    for start, end in _DELIMITERS:
        whole = len(text) > len(start) + len(end) and text.startswith(start) and text.endswith(end)
        if whole and start not in (inner := text[len(start) : -len(end)]):
            return inner
    for start in _WRAPPERS:
        if text.startswith(start) and closing_brace(text, len(start) - 1) == len(text) - 1:
            return text[len(start) : -1]
    return None


def split_top(text: str, separators: str) -> list[str]:
    """Parts between separators (a regular expression) that stand in no bracket."""
    parts, depth, start, at = [], 0, 0, 0
    pattern = re.compile(separators)
    while at < len(text):
        step = 2 if text[at] == "\\" and text[at + 1 : at + 2] in ("{", "}", "\\") else 1
        piece = text[at : at + step]
        if depth == 0 and (match := pattern.match(text, at)) and match.end() > at:
            parts.append(text[start:at].strip())
            start = at = match.end()
            continue
        depth += (piece[-1] in "([{") - (piece[-1] in ")]}")
        at += step
    return [*parts, text[start:].strip()]
