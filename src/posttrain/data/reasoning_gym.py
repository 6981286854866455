"""Tasks of the procedural data sets in the package reasoning-gym.

Training tasks, held-out tasks and few-shot examples come from disjoint ranges of seeds. A held-out
problem is never an example, and a training problem is neither: a question that was taken is drawn
again. The held-out tasks depend on names, options and their number alone, not on the seed, so runs
with different seeds are evaluated on the same problems.
"""

from __future__ import annotations

import hashlib
import importlib.util
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from posttrain.errors import ConfigError, DataError, MissingExtraError, nearest
from posttrain.types.message import JSON, Message, Task
from posttrain.types.method import Source, State, Verifier

_MAX_SIZE = 10_000_000
_EXAMPLE_SEED = 2_000_000_000
_HELD_OUT_SEED = 2_020_000_000
_TRAIN_SEEDS = 1_900_000_000
"""Training streams start below this; all ranges are at most ``_MAX_SIZE`` wide."""
_TRIES = 20
"""Problems looked at for each that is wanted."""


@dataclass(frozen=True, slots=True)
class _Place:
    """Which problem of which generator."""

    name: str
    seed: int
    index: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ReasoningGym(Source):
    """Problems of one or several data sets in turn."""

    names: tuple[str, ...]
    """Data sets, by their names in the package."""

    options: Mapping[str, Mapping[str, JSON]] = field(default_factory=dict)
    """Options of a data set's configuration, by data set."""

    split: Literal["train", "held_out"] = "train"

    num_tasks: int = 20_000
    """Training tasks before they repeat."""

    num_held_out: int = 200
    """Held-out tasks, all different."""

    num_examples: int = 0
    """Solved problems shown before each task, as turns of the conversation."""

    instruction: str = "Put the final answer between <answer> and </answer>."
    """Stands under every question; empty for none."""

    answer_format: str = "<answer>{answer}</answer>"
    """How the solved problems answer."""

    verifiers: Mapping[str, Verifier] = field(default_factory=dict)  # pyright: ignore[reportIncompatibleMethodOverride]
    """Rewards by name."""

    seed: int = 0
    """Seed of the training tasks."""

    _memo: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.names or len(set(self.names)) < len(self.names):
            raise ConfigError(
                f"ReasoningGym.names must be one or more different names, got {self.names}."
            )
        for name, value, least in (
            ("num_tasks", self.num_tasks, 1),
            ("num_held_out", self.num_held_out, 0),
            ("num_examples", self.num_examples, 0),
        ):
            if not least <= value <= _MAX_SIZE:
                raise ConfigError(
                    f"ReasoningGym.{name} must be in [{least}, {_MAX_SIZE}], got {value}."
                )
        if "{answer}" not in self.answer_format:
            raise ConfigError(
                "ReasoningGym.answer_format must hold {answer} where the answer goes, got "
                f"{self.answer_format!r}."
            )
        for name in self.options:
            if name not in self.names:
                raise ConfigError(
                    f"ReasoningGym.options names {name!r}, which is not among its names "
                    f"{self.names}.{nearest(name, self.names)}"
                )

    @override
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """The next ``n`` tasks in order; they repeat after ``size``.

        Raises:
            DataError: the split is empty, or a data set has too few different problems.
            ConfigError: a data set does not know an option.
            MissingExtraError: reasoning-gym is not installed.
        """
        if n and not self.size():
            raise DataError(f"{n} held-out tasks were asked for; ReasoningGym.num_held_out is 0.")
        before = int(state["draws"]["count"][0].as_py()) if "draws" in state else 0
        return [self.at((before + i) % self.size()) for i in range(n)]

    def size(self) -> int:
        """Number of tasks of the split."""
        return self.num_tasks if self.split == "train" else self.num_held_out

    def at(self, index: int) -> Task:
        """One task, by its index."""
        if self.split == "held_out":
            return self._task(*self._held_out()[index])
        number, turn = divmod(index, len(self.names))
        name, taken = self.names[turn], self._taken()
        for stream in range(_TRIES):
            start = _train_seed(self.seed, stream)
            entry = self._entry(place := _Place(name, start, number, self.num_tasks))
            if entry["question"] not in taken:
                return self._task(place, entry)
        raise self._too_few(name, "training")

    def _held_out(self) -> list[tuple[_Place, dict[str, Any]]]:
        if "held_out" not in self._memo:
            taken = {e["question"] for _, e in self._examples()}
            found = []
            for turn, name in enumerate(self.names):
                wanted = len(range(turn, self.num_held_out, len(self.names)))
                fresh = self._fresh(name, wanted, seed=_HELD_OUT_SEED, taken=taken)
                found.extend((number, turn, *pair) for number, pair in enumerate(fresh))
            found.sort(key=lambda f: f[:2])
            self._memo["held_out"] = [(place, entry) for _, _, place, entry in found]
        return self._memo["held_out"]

    def _examples(self) -> list[tuple[_Place, dict[str, Any]]]:
        if "examples" not in self._memo:
            taken: set[str] = set()
            self._memo["examples"] = [
                pair
                for name in self.names
                for pair in self._fresh(name, self.num_examples, seed=_EXAMPLE_SEED, taken=taken)
            ]
        return self._memo["examples"]

    def _taken(self) -> set[str]:
        if "taken" not in self._memo:
            pairs = [*self._held_out(), *self._examples()]
            self._memo["taken"] = {entry["question"] for _, entry in pairs}
        return self._memo["taken"]

    def _fresh(
        self, name: str, wanted: int, *, seed: int, taken: set[str]
    ) -> Iterator[tuple[_Place, dict[str, Any]]]:
        """Problems whose questions are not in ``taken``, which they are added to."""
        found = 0
        for index in range(wanted * _TRIES):
            if found == wanted:
                return
            entry = self._entry(place := _Place(name, seed, index, wanted * _TRIES))
            if entry["question"] not in taken:
                taken.add(entry["question"])
                found += 1
                yield place, entry
        if found < wanted:
            raise self._too_few(name, "different")

    def _too_few(self, name: str, what: str) -> DataError:
        return DataError(
            f"reasoning-gym's {name!r} with {dict(self.options.get(name, {}))} has too few {what} "
            f"problems for {self.num_held_out} held-out tasks and {self.num_examples} examples. "
            "Lower ReasoningGym.num_held_out, or choose harder options."
        )

    def _entry(self, place: _Place) -> dict[str, Any]:
        made = (place.name, place.seed, place.size)
        if made not in self._memo:
            options = self.options.get(place.name, {})
            self._memo[made] = generator(
                place.name, options=options, seed=place.seed, size=place.size
            )
        return self._memo[made][place.index]

    def _task(self, place: _Place, entry: dict[str, Any]) -> Task:
        question = str(entry["question"])
        digest = hashlib.blake2b(question.encode(), digest_size=6).hexdigest()
        return Task(
            id=f"{place.name}-{digest}",
            prompt=(*self._shown(place.name), Message("user", self._asked(question))),
            gold=None if entry["answer"] is None else str(entry["answer"]),
            verifiers=tuple(self.verifiers),
            columns={
                "dataset": place.name,
                "options": dict(self.options.get(place.name, {})),
                "seed": place.seed,
                "index": place.index,
                "size": place.size,
                "question": question,
            },
        )

    def _shown(self, name: str) -> Iterator[Message]:
        for place, entry in self._examples():
            if place.name == name:
                yield Message("user", self._asked(str(entry["question"])))
                yield Message("assistant", self.answer_format.format(answer=entry["answer"]))

    def _asked(self, question: str) -> str:
        return f"{question}\n{self.instruction}" if self.instruction else question


