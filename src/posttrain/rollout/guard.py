"""An environment behind a deadline: whatever goes wrong in it comes out as one ``EnvError``."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import TypeVar

import numpy as np

from posttrain.envs.single import SingleTurn
from posttrain.errors import ConfigError, EnvError, MissingExtraError
from posttrain.rollout.seeds import env_generator
from posttrain.rollout.waiting import within
from posttrain.types.env import Env, EnvFactory, Restorable, Step
from posttrain.types.message import Message, Task

T = TypeVar("T")


class GuardedEnv:
    """One environment, played once.

    Every method raises ``EnvError`` with the environment's name and its own error; mistakes of
    the run (ConfigError, a missing extra) pass through.
    """

    def __init__(self, factory: EnvFactory, task: Task, *, seconds: float) -> None:
        self.factory = factory
        self.name = task.env or type(factory).__name__
        self._task = task
        self._seconds = seconds
        self._env: Env | None = None

    async def start(self, seed: int) -> Step:
        """Build it and open the episode; ``seed`` is the episode's."""
        env = self._build()
        return await self._answer(lambda: env.start(env_generator(seed)), "start")

    async def step(self, action: Message) -> Step:
        """The answer to one action."""
        env = self._playing()
        return await self._answer(lambda: env.step(action), "step")

    def save(self) -> bytes | None:
        """Its whole state, if it can be saved."""
        env = self._playing()
        return self._do(env.save, "save its state") if isinstance(env, Restorable) else None

    def restore(self, state: bytes) -> None:
        """Build it anew with a saved state."""
        env = self._build()
        if not isinstance(env, Restorable):
            raise EnvError(
                f"environment {self.name!r} was saved, but cannot be restored: "
                f"{type(env).__name__} has no restore method."
            )
        self._do(lambda: env.restore(state), "restore a state")

    async def close(self) -> None:
        """Free it; harmless when it was never built."""
        env, self._env = self._env, None
        if env is not None:
            await self._wait(env.close, "close")

    def _build(self) -> Env:
        self._env = self._do(lambda: self.factory(self._task), "build")
        return self._env

    def _playing(self) -> Env:
        if self._env is None:
            raise EnvError(f"environment {self.name!r} was used before it was started.")
        return self._env

    async def _answer(self, ask: Callable[[], Awaitable[Step]], doing: str) -> Step:
        step = await self._wait(ask, doing)
        if not isinstance(step, Step):
            raise EnvError(
                f"environment {self.name!r} must answer {doing} with a Step, got "
                f"{type(step).__name__}."
            )
        if step.reward is not None and not _is_finite_number(step.reward):
            raise EnvError(
                f"environment {self.name!r} gave the reward {step.reward!r}; a reward is a finite "
                "number, or None where there is none."
            )
        return step

    async def _wait(self, ask: Callable[[], Awaitable[T]], doing: str) -> T:
        try:
            if isinstance(self.factory, SingleTurn):
                return await ask()  # our own, and it never waits
            return await within(ask(), self._seconds, f"environment {self.name!r} to {doing}")
        except (ConfigError, MissingExtraError):
            raise
        except Exception as error:
            raise self._failure(doing, error) from error

    def _do(self, ask: Callable[[], T], doing: str) -> T:
        try:
            return ask()
        except (ConfigError, MissingExtraError):
            raise
        except Exception as error:
            raise self._failure(doing, error) from error

    def _failure(self, doing: str, error: Exception) -> EnvError:
        return EnvError(
            f"environment {self.name!r} failed to {doing}: {type(error).__name__}: {error}"
        )


def _is_finite_number(value: object) -> bool:
    return isinstance(value, (bool, int, float, np.number, np.bool_)) and math.isfinite(value)
