"""What a run tells as it goes; sinks and the console listen, nothing waits for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol, TypeAlias


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """Training begins or goes on."""

    folder: str
    total_steps: int
    resumed_from: int | None
    description: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Part of a step is done."""

    stage: str
    """rollout, score, update, evaluate, checkpoint."""
    done: int
    total: int
    sampled_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFinished:
    """One step of the loop, with its metrics."""

    step: int
    phase: str
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """Held-out tasks were scored."""

    step: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint lies on disk, complete."""

    step: int
    folder: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Warned:
    """Something the user should know; shown once a text."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """Training ended."""

    step: int
    reason: str


Event: TypeAlias = (
    RunStarted | Progress | StepFinished | Evaluated | CheckpointSaved | Warned | RunFinished
)


class Emit(Protocol):
    """Takes events; must not raise and must not block."""

    def __call__(self, event: Event, /) -> None:
        """Take one event."""
        ...
