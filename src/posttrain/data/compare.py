"""Deep comparison of groups, arrays included."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from posttrain.types.episode import Group


def groups_equal(a: Sequence[Group] | Group, b: Sequence[Group] | Group) -> bool:
    """Whether both hold the same, NaN equal to NaN, arrays by dtype, shape and value."""
    return difference(a, b) == ""


def difference(a: object, b: object, where: str = "") -> str:
    """The first place where two values differ, in words; empty when there is none.

    Whole numbers equal floats of the same value; a bool equals only a bool.
    """
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return "" if _same_arrays(a, b) else f"{where}: {a!r} is not {b!r}"
    if dataclasses.is_dataclass(a) and type(a) is type(b):
        names = [f.name for f in dataclasses.fields(a)]
        return _first((getattr(a, n), getattr(b, n), f"{where}.{n}") for n in names)
    if isinstance(a, Mapping) and isinstance(b, Mapping):
        if a.keys() != b.keys():
            return f"{where}: keys {sorted(map(str, a))} are not {sorted(map(str, b))}"
        return _first((a[k], b[k], f"{where}[{k!r}]") for k in a)
    if isinstance(a, list | tuple) and isinstance(b, list | tuple):
        if len(a) != len(b) or type(a) is not type(b):
            return f"{where}: {type(a).__name__} of {len(a)} is not {type(b).__name__} of {len(b)}"
        return _first((x, y, f"{where}[{i}]") for i, (x, y) in enumerate(zip(a, b, strict=True)))
    return "" if _same_scalars(a, b) else f"{where}: {a!r} is not {b!r}"


def _first(triples: Iterable[tuple[object, object, str]]) -> str:
    return next((d for x, y, w in triples if (d := difference(x, y, w))), "")


def _same_arrays(a: object, b: object) -> bool:
    if not isinstance(a, np.ndarray) or not isinstance(b, np.ndarray):
        return False
    if a.dtype != b.dtype or a.shape != b.shape:
        return False
    return np.array_equal(a, b, equal_nan=a.dtype.kind in "fcmM")


def _same_scalars(a: object, b: object) -> bool:
    if isinstance(a, bool) is not isinstance(b, bool):
        return False
    if isinstance(a, float | np.floating) and isinstance(b, float | np.floating):
        return float(a) == float(b) or (math.isnan(a) and math.isnan(b))
    return a == b
