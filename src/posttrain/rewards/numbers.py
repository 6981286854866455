"""Numbers as people write them, compared exactly or by a relative tolerance.

Integers and fractions compare exactly at any size. A decimal that is no whole number stands for
a value near it: relative difference below ``DECIMAL`` (below ``WHOLE`` beside a whole number).
There is no absolute tolerance. A percent sign divides by 100. Units may be missing on one side;
two different units are two different answers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

DECIMAL = Fraction(1, 10**6)
"""Relative tolerance of decimals. Unitless; six digits of agreement."""
WHOLE = Fraction(1, 10**11)
"""Relative tolerance of a decimal beside a whole number; twelve digits of agreement."""

_MAX_DIGITS = 4000
_MAX_EXPONENT = 4000
_UNSIGNED = r"(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d*)?|\.\d+"
_PLAIN = re.compile(rf"{_UNSIGNED}")
_FRACTION = re.compile(
    rf"(?:(?P<whole>\d+)\s*)?\\frac\{{(?P<top>-?(?:{_UNSIGNED}))\}}\{{(?P<below>{_UNSIGNED})\}}"
    rf"|(?:(?P<whole2>\d+)\s+)?(?P<top2>{_UNSIGNED})\s*/\s*(?P<below2>{_UNSIGNED})"
)
_POWER = re.compile(
    rf"(?:(?P<factor>{_UNSIGNED})\s*(?:\\times|\\cdot|\*)\s*)?10\s*\^\s*"
    r"(?:\{\s*(?P<braced>[+-]?\d+)\s*\}|(?P<bare>\d+))"
    rf"|(?P<mantissa>{_UNSIGNED})[eE](?P<exponent>[+-]?\d+)"
)
_UNIT = re.compile(
    r"\s*(?:\\(?:text|mathrm|textrm|mbox|textbf)\s*\{\s*(?P<text>[A-Za-z$€£¥°/ .^0-9]*?)\s*\}"
    r"|(?P<word>[A-Za-z]{2,}\.?(?:[ /][A-Za-z]+){0,2})"
    r"|(?P<degree>\^\s*(?:\{\s*\\circ\s*\}|\\circ)|°))"
    r"\s*(?:\^\s*\{?(?P<power>[23])\}?)?"
)
_MONEY = re.compile(r"(?P<sign>-?)\s*\\?(?P<unit>[$€£¥])\s*")
_NOT_UNITS = frozenset(
    (
        "pi",
        "e",
        "i",
        "sqrt",
        "sin",
        "cos",
        "tan",
        "log",
        "ln",
        "inf",
        "infinity",
        "oo",
        "mod",
        "hundred",
        "thousand",
        "million",
        "billion",
        "trillion",
        "dozen",
        "and",
        "or",
        "to",
        "not",
        "of",
    )
)


@dataclass(frozen=True, slots=True)
class Number:
    """A value, how it was written, and its unit."""

    value: Fraction | None
    """None for an integer longer than is worth converting; ``digits`` then holds it."""
    decimal: bool = False
    """Written with a decimal point and no whole number."""
    unit: str = ""
    digits: str = ""
    """Canonical digits of a plain integer; empty otherwise."""

    @property
    def canonical(self) -> str:
        """A text that equal exact numbers of one unit share."""
        body = self.digits or str(self.value)
        return f"{body} {self.unit}".strip()


def parse_number(text: str) -> Number | None:
    """The one number a text is, else None. The text is normalised LaTeX or plain."""
    text = text.strip()
    unit = ""
    if (money := _MONEY.match(text)) and text[money.end() :]:
        text, unit = money["sign"] + text[money.end() :], money["unit"]
    sign, body = _split_sign(text)
    if body is None:
        return None
    for pattern in (_POWER, _FRACTION, _PLAIN):
        match = pattern.match(body)
        if match and (tail := _tail(body[match.end() :], unit)) is not None:
            return _build(sign, match, *tail)
    return None


def same_number(a: Number, b: Number) -> bool:
    """Whether two numbers are the same answer."""
    if a.unit and b.unit and a.unit != b.unit:
        return False
    if a.digits and b.digits:
        return a.digits == b.digits
    if a.value is None or b.value is None:
        return False
    if a.value == b.value:
        return True
    if not (a.decimal or b.decimal):
        return False
    whole = a.value.denominator == 1 or b.value.denominator == 1
    limit = (WHOLE if whole else DECIMAL) * max(abs(a.value), abs(b.value))
    return abs(a.value - b.value) < limit


def _split_sign(text: str) -> tuple[int, str | None]:
    match = re.match(r"([+-]?)\s*", text)
    if match is None or match.end() == len(text):
        return 1, None
    return (-1 if match[1] == "-" else 1), text[match.end() :]


def _tail(rest: str, unit: str) -> tuple[bool, str] | None:
    """(percent, unit) of what follows the digits; None when it is something else."""
    rest = rest.strip()
    if not rest:
        return False, unit
    if rest in ("%", r"\%", "percent"):
        return (True, "") if not unit else None
    match = _UNIT.fullmatch(rest)
    if match is None or unit:
        return None
    if match["degree"]:
        return False, "degree"
    found = (match["text"] or match["word"] or "").casefold().rstrip(".")
    words = found.split()
    if not words or any(w in _NOT_UNITS for w in words):
        return (False, "") if match["text"] == "" else None
    if found in ("%", "percent"):
        return True, ""
    power = match["power"] or ""
    return False, _UNIT_NAMES.get(found, found.removesuffix("s") or found) + power


_UNIT_NAMES = {"dollars": "$", "dollar": "$", "usd": "$", "euros": "€", "euro": "€", "°": "degree"}


def _build(sign: int, match: re.Match[str], percent: bool, unit: str) -> Number | None:  # noqa: FBT001
    text = match.group()
    if len(text) > _MAX_DIGITS:
        digits = _canonical_digits(sign, text)
        return None if percent or not digits else Number(None, unit=unit, digits=digits)
    value = _value(match)
    if value is None:
        return None
    value = sign * value / (100 if percent else 1)
    plain = value.denominator == 1
    digits = str(value.numerator) if plain else ""
    return Number(value, decimal="." in text and not plain, unit=unit, digits=digits)


def _canonical_digits(sign: int, text: str) -> str:
    digits = text.replace(",", "")
    if not digits.isdecimal():
        return ""
    digits = digits.lstrip("0") or "0"
    return f"-{digits}" if sign < 0 and digits != "0" else digits


def _value(match: re.Match[str]) -> Fraction | None:
    groups = match.groupdict()
    if "braced" in groups:
        exponent = int(groups["braced"] or groups["bare"] or groups["exponent"])
        if abs(exponent) > _MAX_EXPONENT:
            return None
        return _plain(groups["factor"] or groups["mantissa"] or "1") * Fraction(10) ** exponent
    if "top" in groups:
        below = _plain(groups["below"] or groups["below2"])
        top = _plain(groups["top"] or groups["top2"])
        whole = groups["whole"] or groups["whole2"]
        if below == 0 or (whole and top < 0):
            return None
        return _plain(whole or "0") + top / below
    return _plain(match.group())


def _plain(text: str) -> Fraction:
    return Fraction(text.replace(",", "").rstrip(".") or "0")
