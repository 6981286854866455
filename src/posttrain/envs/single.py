"""The environment of a task without turns: it listens once and ends."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from posttrain.types.env import Env, EnvFactory, Step
from posttrain.types.message import Message, Task


class _OneTurn:
    """Says nothing beyond the task's prompt and ends with the first action."""

    async def start(self, rng: np.random.Generator) -> Step:  # noqa: ARG002  nothing is random
        """Nothing to add to the prompt."""
        return Step()

    async def step(self, action: Message) -> Step:  # noqa: ARG002  verifiers judge it
        """The end."""
        return Step(terminated=True)

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class SingleTurn(EnvFactory):
    """One prompt, one answer; rewards come from verifiers."""

    deterministic = True

    @override
    def __call__(self, task: Task) -> Env:
        """A fresh listener."""
        return _OneTurn()
