"""The shape of an answer (text, list, tuple, interval, matrix, relation), and its comparison.

Lists and sets compare without order and completely; tuples and intervals keep order and brackets;
an inequality in one name equals the interval it describes. What is inside is compared by the
caller's rule for expressions, so this file knows no algebra.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from posttrain.rewards.extract import fold
from posttrain.rewards.latex import normalise, split_top
from posttrain.rewards.numbers import parse_number, same_number

Rule: TypeAlias = Callable[[str, str], bool]
"""Whether two expressions (normalised LaTeX) are the same value."""

_NAME = r"(?:\\?[a-zA-Z]+|[a-zA-Z])(?:_(?:\w|\{[^{}]*\}))?'?(?:\s*\([^()]*\))?|\|[A-Z]{2}\|"
_NAMED = re.compile(rf"\s*({_NAME})\s*=\s*(.+)", re.DOTALL)
_LIST = (
    r",(?:\s*(?:\\text\s*\{\s*)?(?:and|or)\s*\}?\s+)?|;|(?:\\text\s*\{\s*|\s)(?:and|or)(?:\s*\}|\s)"
)
_ORDER = r"\\le(?![a-zA-Z])|\\ge(?![a-zA-Z])|<|>"
_MATRIX = re.compile(
    r"\\begin\{(?P<kind>[pbBvV]?(?:small)?matrix|array)\}(?:\{[lcr|]+\})?(?P<rows>.*)"
    r"\\end\{(?P=kind)\}",
    re.DOTALL,
)
_TEXT_WRAP = re.compile(r"\\(?:text|textbf|textit|mbox|mathrm)\s*\{([^{}]*)\}")
_WORDS = re.compile(r"[^\W\d_](?:[^\W\d_]|[\s'\u2019.,\-])*")
_LONG_WORD = re.compile(r"(?<![\\a-zA-Z])[a-zA-Z]{4,}")
_CLOCK = re.compile(r"\d+(?:\s*:\s*\d+)+")
_BASED = re.compile(r"(\w+)_(?:\{\s*(\d+)\s*\}|(\d))")
_PM = re.compile(r"\\pm(?![a-zA-Z])")
_COMMAND, _LETTER = re.compile(r"\\[a-zA-Z]+"), re.compile("[a-zA-Z]")
_FLIP = {"<": ">", ">": "<", r"\le": r"\ge", r"\ge": r"\le"}


@dataclass(frozen=True, slots=True)
class Text:
    """Words, compared whole and without case."""

    words: str


@dataclass(frozen=True, slots=True)
class Atom:
    """One expression."""

    tex: str


@dataclass(frozen=True, slots=True)
class Items:
    """Several values: a set or list (braces or no brackets), or a tuple or interval."""

    start: str
    end: str
    items: tuple[Form, ...]

    @property
    def ordered(self) -> bool:
        """Whether position counts."""
        return self.start not in ("", "{") or Atom(r"\ldots") in self.items


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of entries."""

    kind: str
    rows: tuple[tuple[Form, ...], ...]


@dataclass(frozen=True, slots=True)
class Named:
    """``name = value``."""

    name: str
    value: Form


@dataclass(frozen=True, slots=True)
class Relation:
    """An equation, or an inequality that points left."""

    order: Literal["=", "<", "\\le"]
    left: str
    right: str


Form: TypeAlias = Text | Atom | Items | Matrix | Named | Relation


def form_of(text: str) -> Form:
    """The shape of a normalised text."""
    text = text.strip()
    if parse_number(text) is not None:
        return Atom(text)
    for read in (_text, _matrix, _named, _inequality, _list, _union, _equation, _brackets):
        if (found := read(text)) is not None:
            return found
    if _CLOCK.fullmatch(text):
        return Items(":", ":", tuple(Atom(t.strip()) for t in text.split(":")))
    if len(_PM.findall(text)) == 1:
        return Items("", "", tuple(form_of(_PM.sub(sign, text, count=1)) for sign in "+-"))
    return Text(fold(_TEXT_WRAP.sub(r"\1", text))) if _LONG_WORD.search(text) else Atom(text)


def _text(text: str) -> Form | None:
    if re.search(rf"\s(?:and|or)\s|,|=|{_ORDER}", text) and re.search(r"\d", text):
        return None
    bare = _TEXT_WRAP.sub(r"\1", text)
    if _WORDS.fullmatch(bare.strip()) and re.search(r"[^\W\d_]{2,}", bare):
        return Text(fold(bare))
    return None


def _matrix(text: str) -> Form | None:
    match = _MATRIX.fullmatch(text)
    if match is None:
        return None
    rows = [r for r in re.split(r"\\\\", match["rows"]) if r.strip()]
    kind = "|" if match["kind"] in ("vmatrix", "Vmatrix") else "("
    return Matrix(kind, tuple(tuple(form_of(e) for e in row.split("&")) for row in rows))


def _named(text: str) -> Form | None:
    match = _NAMED.fullmatch(text)
    if match is None or "=" in match[2] or re.search(_ORDER, match[2]):
        return None
    return Named(match[1].replace(" ", ""), form_of(match[2]))


def _list(text: str) -> Form | None:
    parts = split_top(text, _LIST)
    if len(parts) < 2:
        return None
    return Items("", "", tuple(form_of(p) for p in parts if p))


def _union(text: str) -> Form | None:
    parts = split_top(text, r"\\cup(?![a-zA-Z])")
    if len(parts) < 2:
        return None
    pieces: list[Form] = []
    for part in map(form_of, parts):
        merged = isinstance(part, Items) and part.start == "{"
        pieces.extend(part.items if merged and isinstance(part, Items) else [part])
    return Items("", "", tuple(pieces))


