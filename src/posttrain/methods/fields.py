"""What the code says about a part: its first line, its fields, their values and meanings.

A field's meaning is the string under it, which is where a part documents unit, range and source.
"""

from __future__ import annotations

import ast
import inspect
from dataclasses import dataclass, fields, is_dataclass
from functools import cache

from posttrain.types.probe import AsSampled, OwnTokens

SILENT = (AsSampled, OwnTokens)
"""Parts that say nothing where they stand: the default context and the default target."""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a part, as set."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Described:
    """A part with its plain fields and the parts it holds."""

    part: str
    says: str
    fields: tuple[Field, ...]
    inner: tuple[tuple[str, Described], ...]


def describe_part(part: object) -> Described:
    """What the code says about a dataclass instance and, in order, the parts within it."""
    plain: list[Field] = []
    inner: list[tuple[str, Described]] = []
    for field in fields(part) if is_dataclass(part) else ():
        value = getattr(part, field.name)
        if isinstance(value, SILENT):
            continue
        if is_dataclass(value):
            inner.append((field.name, describe_part(value)))
        else:
            plain.append(Field(field.name, repr(value), meaning(type(part), field.name)))
    kind = type(part)
    return Described(kind.__name__, _first_line(kind.__doc__), tuple(plain), tuple(inner))


def meaning(kind: type, field: str) -> str:
    """The string under a field in the class that declares it, on one line; empty if none."""
    for owner in kind.__mro__:
        if owner.__module__.startswith("posttrain."):
            found = _meanings(owner.__module__).get((owner.__name__, field))
            if found:
                return found
    return ""


@cache
def _meanings(module: str) -> dict[tuple[str, str], str]:
    source = inspect.getsource(__import__(module, fromlist=["_"]))
    found: dict[tuple[str, str], str] = {}
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef):
            continue
        for before, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(before, ast.AnnAssign)
                and isinstance(before.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
                and isinstance(after.value.value, str)
            ):
                found[node.name, before.target.id] = " ".join(after.value.value.split())
    return found


def _first_line(text: str | None) -> str:
    """The first paragraph of a docstring, on one line."""
    return " ".join(inspect.cleandoc(text or "").split("\n\n")[0].split())
