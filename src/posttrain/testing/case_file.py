"""Cases: an input, what must come out, and whether every word of both was understood.

An adapter turns the input of one kind of case into facts, computed by the library. A fact answers a
key of ``expected``. A key of the input that no adapter read, or one of ``expected`` that has no
fact, leaves the case *not yet* checked, with the key: a key passed over would be a check passed
over.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from typing_extensions import override

from posttrain.errors import DataError

ATOL = 1e-4
"""Tolerance of numbers whose adapter states none."""


class Status(StrEnum):
    """What became of a case."""

    PASSED = "passed"
    FAILED = "failed"
    NOT_YET = "not yet"


class NotYetError(Exception):
    """The library lacks what the case needs, or a key is unknown; the text says which."""


class Given(Mapping[str, Any]):
    """The input of a case; remembers which keys were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)
        self._read: set[str] = set()

    @override
    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            raise NotYetError(f"the input has no key {name!r}")
        self._read.add(name)
        return self._values[name]

    @override
    def get(self, name: str, default: Any = None) -> Any:
        """The value, or a default where the key is absent."""
        return self[name] if name in self._values else default

    @override
    def __contains__(self, name: object) -> bool:
        return name in self._values

    @override
    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    @override
    def __len__(self) -> int:
        return len(self._values)

    @property
    def unread(self) -> list[str]:
        """Keys that nothing read."""
        return sorted(set(self._values) - self._read)


@dataclass(frozen=True, slots=True)
class Near:
    """A number, or nested lists of them, with a tolerance."""

    value: Any
    atol: float = ATOL


@dataclass(frozen=True, slots=True)
class AtMost:
    """A number that the expected one bounds from above."""

    value: float


@dataclass(frozen=True, slots=True)
class AtLeast:
    """A number that the expected one bounds from below."""

    value: float


@dataclass(frozen=True, slots=True)
class Text:
    """A text that must contain every expected string, in any case."""

    value: str


@dataclass(frozen=True, slots=True)
class Either:
    """Several values, one of which is expected."""

    values: Sequence[Any]


Fact: TypeAlias = Any
Facts: TypeAlias = Mapping[str, Fact]
"""By key of ``expected``; a function is called for its value only where the key occurs."""

Adapter: TypeAlias = Callable[[Given, Given], Facts]
"""Input and expected to facts. ``expected`` is passed for its keys, never for an answer."""

REFUSED = "refused"
"""Fact: the library refused the input with an error of its own."""


@dataclass(frozen=True, slots=True)
class Case:
    """One line of a file of cases."""

    id: str
    kind: str
    given: Mapping[str, Any]
    expected: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Result:
    """What became of one case, and why if it did not pass."""

    case: Case
    status: Status
    notes: Sequence[str] = field(default_factory=tuple)


def read_cases(path: str | Path) -> list[Case]:
    """The cases of a file, in order.

    Raises:
        DataError: the file is missing, or a line is no case.
    """
    file = Path(path)
    if not file.is_file():
        raise DataError(f"there is no file {file.absolute()}.")
    cases = []
    for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            cases.append(_case(line, f"line {number} of {file}"))
    return cases


def _case(line: str, where: str) -> Case:
    try:
        row = json.loads(line)
        return Case(str(row["id"]), str(row["kind"]), dict(row["input"]), dict(row["expected"]))
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{where} is no case ({error!r}). A case is a JSON object with id, kind, input and "
            "expected."
        ) from error


def check(case: Case, adapter: Adapter) -> Result:
    """Run a case through an adapter and compare every expected key."""
    given, expected = Given(case.given), Given(case.expected)
    try:
        facts = adapter(given, expected)
        failed, unknown = _compare(case.expected, facts)
    except NotYetError as missing:
        return Result(case, Status.NOT_YET, (str(missing),))
    except Exception as error:  # noqa: BLE001  the boundary that reports what the library did
        return Result(case, Status.FAILED, (f"{type(error).__name__}: {error}",))
    unknown += [f"unknown key of the input: {name!r}" for name in given.unread]
    if failed:
        return Result(case, Status.FAILED, failed)
    if unknown:
        return Result(case, Status.NOT_YET, unknown)
    return Result(case, Status.PASSED)


def _compare(expected: Mapping[str, Any], facts: Facts) -> tuple[list[str], list[str]]:
    """What failed, and keys without a fact."""
    wanted = dict(expected)
    if wanted.pop("or_refused", False) and facts.get(REFUSED):
        return [], []
    failed, unknown = [], []
    for name, value in wanted.items():
        if name not in facts:
            unknown.append(f"unknown key of expected: {name!r}")
            continue
        fact = facts[name]
        found = fact() if callable(fact) else fact
        if not agrees(found, value):
            failed.append(f"{name}: expected {_shown(value)}, found {_shown(found)}")
    return failed, unknown


def agrees(found: Fact, expected: Any) -> bool:
    """Whether a fact is what was expected.

    Raises:
        NotYetError: a list of descriptions holds one that has no fact.
    """
    match found:
        case Near():
            return _close(found.value, expected, found.atol)
        case AtMost():
            return math.isfinite(found.value) and found.value <= expected
        case AtLeast():
            return found.value >= expected
        case Text():
            words = [expected] if isinstance(expected, str) else expected
            return all(str(word).lower() in found.value.lower() for word in words)
        case Either():
            return any(agrees(value, expected) for value in found.values)
        case Mapping() if isinstance(expected, list) and all(isinstance(e, str) for e in expected):
            unknown = [e for e in expected if e not in found]
            if unknown:
                raise NotYetError(f"nothing says whether this holds: {unknown[0]!r}")
            return all(found[e] for e in expected)
        case _:
            return _close(found, expected, ATOL)


def _close(found: Any, expected: Any, atol: float) -> bool:
    if isinstance(expected, Mapping):
        return (
            isinstance(found, Mapping)
            and {str(k) for k in found} == set(expected)
            and all(_close(v, expected[str(k)], atol) for k, v in found.items())
        )
    if isinstance(expected, list):
        same = isinstance(found, list | tuple) and len(found) == len(expected)
        return same and all(_close(f, e, atol) for f, e in zip(found, expected, strict=True))
    if isinstance(expected, bool):
        return isinstance(found, bool) and found == expected
    if isinstance(expected, int | float) and isinstance(found, int | float):
        return abs(found - expected) <= atol
    return found == expected


def _shown(value: Any) -> str:
    if isinstance(value, Near | AtMost | AtLeast | Text | Either):
        value = value.values if isinstance(value, Either) else value.value
    text = repr(value)
    return text if len(text) <= 160 else text[:157] + "..."
