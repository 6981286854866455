"""A run: models, seats, phases, engine, trainer, schedule. A frozen tree of typed parts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Protocol

from typing_extensions import override

from posttrain.errors import ConfigError, nearest
from posttrain.types.ask import Decode
from posttrain.types.method import Method, Source
from posttrain.types.models import ModelSpec, Optimiser, Precision, Seat, Trained


class Until(ABC):
    """When a phase ends; pure."""

    @abstractmethod
    def __call__(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether to stop after ``step`` steps of the phase with the newest metrics."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """The most steps it can take, for progress and schedules."""


@dataclass(frozen=True, slots=True)
class Steps(Until):
    """After a number of steps."""

    n: int

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ConfigError(f"Steps.n must be >= 0, got {self.n}.")

    @override
    def __call__(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether ``n`` steps are done."""
        return step >= self.n

    @property
    @override
    def steps(self) -> int:
        """``n``."""
        return self.n


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached(Until):
    """Once a metric reaches a level, or after ``at_most`` steps."""

    metric: str
    level: float
    at_most: int

    @override
    def __call__(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Whether the level is reached or the steps are used up."""
        return step >= self.at_most or metrics.get(self.metric, float("-inf")) >= self.level

    @property
    @override
    def steps(self) -> int:
        """``at_most``."""
        return self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores the policy on held-out tasks while it trains."""

    source: Source
    every: int = 50
    """Steps between evaluations; one more at the end of the phase. 0: only at the end."""
    num_tasks: int = 256
    samples: int = 1
    """Episodes a task."""
    decode: Decode | None = None
    """None means the run's own."""
    seat: str = "policy"
    threshold: float = 0.5
    """An episode is solved when its total reward is above this."""


@dataclass(frozen=True, slots=True)
class Phase:
    """A method on a source until something; models and state are carried to the next."""

    method: Method
    source: Source
    until: Until
    _: KW_ONLY
    evaluation: Evaluation | None = None
    name: str = ""
    groups_per_step: int | None = None
    """Groups a step, where it differs from the trainer's."""
    optimiser: Optimiser | None = None
    """A fresh optimiser for the policy from this phase on."""


class Schedule(ABC):
    """When batches are sampled relative to steps."""

    @property
    @abstractmethod
    def ahead(self) -> int:
        """Batches sampled before they are needed: each trains this many steps later."""


@dataclass(frozen=True, slots=True)
class Sync(Schedule):
    """Sample, then update, in turn."""

    @property
    @override
    def ahead(self) -> int:
        """0."""
        return 0


@dataclass(frozen=True, slots=True)
class Lag(Schedule):
    """Every batch is trained ``k`` steps after it was sampled (fewer at a run's start)."""

    k: int = 1

    def __post_init__(self) -> None:
        if self.k < 0:
            raise ConfigError(f"Lag.k must be >= 0, got {self.k}; 0 equals Sync.")

    @property
    @override
    def ahead(self) -> int:
        """``k``."""
        return self.k


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Which engine samples, as data; ``api`` builds the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transformers(EngineSpec):
    """Hugging Face ``transformers``: any causal model, the reference."""

    compute: Precision = "auto"
    """``auto`` is the precision the model trains in."""
    max_rows: int = 512
    """Rows decoded side by side."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Budgets of one episode and of a step."""

    max_turns: int = 16
    max_context: int = 0
    """Tokens an episode's context may hold; 0 takes the model's own limit."""
    sampled_tokens: int = 0
    """Tokens a step may sample over all its groups; 0 is no limit."""
    episode_s: float = 600.0
    verifier_s: float = 30.0
    """Seconds a verifier may take for the episodes of one group."""
    env_s: float = 60.0
    """Seconds an environment may take to answer once."""


class TrainerSpec(ABC):
    """How updates are computed, as data."""

    groups_per_step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Local(TrainerSpec):
    """One process."""

    groups_per_step: int = 16
    """Groups (tasks) a step."""
    microbatch_tokens: int = 16384
    """Tokens, padding included, of one forward and backward pass."""
    device: str = "auto"
    """``auto``, ``cpu`` or ``cuda``."""
    exact: bool | None = None
    """Sample in waves so that a resumed run is bit-identical; None: on CPU only."""

    def __post_init__(self) -> None:
        if self.groups_per_step < 1 or self.microbatch_tokens < 1:
            raise ConfigError(
                f"Local.groups_per_step and .microbatch_tokens must be >= 1, got "
                f"{self.groups_per_step} and {self.microbatch_tokens}."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoints:
    """When and how many checkpoints are kept."""

    every: int = 50
    """Steps between checkpoints; 0 only at the end."""
    keep_last: int = 2
    keep_best: str = ""
    """Metric whose largest value keeps its checkpoint, e.g. ``eval/accuracy``; empty for none."""
    episodes: bool = True
    """Store the groups of every step as Parquet."""


class SinkWriter(Protocol):
    """An open sink; it may fail or hang, the caller sees to it that nothing waits."""

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log one step."""
        ...

    def close(self) -> None:
        """Flush and end."""
        ...


class SinkSpec(ABC):
    """Where metrics go beside the run folder, as data."""

    @abstractmethod
    def check(self) -> None:
        """Called before anything is trained; what fails later is only warned about.

        Raises:
            MissingExtraError: the tracker's package is not installed.
        """

    @abstractmethod
    def open(self, folder: Path, name: str, description: Mapping[str, object]) -> SinkWriter:
        """Start logging a run; called in a thread of the sink's own, in which it is also written.

        Args:
            folder: The run's folder.
            name: Its name.
            description: The run as plain data.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """Everything needed to train, and to train the same again."""

    models: Mapping[str, ModelSpec]
    phases: tuple[Phase, ...]
    seats: Mapping[str, Seat] = field(default_factory=lambda: {"policy": Seat()})
    engine: EngineSpec = field(default_factory=Transformers)
    decode: Decode = field(default_factory=Decode)
    limits: Limits = field(default_factory=Limits)
    trainer: TrainerSpec = field(default_factory=Local)
    schedule: Schedule = field(default_factory=Sync)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    sinks: tuple[SinkSpec, ...] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.phases:
            raise ConfigError(
                "Run.phases is empty: give at least one Phase(method, source, until)."
            )
        for name, seat in self.seats.items():
            if seat.model not in self.models:
                raise ConfigError(
                    f"seat {name!r} speaks with the model {seat.model!r}, which is not among "
                    f"Run.models {sorted(self.models)}.{nearest(seat.model, self.models)}"
                )
        for phase in self.phases:
            self._check_method(phase.method)

    def _check_method(self, method: Method) -> None:
        for model in method.terms:
            if not isinstance(self.models.get(model), Trained):
                raise ConfigError(
                    f"method {method.name!r} trains the model {model!r}, which is not a Trained "
                    f"model of Run.models {sorted(self.models)}.{nearest(model, self.models)}"
                )
        for probe in method.probes:
            if probe.model not in self.models:
                raise ConfigError(
                    f"method {method.name!r}: probe {probe.name!r} scores with the model "
                    f"{probe.model!r}, which is not in Run.models {sorted(self.models)}. Add it, "
                    f'e.g. models={{..., {probe.model!r}: Frozen(of="policy")}}.'
                )
