"""Guess a number from hints: the smallest game of several turns.

The player writes ``<guess>n</guess>`` and hears whether the number is higher or lower. Halving the
range finds any number from 1 to ``limit`` in at most ``ceil(log2(limit + 1))`` guesses.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from posttrain.errors import ConfigError, DataError
from posttrain.types.env import Env, EnvFactory, Step
from posttrain.types.message import Message, Task
from posttrain.types.method import Source, State

GUESS = re.compile(r"<guess>\s*(\d{1,18})\s*</guess>")


def verdict(guess: int, target: int) -> str:
    """The referee's rule, apart from any chat."""
    if guess == target:
        return "correct"
    return "higher" if guess < target else "lower"


def parse_guess(text: str) -> int | None:
    """The one number inside <guess></guess>, else None; two guesses are no guess."""
    found = GUESS.findall(text)
    return int(found[0]) if len(found) == 1 else None


def guess_task(target: int, *, limit: int = 100) -> Task:
    """A game with this number to find."""
    return Task(
        id=f"guess-{target}-of-{limit}",
        prompt=(
            Message(
                "user",
                f"I think of a number from 1 to {limit}. Reply with <guess>n</guess>; I answer "
                "higher, lower or correct.",
            ),
        ),
        gold=target,
        env="guess_number",
    )


class _Game:
    """One game. Built from a task, played once, thrown away."""

    def __init__(self, target: int) -> None:
        self._target = target

    async def start(self, rng: np.random.Generator) -> Step:  # noqa: ARG002  nothing is random
        """The task's prompt says it all."""
        return Step()

    async def step(self, action: Message) -> Step:
        """Answer one guess."""
        guess = parse_guess(action.content)
        if guess is None:
            return Step(messages=(Message("user", "Reply with one <guess>n</guess>."),))
        answer = verdict(guess, self._target)
        won = answer == "correct"
        return Step(messages=(Message("user", answer),), reward=float(won), terminated=won)

    async def close(self) -> None:
        """Nothing is held."""


@dataclass(frozen=True, slots=True)
class GuessNumber(EnvFactory):
    """The game of a task whose ``gold`` is the number."""

    deterministic = True

    @override
    def __call__(self, task: Task) -> Env:
        """A fresh game.

        Raises:
            DataError: the task has no number to find.
        """
        if not isinstance(task.gold, int) or isinstance(task.gold, bool):
            raise DataError(
                f"task {task.id!r} must have the number to guess as its gold, got {task.gold!r}."
            )
        return _Game(task.gold)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuessNumbers(Source):
    """Games with numbers drawn evenly from 1 to ``limit``."""

    limit: int = 100

    def __post_init__(self) -> None:
        if self.limit < 1:
            raise ConfigError(f"GuessNumbers.limit must be >= 1, got {self.limit}.")

    @property
    @override
    def envs(self) -> Mapping[str, EnvFactory]:
        """The game."""
        return {"guess_number": GuessNumber()}

    @override
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """The next ``n`` games."""
        targets = rng.integers(1, self.limit + 1, size=n)
        return [guess_task(int(t), limit=self.limit) for t in targets]
