"""Environments: what answers a policy, turn by turn. Built from a task, played once."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from posttrain.types.episode import Piece
from posttrain.types.message import Message, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What an environment answers. ``truncated`` is the runner's word alone."""

    messages: tuple[Message, ...] = ()
    reward: float | None = None
    terminated: bool = False
    seat: str = "policy"
    """Who speaks next; ``policy`` is the seat that was asked."""
    shows: tuple[Piece, ...] | None = None
    """What that seat sees before ``messages``; None means everything so far. ``Span.segment``
    counts along the episode (0 is the prompt, -1 the newest segment), and ``Span.tokens`` -1
    shows the whole segment."""


class Env(Protocol):
    """One episode of one task."""

    async def start(self, rng: np.random.Generator) -> Step:
        """The opening: messages after the task's prompt, and who speaks first."""
        ...

    async def step(self, action: Message) -> Step:
        """Answer one action."""
        ...

    async def close(self) -> None:
        """Free what the episode holds; called once, also after a failure."""
        ...


@runtime_checkable
class Restorable(Protocol):
    """An environment that can be saved and restored at any turn."""

    def save(self) -> bytes:
        """The whole state."""
        ...

    def restore(self, state: bytes) -> None:
        """Become the saved state."""
        ...


class EnvFactory(ABC):
    """Builds the environment of a task; a frozen dataclass, so that a run can be saved."""

    deterministic: bool = False
    """Whether equal seeds and actions give equal episodes: restarts may then replay."""

    @abstractmethod
    def __call__(self, task: Task) -> Env:
        """A fresh environment, not yet started."""