def _equation(text: str) -> Form | None:
    sides = split_top(text, "=")
    if len(sides) > 2:
        return form_of(sides[-1])
    return Relation("=", *sides) if len(sides) == 2 else None


def _inequality(text: str) -> Form | None:
    if re.search(_LIST, re.sub(r"\([^()]*\)", "", text)):
        return None
    if len(member := split_top(text, r"\\in(?![a-zA-Z])")) == 2 and re.fullmatch(_NAME, member[0]):
        return form_of(member[1])
    sides, signs = split_top(text, _ORDER), re.findall(_ORDER, text)
    if len(sides) != len(signs) + 1 or len(sides) not in (2, 3):
        return None
    if _down(signs):
        sides, signs = sides[::-1], [_FLIP[s] for s in signs[::-1]]
    return _between(sides, signs)


def _down(signs: Sequence[str]) -> bool:
    return all(s in (">", r"\ge") for s in signs)


def _between(sides: Sequence[str], signs: Sequence[str]) -> Form | None:
    """The interval of ``low < name < high``, or the relation of two sides."""
    if not all(s in ("<", r"\le") for s in signs):
        return None
    if len(sides) == 3:
        low, name, high = sides
        left, right = ("[" if signs[0] == r"\le" else "("), ("]" if signs[1] == r"\le" else ")")
        interval = Items(left, right, (Atom(low), Atom(high)))
        return interval if re.fullmatch(_NAME, name) else None
    low, high = sides
    closed = signs[0] == r"\le"
    if re.fullmatch(_NAME, low) and not _LETTER.search(_COMMAND.sub("", high)):
        return Items("(", "]" if closed else ")", (Atom(r"-\infty"), Atom(high)))
    if re.fullmatch(_NAME, high) and not _LETTER.search(_COMMAND.sub("", low)):
        return Items("[" if closed else "(", ")", (Atom(low), Atom(r"\infty")))
    return Relation(r"\le" if closed else "<", low, high)


def _brackets(text: str) -> Form | None:
    if re.fullmatch(r"\\mathbb\s*(?:\{R\}|R)", text):
        return Items("(", ")", (Atom(r"-\infty"), Atom(r"\infty")))
    if text in (r"\emptyset", r"\{\}", r"\{ \}"):
        return Items("{", "}", ())
    start, end = ("{", "}") if text.startswith(r"\{") else (text[:1], text[-1:])
    if (start == "{") != text.endswith(r"\}") or start not in ("(", "[", "{") or end not in ")]}":
        return None
    width = 2 if start == "{" else 1
    parts = split_top(text[width:-width], ",|;")
    if start != "{" and len(parts) < 2:
        return None
    return Items(start, end, tuple(form_of(p) for p in parts))


def same_form(gold: Form, given: Form, *, relation: Callable[[Relation, Relation], bool],
              rule: Rule) -> bool:  # fmt: skip
    """Whether two answers are the same; ``rule`` compares expressions, ``relation`` relations."""

    def same(a: Form, b: Form) -> bool:
        return same_form(a, b, relation=relation, rule=rule)

    if isinstance(gold, Named) and isinstance(given, Named) and gold.name == given.name:
        return same(gold.value, given.value)
    a, b = _as_relation(gold, given), _as_relation(given, gold)
    if isinstance(a, Relation) and isinstance(b, Relation):
        return relation(a, b)
    match (_unnamed(a), _unnamed(b)):
        case Text(x), Text(y):
            return x == y
        case Matrix(kind, rows), Matrix(other, entries):
            return kind == other and _same_rows(rows, entries, same)
        case Items() as x, Items() as y:
            return _same_items(x, y, same)
        case (Items(items=(only,)), Atom() as other) | (Atom() as other, Items(items=(only,))):
            return same(only, other)
        case Atom(x), Atom(y):
            return _same_atoms(x, y, rule)
        case _:
            return False


def _unnamed(form: Form) -> Form:
    return form.value if isinstance(form, Named) else form


def _as_relation(form: Form, other: Form) -> Form:
    """A named expression as an equation, when the other side is one too."""
    if (
        isinstance(form, Named)
        and isinstance(other, Named | Relation)
        and isinstance(form.value, Atom)
    ):
        return Relation("=", form.name, form.value.tex)
    return form


def _same_rows(
    a: Sequence[Sequence[Form]], b: Sequence[Sequence[Form]], same: Callable[[Form, Form], bool]
) -> bool:
    if [len(r) for r in a] != [len(r) for r in b]:
        return False
    pairs = ((x, y) for r, s in zip(a, b, strict=True) for x, y in zip(r, s, strict=True))
    return all(same(x, y) for x, y in pairs)


def _same_items(a: Items, b: Items, same: Callable[[Form, Form], bool]) -> bool:
    if a.ordered or b.ordered:
        if (a.start or "{", a.end or "}") != (b.start or "{", b.end or "}"):
            return False
        return len(a.items) == len(b.items) and all(map(same, a.items, b.items))
    return all(any(same(x, y) for y in b.items) for x in a.items) and all(
        any(same(x, y) for x in a.items) for y in b.items
    )


def _same_atoms(a: str, b: str, rule: Rule) -> bool:
    if a.replace(" ", "") == b.replace(" ", ""):
        return True
    based = _BASED.fullmatch(a), _BASED.fullmatch(b)
    if all(m and m[1][0].isdigit() for m in based):
        x, y = (m.groups() for m in based if m)
        return x[0].lstrip("0") == y[0].lstrip("0") and (x[1] or x[2]) == (y[1] or y[2])
    x, y = parse_number(a), parse_number(b)
    if x is not None and y is not None and (x.value is not None or x.digits):
        return same_number(x, y)
    return rule(a, b)


def parse(text: str) -> Form:
    """The shape of an answer as it was written."""
    return form_of(normalise(text))
