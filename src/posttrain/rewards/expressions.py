"""Whether two expressions are equal: runs in a grading process, never in the trainer's.

LaTeX is read by the grammar of ``latex2sympy2_extended`` (the parser under math-verify); nothing
is evaluated as code. Symbols are real, ``i`` is the imaginary unit, ``e`` Euler's number. Two
expressions are equal if they agree to 25 decimal places wherever both are defined among points
drawn once and for all, negative ones too; with decimals in them, to the tolerance of ``numbers``.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Any, TypeAlias

import sympy
from latex2sympy2_extended import latex2sympy
from latex2sympy2_extended.latex2sympy2 import ConversionConfig

from posttrain.errors import DataError
from posttrain.rewards import forms
from posttrain.rewards.numbers import DECIMAL, WHOLE

Expr: TypeAlias = Any
"""A sympy expression; sympy's own annotations do not say which attributes it has."""

_READING = ConversionConfig(interpret_as_mixed_fractions=False, lowercase_symbols=False)
_ALLOWED = re.compile(r"[0-9A-Za-z\s\\{}()\[\]+\-*/^_.,|!=]*")
_GLUED = re.compile(r"(?<![\w.])\d[\d.]*\s+[\d.]")
_DEGREES = re.compile(
    r"(\\(?:sin|cos|tan|sec|csc|cot))\s*(?:\(\s*)?(\d+(?:\.\d+)?)\s*\^\s*\{?\s*\\circ\s*\}?(?:\s*\))?"
)
_CIRCLE = re.compile(r"\^\s*(?:\{\s*\\circ\s*\}|\\circ)")
_UNBOUNDED = (sympy.oo, sympy.S.NegativeInfinity, sympy.zoo, sympy.nan)
_DIGITS = 40
_MAX_PLACES = 2000
_EXACT = Fraction(1, 10**25)
_POINTS = 12
_MAX_MAGNITUDE = 1e5
"""Decimal digits of the largest power that is evaluated."""


def compare(gold: str, answer: str) -> dict[str, object]:
    """``{"equal": bool, "how": str}``; ``{"gold": reason}`` when the gold cannot be read."""
    expected, given = forms.parse(gold), forms.parse(answer)
    try:
        _read_all(expected)
    except DataError as error:
        return {"gold": str(error)}
    try:
        equal = forms.same_form(expected, given, rule=same_value, relation=same_relation)
    except DataError as error:
        return {"equal": False, "how": f"the answer cannot be read: {error}"}
    return {"equal": equal, "how": f"compared as {type(expected).__name__.lower()}"}


def readable(gold: str) -> dict[str, object]:
    """``{"form": name}`` of a gold answer; ``{"gold": reason}`` when it cannot be read."""
    form = forms.parse(gold)
    try:
        _read_all(form)
    except DataError as error:
        return {"gold": str(error)}
    return {"form": type(form).__name__.lower()}


def _read_all(form: forms.Form) -> None:
    match form:
        case forms.Atom(tex) if tex != r"\ldots" and forms.parse_number(tex) is None:
            if not re.fullmatch(r"\w+_(?:\{\d+\}|\d)", tex):
                read(tex)
        case forms.Items(items=items):
            for item in items:
                _read_all(item)
        case forms.Matrix(rows=rows):
            for entry in (e for row in rows for e in row):
                _read_all(entry)
        case forms.Named(value=value):
            _read_all(value)
        case forms.Relation(left=left, right=right):
            read(left)
            read(right)
        case _:
            return


@lru_cache(maxsize=256)
def read(tex: str) -> Expr:
    """The expression of a normalised LaTeX text.

    Raises:
        DataError: it is no expression, or one too large to evaluate.
    """
    number = forms.parse_number(tex)
    if number is not None and number.value is not None:
        return sympy.Rational(number.value.numerator, number.value.denominator)
    tex = _CIRCLE.sub("", _DEGREES.sub(r"\1(\2\\cdot\\frac{\\pi}{180})", tex))
    if not _ALLOWED.fullmatch(tex) or _GLUED.search(tex):
        raise DataError(f"{tex[:80]!r} is no expression")
    try:
        found = latex2sympy(tex, is_real=True, conversion_config=_READING)
    except Exception as error:
        raise DataError(f"{tex[:80]!r} is no expression") from error
    if not isinstance(found, sympy.Expr):
        raise DataError(f"{tex[:80]!r} is no expression but a {type(found).__name__}")
    if _too_large(found):
        raise DataError(f"{tex[:80]!r} is too large to evaluate")
    return _settled(found)


def _settled(found: Expr) -> Expr:
    known = {"i": sympy.I, "e": sympy.E}
    symbols: set[Expr] = set(found.free_symbols)
    swaps = {s: known[s.name] for s in symbols if s.name in known}
    real = {s: sympy.Symbol(s.name, real=True) for s in symbols if s not in swaps}
    floats = {f: sympy.Rational(str(f)) for f in found.atoms(sympy.Float)}
    return found.subs(swaps).subs(real).xreplace(floats).doit()


