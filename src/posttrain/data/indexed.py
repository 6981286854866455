"""Sources with a known number of tasks, drawn in shuffled passes, and ways to combine them.

The place of a draw follows from how many came before it (``state["draws"]``) and the source's own
shuffle seed alone: a resumed run goes on where it stopped, in any pass, whatever the batch size.
"""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from typing_extensions import override

from posttrain.errors import ConfigError, DataError
from posttrain.types.env import EnvFactory
from posttrain.types.message import Task
from posttrain.types.method import Source, State, Verifier

_BLOCK = 1000
"""Draws over which a mixture keeps its shares exactly."""


def drawn_before(state: State) -> int:
    """Tasks drawn so far."""
    return int(state["draws"]["count"][0].as_py()) if "draws" in state else 0


@lru_cache(maxsize=8)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed & 0xFFFFFFFF, epoch]).permutation(size)


def place(position: int, size: int, shuffle: int | None) -> int:
    """Index of the task at a position of the endless sequence of passes over ``size`` tasks."""
    epoch, offset = divmod(position, size)
    return offset if shuffle is None else int(_permutation(size, shuffle, epoch)[offset])


class IndexedSource(Source):
    """A source that can say how many tasks it has and give any of them."""

    @property
    @abstractmethod
    def order(self) -> int | None:
        """Seed of the shuffle; None keeps the order of the rows."""

    @abstractmethod
    def size(self) -> int:
        """Number of tasks."""

    @abstractmethod
    def at(self, index: int) -> Task:
        """One task, by its index."""

    @override
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """The next ``n`` tasks; passes follow one another, so ``n`` may exceed the size.

        Raises:
            DataError: there are no tasks at all.
        """
        size, start = self.size(), drawn_before(state)
        if n and not size:
            raise DataError(
                f"{n} tasks were asked of a source that has 0: {self!r:.200}. Check its file, and "
                "whether a filter takes everything out."
            )
        return [self.at(place(start + i, size, self.order)) for i in range(n)]


