"""A method: parts by axis. Every part is a frozen dataclass with a pure ``__call__``."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import numpy as np
import pyarrow as pa

from posttrain.errors import ConfigError, nearest
from posttrain.types.ask import Ask
from posttrain.types.env import EnvFactory
from posttrain.types.episode import Group, RewardRow
from posttrain.types.message import Task
from posttrain.types.probe import Probe
from posttrain.types.term import GradientRule, Term

State: TypeAlias = Mapping[str, pa.Table]
"""Named tables a method remembers; the loop keeps ``draws`` (one column ``count``) itself."""

Columns: TypeAlias = Mapping[str, Sequence[np.ndarray]]
"""By name, one float32 array a segment, over the segments of all groups in order; NaN where a
token has no value."""


class Verifier(ABC):
    """Grades a group: rewards at any scope. Runs under a deadline in the runner's hands."""

    name: ClassVar[str] = ""
    version: ClassVar[str] = "1"

    @abstractmethod
    def grade(
        self, task: Task, group: Group, episodes: Sequence[int]
    ) -> Sequence[RewardRow] | Awaitable[Sequence[RewardRow]]:
        """Rows for the episodes named, which have no row of this verifier yet.

        Raises:
            VerifierError: nothing can be graded; the episodes become unscorable.
        """


class Source(ABC):
    """Where tasks come from. Subclasses are frozen dataclasses."""

    @property
    def verifiers(self) -> Mapping[str, Verifier]:
        """Verifiers its tasks may name."""
        return {}

    @property
    def envs(self) -> Mapping[str, EnvFactory]:
        """Environments its tasks may name."""
        return {}

    @abstractmethod
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """The next ``n`` tasks; ``state['draws']`` says how many were drawn before."""


class SourceRule(ABC):
    """Changes what a source gives: difficulty bands, mixtures, tasks that seats wrote."""

    @abstractmethod
    def draw(
        self, source: Source, state: State, n: int, rng: np.random.Generator
    ) -> Sequence[Task]:
        """The next ``n`` tasks."""


class Plan(ABC):
    """What shall be sampled next in a group."""

    reads: ClassVar[frozenset[str]] = frozenset()
    """Verifiers and probes it reads between rounds, by name; ``*`` means every verifier."""

    @property
    def group_size(self) -> int | None:
        """Episodes every group will have, where that is known beforehand."""
        return None

    @abstractmethod
    def __call__(self, task: Task, group: Group, state: State) -> Sequence[Ask]:
        """The next asks; nothing ends the group. Called when all earlier asks have ended."""


class Keep(ABC):
    """Whether a finished group trains; a refused one is stored and drawn again elsewhere."""

    max_redraws: int
    """Further tasks tried for a place before it stays empty."""

    @abstractmethod
    def __call__(self, group: Group, state: State) -> bool:
        """Whether the group is worth training on."""


class Credit(ABC):
    """Which token deserves what."""

    writes: ClassVar[frozenset[str]] = frozenset({"advantages"})

    @property
    def reads(self) -> frozenset[str]:
        """Probe columns it needs."""
        return frozenset()

    @property
    def min_group(self) -> int:
        """Episodes a group needs for its advantages not to be 0 by construction."""
        return 1

    @abstractmethod
    def __call__(self, groups: Sequence[Group], state: State) -> Columns:
        """Token columns for the whole step at once."""


class Observe(ABC):
    """What is worth remembering; called once a step, in a fixed order."""

    @abstractmethod
    def __call__(
        self, state: State, groups: Sequence[Group], metrics: Mapping[str, float]
    ) -> State:
        """The state after this step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Updates:
    """How often a batch of groups is used."""

    epochs: int = 1
    """Passes over the batch."""
    minibatches: int = 1
    """Optimiser steps a pass; whole groups, split as evenly as possible."""

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.minibatches < 1:
            raise ConfigError(
                f"Updates.epochs and .minibatches must be >= 1, got {self.epochs} and "
                f"{self.minibatches}."
            )

    @property
    def num_steps(self) -> int:
        """Optimiser steps a batch."""
        return self.epochs * self.minibatches


@dataclass(frozen=True, slots=True, kw_only=True)
class Method:
    """Parts by axis. Nothing here names a device, an engine or a tokenizer."""

    name: str
    plan: Plan
    terms: Mapping[str, tuple[Term, ...]]
    """By trained model."""
    credit: Credit | None = None
    probes: tuple[Probe, ...] = ()
    keep: Keep | None = None
    verifiers: Mapping[str, Verifier] = field(default_factory=dict)
    """Rewards the method itself adds (length rules, votes), beside the source's."""
    source: SourceRule | None = None
    observe: tuple[Observe, ...] = ()
    updates: Updates = Updates()
    gradient: GradientRule | None = None

    def __post_init__(self) -> None:
        if not self.terms or not any(self.terms.values()):
            raise ConfigError(f"method {self.name!r} has no terms, so nothing would be learned.")
        names = [p.name for p in self.probes]
        if len(set(names)) < len(names):
            raise ConfigError(f"method {self.name!r} has two probes of one name: {names}.")
        self._check_group_size()
        made = {*names, *(self.credit.writes if self.credit else ()), "rollout_logprobs"}
        users: list[tuple[str, frozenset[str]]] = [
            (type(t).__name__, t.reads) for ts in self.terms.values() for t in ts
        ]
        if self.credit is not None:
            users.append((type(self.credit).__name__, self.credit.reads))
        for who, reads in users:
            for column in sorted(reads - made):
                raise ConfigError(
                    f"method {self.name!r}: {who} reads the column {column!r}, which no probe and "
                    f"no credit writes (there are {sorted(made)}).{nearest(column, made)} Add a "
                    f"Probe(name={column!r}, ...) or take the part out."
                )

    def _check_group_size(self) -> None:
        size, credit = self.plan.group_size, self.credit
        if credit is not None and size is not None and size < credit.min_group:
            raise ConfigError(
                f"method {self.name!r}: {type(credit).__name__} compares the episodes of a group "
                f"and needs at least {credit.min_group}, but the plan samples {size}: every "
                f"advantage would be 0. Raise the group size, or take a credit with a baseline "
                f"from outside the group."
            )

    @property
    def parts(self) -> dict[str, object]:
        """The parts by axis, as printed on the method's card."""
        axes = ("source", "plan", "keep", "verifiers", "probes", "credit", "terms", "observe")
        found = {axis: getattr(self, axis) for axis in (*axes, "updates", "gradient")}
        return {axis: part for axis, part in found.items() if part not in (None, (), {})}
