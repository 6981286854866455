"""Text from the command line as a value of a field's type, and parts by their class names."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

import posttrain.data
import posttrain.envs
import posttrain.monitor
import posttrain.parts
import posttrain.rewards
from posttrain.errors import ConfigError, nearest

ROOMS = (posttrain.data, posttrain.envs, posttrain.monitor, posttrain.parts, posttrain.rewards)
"""Packages whose classes may stand in a run, beside those of ``types``."""
NONE = ("none", "null")
"""Words for a field that may be empty."""
BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def hints_of(kind: type | types.FunctionType) -> Mapping[str, Any]:
    """Annotation of each field; empty where one names what only a type checker imports."""
    try:
        return get_type_hints(kind)
    except NameError:
        return {}


def alternatives(hint: object) -> tuple[object, ...]:
    """The members of a union, nested ones included; else the hint alone."""
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(inner for member in get_args(hint) for inner in alternatives(member))
    return (hint,)


def optional(hint: object) -> bool:
    """Whether None is allowed."""
    return types.NoneType in alternatives(hint)


def kinds_of(hint: object) -> dict[str, type]:
    """Classes that can stand where the hint allows a part, by name; empty for plain values."""
    found: dict[str, type] = {}
    for base in alternatives(hint):
        if inspect.isclass(base) and (is_dataclass(base) or inspect.isabstract(base)):
            _load_parts()
            found |= {kind.__name__: kind for kind in _leaves(base)}
    return dict(sorted(found.items()))


def kind_named(text: str, hint: object, *, at: str) -> type:
    """The class that ``text`` names: one of `kinds_of`, or ``module:Class`` of the user's own.

    Raises:
        ConfigError: there is none, or it is of another kind.
    """
    kinds = kinds_of(hint)
    if text in kinds:
        return kinds[text]
    if ":" in text:
        named = imported(text, at=at)
        bases = tuple(base for base in alternatives(hint) if inspect.isclass(base))
        if inspect.isclass(named) and issubclass(named, bases) and is_dataclass(named):
            return named
    raise ConfigError(
        f"{at} takes one of {', '.join(kinds)}, or module:Class of your own, got {text!r}."
        f"{nearest(text, kinds)}"
    )


@cache
def _load_parts() -> None:
    """Import every module that holds parts, so that each class is known by name."""
    for package in ROOMS:
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{package.__name__}.{module.name}")


def _leaves(base: type) -> list[type]:
    """Final classes below a base, itself if it is one; classes that a decorator made anew."""
    below = [kind for kind in base.__subclasses__() if _reachable(kind)]
    if not below:
        return [base] if is_dataclass(base) and not inspect.isabstract(base) else []
    return [leaf for kind in below for leaf in _leaves(kind)]


def _reachable(kind: type) -> bool:
    """A class is found under its name; ``dataclass(slots=True)`` leaves a twin that is not."""
    return getattr(sys.modules.get(kind.__module__), kind.__name__, None) is kind


def imported(text: str, *, at: str) -> object:
    """What ``module:name`` names.

    Raises:
        ConfigError: the module or the name is not there.
    """
    module, _, name = text.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ConfigError(
            f"{at}: {text!r} cannot be imported ({error}). Write module:name, with the module on "
            "Python's path."
        ) from error


def parse(text: str, hint: object, *, at: str, current: object = None) -> object:
    """A plain value.

    Args:
        text: As written.
        hint: The field's annotation.
        at: The option's name, for messages.
        current: The value it has now; tells the type where the annotation does not.

    Raises:
        ConfigError: the text is no value of the type; says what is allowed.
    """
    if text.lower() in NONE and optional(hint):
        return None
    members = [m for m in alternatives(hint) if m is not types.NoneType]
    if members in ([Any], [object], []) or any(isinstance(m, str) for m in members):
        members = [type(current)] if current is not None else [Mapping]
    members.sort(key=lambda member: member is str)  # a number first, where both are allowed
    told = []
    for member in members:
        try:
            return _parse_one(text, member, at=at)
        except ValueError as error:
            told.append(str(error))
    empty = ", or none" if optional(hint) else ""
    raise ConfigError(f"{at} takes {' or '.join(dict.fromkeys(told))}{empty}, got {text!r}.")


def _parse_one(text: str, member: Any, *, at: str) -> object:
    """One member of the union; ValueError with the words for what it takes."""
    origin = get_origin(member) or member
    if origin is Literal:
        return _literal(text, get_args(member))
    if inspect.isclass(origin) and issubclass(origin, Enum):
        return origin(_literal(text, [m.value for m in origin]))
    if origin in (Callable, types.FunctionType):
        return imported(text, at=at)
    if origin in (tuple, list, Sequence):
        return _several(text, member, at=at)
    if origin in (Mapping, dict):
        return _yaml(text)
    if origin is bool:
        if text.lower() not in BOOLEANS:
            raise ValueError("true or false")
        return BOOLEANS[text.lower()]
    words: dict[Any, str] = {int: "a whole number", float: "a number", str: "text", Path: "a path"}
    if origin not in words:
        raise ValueError("nothing from the command line (set it in a recipe file)")
    convert: Any = origin
    try:
        return convert(text)
    except ValueError:
        raise ValueError(words[origin]) from None


def _literal(text: str, allowed: Sequence[object]) -> object:
    for value in allowed:
        if str(value) == text:
            return value
    names = [str(value) for value in allowed]
    raise ValueError(f"one of {', '.join(names)}{nearest(text, names).rstrip('?')}")


def _several(text: str, hint: Any, *, at: str) -> tuple[object, ...]:
    """``a,b`` or ``[a, b]``; ``[]`` or nothing is empty."""
    inside = text.strip().removeprefix("[").removesuffix("]").strip()
    items = [item.strip() for item in inside.split(",")] if inside else []
    members = get_args(hint) or (str, ...)
    every = len(members) == 1 or members[-1] is ...
    if not every and len(items) != len(members):
        raise ValueError(f"{len(members)} values, as in a,b")
    kinds = [members[0]] * len(items) if every else members
    return tuple(
        parse(item, kind, at=f"{at}.{i}")
        for i, (item, kind) in enumerate(zip(items, kinds, strict=True))
    )


def _yaml(text: str) -> object:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError:
        raise ValueError("a value in YAML, as in {a: 1}") from None