def _train_seed(seed: int, stream: int) -> int:
    digest = hashlib.blake2b(f"{seed} {stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % _TRAIN_SEEDS


def generator(name: str, *, options: Mapping[str, JSON], seed: int, size: int) -> Any:
    """A data set of the package: indexable, gives ``question``, ``answer`` and ``metadata``.

    Raises:
        ConfigError: the package has no such data set, or the data set no such option or value.
        MissingExtraError: reasoning-gym is not installed.
    """
    if importlib.util.find_spec("reasoning_gym") is None:
        raise MissingExtraError("reasoning-gym", extra="tasks", purpose="ReasoningGym")
    from reasoning_gym.factory import DATASETS, create_dataset

    if name not in DATASETS:
        raise ConfigError(
            f"reasoning-gym has no data set {name!r}.{nearest(name, DATASETS)} "
            "reasoning_gym.factory.DATASETS lists them."
        )
    known = inspect.signature(DATASETS[name][1]).parameters
    for option in options:
        if option not in known or option in ("seed", "size"):
            allowed = sorted(set(known) - {"seed", "size"})
            raise ConfigError(
                f"reasoning-gym's {name!r} has no option {option!r}.{nearest(option, allowed)} "
                f"Allowed: {allowed}."
            )
    try:
        return create_dataset(name, seed=seed, size=size, **options)
    except (AssertionError, ValueError, TypeError) as error:
        raise ConfigError(
            f"reasoning-gym's {name!r} refuses {dict(options)} with size {size}: {error}"
        ) from error