class DerivedSource(IndexedSource):
    """A source made of others: their verifiers and environments are its own."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Source, ...]:
        """What it is made of."""

    @property
    @override
    def verifiers(self) -> Mapping[str, Verifier]:
        """Those of its parts; one name must mean one verifier."""
        return merged([s.verifiers for s in self.parts], what="verifier")

    @property
    @override
    def envs(self) -> Mapping[str, EnvFactory]:
        """Those of its parts; one name must mean one environment."""
        return merged([s.envs for s in self.parts], what="environment")


def merged(mappings: Sequence[Mapping[str, Any]], *, what: str) -> dict[str, Any]:
    """One mapping of all.

    Raises:
        ConfigError: two parts give one name to different things.
    """
    out: dict[str, Any] = {}
    for mapping in mappings:
        for name, value in mapping.items():
            if name in out and out[name] != value:
                raise ConfigError(
                    f"two sources joined in one call different things the {what} {name!r}: "
                    f"{out[name]!r:.80} and {value!r:.80}. Rename one of them."
                )
            out[name] = value
    return out


@dataclass(frozen=True, slots=True)
class Concat(DerivedSource):
    """Several sources one after another, shuffled together."""

    sources: tuple[IndexedSource, ...]
    shuffle: int | None = 0
    """Seed of the shuffle; None keeps their order."""

    @property
    @override
    def parts(self) -> tuple[Source, ...]:
        """The sources."""
        return self.sources

    @property
    @override
    def order(self) -> int | None:
        """``shuffle``."""
        return self.shuffle

    @override
    def size(self) -> int:
        """Tasks of all sources."""
        return sum(s.size() for s in self.sources)

    @override
    def at(self, index: int) -> Task:
        """One task of one of the sources."""
        for source in self.sources:
            if index < source.size():
                return source.at(index)
            index -= source.size()
        raise DataError(f"Concat has {self.size()} tasks, index {index} lies beyond them.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Split(DerivedSource):
    """One side of a split by task id: equal problems never stand on both sides.

    The same ``num``, ``share`` and ``seed`` with the other ``side`` give the rest.
    """

    source: IndexedSource
    side: Literal["train", "held_out"] = "train"
    num: int = 0
    """Problems held out; 0 takes ``share``."""
    share: float = 0.1
    """Share of problems held out, in (0, 1)."""
    seed: int = 0
    shuffle: int | None = 0
    """Seed of the order in which tasks are drawn; None keeps the order of the source."""
    _memo: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.num < 0 or not 0.0 < self.share < 1.0:
            raise ConfigError(
                f"Split.num must be >= 0 and .share in (0, 1), got {self.num} and {self.share}."
            )

    @property
    @override
    def parts(self) -> tuple[Source, ...]:
        """The source."""
        return (self.source,)

    @property
    @override
    def order(self) -> int | None:
        """``shuffle``."""
        return self.shuffle

    def _indices(self) -> list[int]:
        if "indices" not in self._memo:
            ids = [self.source.at(i).id for i in range(self.source.size())]
            problems = sorted(set(ids), key=self._rank)
            num = self.num or max(1, round(self.share * len(problems)))
            if num >= len(problems):
                raise DataError(
                    f"Split holds out {num} problems of a source with {len(problems)}, so nothing "
                    "is left to train on. Lower num or share."
                )
            held = set(problems[:num])
            wanted = self.side == "held_out"
            self._memo["indices"] = [i for i, name in enumerate(ids) if (name in held) == wanted]
        return self._memo["indices"]

    def _rank(self, name: str) -> bytes:
        return hashlib.sha256(f"{self.seed}:{name}".encode("utf-8", "surrogatepass")).digest()

    @override
    def size(self) -> int:
        """Tasks on this side."""
        return len(self._indices())

    @override
    def at(self, index: int) -> Task:
        """One task of this side."""
        return self.source.at(self._indices()[index])


@dataclass(frozen=True, slots=True)
class Mixture(Source):
    """Draws from several sources in fixed shares, kept exactly over every thousand draws."""

    sources: tuple[Source, ...]
    weights: tuple[float, ...] = ()
    """Shares, up to a common factor, in thousandths of their sum; empty means equal ones."""
    seed: int = 0

    def __post_init__(self) -> None:
        weights = self.weights or (1.0,) * len(self.sources)
        if len(weights) != len(self.sources) or not self.sources or min(weights) <= 0.0:
            raise ConfigError(
                f"Mixture.weights must be one number > 0 a source, got {self.weights} for "
                f"{len(self.sources)} sources."
            )

    @property
    @override
    def verifiers(self) -> Mapping[str, Verifier]:
        """Those of its sources; one name must mean one verifier."""
        return merged([s.verifiers for s in self.sources], what="verifier")

    @property
    @override
    def envs(self) -> Mapping[str, EnvFactory]:
        """Those of its sources; one name must mean one environment."""
        return merged([s.envs for s in self.sources], what="environment")

    def _block(self, block: int) -> np.ndarray:
        """[1000] which source each draw of a block takes."""
        weights = np.array(self.weights or (1.0,) * len(self.sources))
        bounds = np.round(np.cumsum(weights) / weights.sum() * _BLOCK).astype(int)
        picks = np.repeat(np.arange(len(weights)), np.diff(bounds, prepend=0))
        return picks[_permutation(_BLOCK, self.seed, block)]

    def picks(self, start: int, n: int) -> tuple[np.ndarray, list[int]]:
        """[n] the source of each draw from ``start`` on, and draws of each source before."""
        blocks = [self._block(b) for b in range(start // _BLOCK, (start + n) // _BLOCK + 1)]
        offset = start % _BLOCK
        here = np.concatenate(blocks)
        sizes = np.bincount(self._block(0), minlength=len(self.sources))
        within = np.bincount(here[:offset], minlength=len(self.sources))
        return here[offset : offset + n], (sizes * (start // _BLOCK) + within).tolist()

    @override
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """The next ``n`` tasks; each source goes through its own tasks in its own order."""
        picks, before = self.picks(drawn_before(state), n)
        drawn: list[list[Task]] = []
        for number, source in enumerate(self.sources):
            count = pa.table({"count": pa.array([before[number]], pa.int64())})
            wanted = int((picks == number).sum())
            drawn.append(list(source.draw({**state, "draws": count}, wanted, rng)))
        queues = [iter(tasks) for tasks in drawn]
        return [next(queues[number]) for number in picks]
