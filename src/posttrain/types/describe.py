"""A run as plain data: what is printed, saved beside a run, hashed and compared."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from pathlib import Path
from types import FunctionType

import numpy as np

from posttrain.errors import ConfigError

Plain = dict[str, "Plain"] | list["Plain"] | str | int | float | bool | None


def describe(part: object) -> Plain:
    """Nested dictionaries, lists and scalars; a dataclass is ``{"part": its name, field: ...}``.

    Raises:
        ConfigError: something that cannot be compared or saved, such as a lambda.
    """
    match part:
        case None | bool() | int() | float() | str():
            return part
        case Enum():
            return str(part.value)
        case Path():
            return str(part)
        case np.generic() | np.ndarray():
            return _array(np.asarray(part))
        case Mapping():
            return {str(k): describe(v) for k, v in part.items()}
        case list() | tuple() | set() | frozenset():
            found = [describe(v) for v in part]
            return sorted(found, key=repr) if isinstance(part, set | frozenset) else found
        case type() | FunctionType():
            return _name(part)
        case _:
            return _part(part)


def _part(part: object) -> Plain:
    if not is_dataclass(part):
        return _name(type(part))
    shown = [f.name for f in fields(part) if f.init and not f.name.startswith("_")]
    return {"part": type(part).__name__, **{name: describe(getattr(part, name)) for name in shown}}


def _array(part: np.ndarray) -> Plain:
    if part.ndim == 0:
        return describe(part.item())
    digest = hashlib.sha256(np.ascontiguousarray(part).tobytes()).hexdigest()[:16]
    return f"array {part.dtype} {list(part.shape)} {digest}"


def _name(thing: type | FunctionType) -> str:
    if "<lambda>" in thing.__qualname__ or "<locals>" in thing.__qualname__:
        raise ConfigError(
            f"{thing.__qualname__} in {thing.__module__} cannot stand in a run: it could be "
            "neither saved nor compared. Define it at the top of a module."
        )
    return f"{thing.__module__}:{thing.__qualname__}"


def tree_hash(part: object) -> str:
    """16 hex digits that two equal runs share."""
    text = json.dumps(describe(part), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def differences(a: Plain, b: Plain, *, at: str = "") -> Iterator[tuple[str, Plain, Plain]]:
    """(path, value in a, value in b) wherever two descriptions differ; ``None`` where absent."""
    if isinstance(a, dict) and isinstance(b, dict) and a.get("part") == b.get("part"):
        for key in sorted({*a, *b}):
            yield from differences(a.get(key), b.get(key), at=f"{at}.{key}" if at else key)
    elif isinstance(a, list) and isinstance(b, list) and len(a) == len(b):
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            yield from differences(x, y, at=f"{at}.{i}")
    elif a != b:
        yield at, a, b