def _too_large(found: Expr) -> bool:
    for node in sympy.preorder_traversal(found):
        if isinstance(node, sympy.Pow) and not node.free_symbols:
            base, exponent = _rough(node.base), _rough(node.exp)
            if abs(exponent) * math.log10(max(abs(base), 2.0)) > _MAX_MAGNITUDE:
                return True
        if isinstance(node, sympy.factorial) and _rough(node.args[0]) > _MAX_MAGNITUDE / 5:
            return True
    return False


def _rough(node: Expr) -> float:
    """A float near a constant; infinite where it would be large, 1 where it is not plain."""
    try:
        if isinstance(node, sympy.Pow):
            return abs(_rough(node.base)) ** _rough(node.exp)
        if isinstance(node, sympy.Mul):
            return math.prod(_rough(a) for a in node.args)
        if isinstance(node, sympy.Add):
            return sum(_rough(a) for a in node.args)
        if isinstance(node, sympy.factorial):
            return math.inf if _rough(node.args[0]) > 20 else math.gamma(_rough(node.args[0]) + 1)
        return float(node) if isinstance(node, sympy.Number | sympy.NumberSymbol) else 1.0
    except OverflowError:
        return math.inf
    except (ValueError, ZeroDivisionError):
        return 1.0


def same_value(gold: str, answer: str) -> bool:
    """Whether two expressions are equal."""
    a, b = read(gold), read(answer)
    if a == b or (a.is_Symbol and b.is_Symbol and a.name.casefold() == b.name.casefold()):
        return True
    if a.is_Rational and b.is_Rational and _limit(gold, answer, a, b) == _EXACT:
        return False
    if any(e.has(*_UNBOUNDED) for e in (a, b)):
        return False
    limit = _limit(gold, answer, a, b)
    pairs = _values((a, b))
    return bool(pairs) and all(_close(x, y, limit) for x, y in pairs)


def _limit(gold: str, answer: str, a: Expr, b: Expr) -> Fraction:
    if not re.search(r"\d\.\d|\.\d", gold + " " + answer):
        return _EXACT
    return WHOLE if a.is_Integer or b.is_Integer else DECIMAL


def _values(expressions: Sequence[Expr]) -> list[list[Expr]]:
    """Values of the expressions at each point where all are defined."""
    symbols = sorted({s for e in expressions for s in e.free_symbols}, key=lambda s: s.name)
    complex_too = not symbols or any(e.has(sympy.I) for e in expressions)
    draw = random.Random(20)
    found = []
    for turn in range(_POINTS if symbols else 1):
        at = {s: _point(draw, positive=turn % 3 == 0) for s in symbols}
        values = [_value(e.subs(at)) for e in expressions]
        if all(v is not None and (complex_too or v.is_real) for v in values):
            found.append([v for v in values if v is not None])
    return found


def _point(draw: random.Random, *, positive: bool) -> Expr:
    size = sympy.Rational(draw.randint(101, 2999), 997)
    return size if positive or draw.random() < 0.5 else -size


def _value(expression: Expr) -> Expr | None:
    size = sympy.N(expression, 15, maxn=400)
    if not size.is_number or size.has(*_UNBOUNDED):
        return None
    places = int(sympy.log(abs(size) + 1, 10).evalf(5))
    if places > _MAX_PLACES:
        return None
    value = sympy.N(expression, _DIGITS + places, maxn=400 + 4 * places)
    real, imaginary = value.as_real_imag()
    if abs(imaginary) < abs(real) * sympy.Rational(1, 10**30):
        return real
    return value


def _close(a: Expr, b: Expr, limit: Fraction) -> bool:
    size = max(abs(a), abs(b))
    if limit == _EXACT:
        size = min(size, sympy.Integer(1))
    bound = size * sympy.Rational(limit.numerator, limit.denominator)
    return bool(size < sympy.Rational(1, 10**30) or abs(a - b) < bound)


def same_relation(gold: forms.Relation, answer: forms.Relation) -> bool:
    """Whether two equations or inequalities are multiples of each other.

    Equations may differ by any factor but 0, inequalities by a positive one.
    """
    if gold.order != answer.order:
        return False
    a, b = read(gold.left) - read(gold.right), read(answer.left) - read(answer.right)
    limit = _limit(f"{gold.left} {gold.right}", f"{answer.left} {answer.right}", a, b)
    if not a.free_symbols or a.free_symbols != b.free_symbols:
        return False
    pairs = [(x, y) for x, y in _values((a, b)) if x != 0 and y != 0]
    if not pairs:
        return False
    ratios = [x / y for x, y in pairs]
    positive = gold.order == "=" or all(r.is_real and r > 0 for r in ratios)
    return positive and all(_close(r, ratios[0], limit) for r in ratios)
