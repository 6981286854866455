"""The letter of a multiple-choice answer."""

from __future__ import annotations

import re
from collections.abc import Sequence

from posttrain.rewards.extract import Accept, after_reasoning, final_answer
from posttrain.rewards.latex import normalise

_LEAD = r"(?:answer|choice|option|choose|chose|pick|select|go\s+with)"
_BRIDGE = (
    r"(?:\s*(?:\*\*|__))?"
    r"(?:\s+(?:is|seems\s+to\s+be|should\s+be|must\s+be|option|choice))*\s*[:\uff1a]?\s*"
)


def chosen_letter(response: str, choices: Sequence[str]) -> str:
    """The letter of the last statement that gives one as the answer; empty when none does.

    An article, the first letter of a word, and a letter that is only commented on are no answer.
    """
    found = final_answer(response, accept=Accept.BOX)
    if found is not None:
        return _bare_letter(found.text, choices)
    letters = "|".join(re.escape(c) for c in choices)
    given = re.compile(
        rf"\b{_LEAD}{_BRIDGE}[\s*_(\[\"'$]*(?P<letter>{letters})"
        r"(?=[\s*_)\]\"'$.,;:!]|$)(?P<tail>[^\n]*)",
        re.IGNORECASE,
    )
    matches = [m for m in given.finditer(after_reasoning(response)) if _meant(m)]
    return _canonical(matches[-1]["letter"], choices) if matches else ""


def _meant(match: re.Match[str]) -> bool:
    """Whether the letter stands alone and not as the article of the next word."""
    letter, tail = match["letter"], match["tail"]
    article = letter in ("A", "a", "I") and re.match(r"\s+[a-z]", tail)
    return letter.isupper() and not article


def _bare_letter(text: str, choices: Sequence[str]) -> str:
    bare = re.sub(r"\\(?:text|textbf|mathrm|mathbf)\s*\{([^{}]*)\}", r"\1", normalise(text))
    match = re.match(r"[(\[]?\s*(\w)\s*[)\].:]?(?:\s|$)", bare.strip())
    return _canonical(match[1], choices) if match else ""


def _canonical(letter: str, choices: Sequence[str]) -> str:
    return next((c for c in choices if c.upper() == letter.upper()), "")
