"""Plain Python functions as verifiers.

``RewardFunction`` takes a function that sees a batch: ``prompts``, ``completions``,
``completion_ids`` and every column of the task as keywords, each a list with one entry a
completion, giving one number or None for each (the signature of TRL's reward functions, sync or
async). ``SampleFunction`` takes one that sees a sample: ``function(answer, gold)``.

None means that the reward does not apply to this completion: it is passed over in the total. A
function that raises, or gives NaN, leaves the completion unscored; it never scores 0.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, SupportsFloat

import numpy as np
from typing_extensions import override

from posttrain.errors import ConfigError, DataError, PosttrainError, VerifierError
from posttrain.rewards.said import completion_of, drawn_ids, last_turn, prompt_of
from posttrain.types.episode import Group, RewardRow, Scope, Verdict
from posttrain.types.message import Task
from posttrain.types.method import Verifier


def check_function(function: object, *, taker: str) -> None:
    """Refuse what a saved run could not name as ``module:function``.

    Raises:
        ConfigError: a lambda, a nested function, a partial, a method or no function at all.
    """
    if not isinstance(function, FunctionType):
        raise ConfigError(
            f"{taker} takes a function defined with def at the top of a module, got "
            f"{function!r:.80} ({type(function).__name__}). Define one that calls it."
        )
    if "<" in function.__qualname__ or "." in function.__qualname__:
        raise ConfigError(
            f"{taker} got {function.__qualname__} of {function.__module__}, which a saved run "
            "could not find again. Define the function with def at the top of a module; what it "
            "closes over can come from a column of the task."
        )


def reward_value(given: object, *, label: str) -> tuple[float | None, str]:
    """A reward as (number or None, why there is none).

    Raises:
        DataError: it is neither a number nor None.
    """
    if given is None:
        return None, "the function gave None"
    if isinstance(given, SupportsFloat) and not (isinstance(given, np.ndarray) and given.ndim):
        value = float(given)
        return (value, "") if math.isfinite(value) else (None, f"the function gave {value}")
    raise DataError(
        f"the reward function {label!r} gave {given!r:.80} ({type(given).__name__}) for a "
        "completion. Allowed are numbers, bools, and None where it does not apply."
    )


def _row(episode: int, given: object, *, label: str, weight: float) -> RewardRow:
    value, note = reward_value(given, label=label)
    missing = Verdict.NOT_APPLICABLE if given is None else Verdict.UNSCORABLE
    verdict = Verdict.GRADED if value is not None else missing
    return RewardRow(Scope.EPISODE, episode, label, value, weight, verdict, note=note)


@dataclass(frozen=True, slots=True)
class RewardFunction(Verifier):
    """A function of a batch of completions; of one task at a time."""

    function: Callable[..., Any]
    """Called as ``function(prompts=..., completions=..., completion_ids=..., **columns)``; a
    function without ``**kwargs`` gets the columns it names. The gold answer is ``gold``."""

    label: str = ""
    """Name of its reward; the function's own name if empty."""

    weight: float = 1.0
    """Multiplier in the total; 0 logs the reward without training on it."""

    def __post_init__(self) -> None:
        check_function(self.function, taker="RewardFunction")

    @property
    def reward_name(self) -> str:
        """Name its rows carry."""
        return self.label or self.function.__name__

    @property
    def saved_by_name(self) -> bool:
        """Whether another process can import the function; False for one typed in a notebook."""
        return self.function.__module__ != "__main__"

    @override
    def grade(
        self, task: Task, group: Group, episodes: Sequence[int]
    ) -> Sequence[RewardRow] | Awaitable[Sequence[RewardRow]]:
        """One row an episode.

        Raises:
            VerifierError: the function raised.
            DataError: it gave another number of values than there are completions, or something
                that is no number; or it names a column the task does not have.
        """
        arguments = self._arguments(task, group, episodes)
        try:
            given = self.function(**arguments)
        except PosttrainError:
            raise
        except Exception as error:  # the boundary to the user's code
            raise self._failed(error) from error
        return (
            self._wait(given, episodes)
            if inspect.isawaitable(given)
            else self._rows(given, episodes)
        )

    async def _wait(self, given: Awaitable[Any], episodes: Sequence[int]) -> Sequence[RewardRow]:
        try:
            values = await given
        except PosttrainError:
            raise
        except Exception as error:  # the boundary to the user's code
            raise self._failed(error) from error
        return self._rows(values, episodes)

    def _failed(self, error: Exception) -> VerifierError:
        return VerifierError(
            f"the reward function {self.reward_name!r} raised {type(error).__name__}: {error}"
        )

    def _rows(self, given: object, episodes: Sequence[int]) -> list[RewardRow]:
        if isinstance(given, str | bytes | dict) or not isinstance(given, Iterable):
            raise DataError(
                f"the reward function {self.reward_name!r} gave {given!r:.80} "
                f"({type(given).__name__}) for {len(episodes)} completions. It must give a list "
                "with one number or None for each."
            )
        values = list(given)
        if len(values) != len(episodes):
            raise DataError(
                f"the reward function {self.reward_name!r} gave {len(values)} values for "
                f"{len(episodes)} completions. It must give one number or None for each, in order."
            )
        return [
            _row(e, v, label=self.reward_name, weight=self.weight)
            for e, v in zip(episodes, values, strict=True)
        ]

    def _arguments(self, task: Task, group: Group, episodes: Sequence[int]) -> dict[str, Any]:
        columns: dict[str, Any] = {"gold": task.gold, **task.columns}
        batch: dict[str, Any] = {
            **{name: [value] * len(episodes) for name, value in columns.items()},
            "prompts": [prompt_of(task) for _ in episodes],
            "completions": [completion_of(task, group, e) for e in episodes],
            "completion_ids": [drawn_ids(group, e) for e in episodes],
        }
        named = inspect.signature(self.function).parameters.values()
        missing = [
            p.name
            for p in named
            if p.default is p.empty
            and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            and p.name not in batch
        ]
        if missing:
            raise DataError(
                f"the reward function {self.reward_name!r} needs {missing}, which task "
                f"{task.id!r} does not have. There are: {sorted(batch)}."
            )
        if any(p.kind is p.VAR_KEYWORD for p in named):
            return batch
        return {p.name: batch[p.name] for p in named if p.name in batch}


@dataclass(frozen=True, slots=True)
class SampleFunction(Verifier):
    """A function of one answer, the text of the episode's last turn, and the gold answer."""

    function: Callable[[str, Any], object]
    """Called as ``function(answer, gold)``; gives a number, a bool, or None."""

    label: str = ""
    """Name of its reward; the function's own name if empty."""

    weight: float = 1.0
    """Multiplier in the total; 0 logs the reward without training on it."""

    def __post_init__(self) -> None:
        check_function(self.function, taker="SampleFunction")

    @property
    def reward_name(self) -> str:
        """Name its rows carry."""
        return self.label or self.function.__name__

    @property
    def saved_by_name(self) -> bool:
        """Whether another process can import the function; False for one typed in a notebook."""
        return self.function.__module__ != "__main__"

    @override
    def grade(self, task: Task, group: Group, episodes: Sequence[int]) -> list[RewardRow]:
        """One row an episode; an episode for which the function raised is unscorable.

        Raises:
            DataError: the function gave something that is no number.
        """
        return [self._grade_one(task, last_turn(group, e), e) for e in episodes]

    def _grade_one(self, task: Task, answer: str, episode: int) -> RewardRow:
        try:
            given = self.function(answer, task.gold)
        except PosttrainError:
            raise
        except Exception as error:  # noqa: BLE001  the boundary to the user's code
            note = f"the function raised {type(error).__name__}: {error}"
            unscored = Verdict.UNSCORABLE
            return RewardRow(
                Scope.EPISODE, episode, self.reward_name, None, self.weight, unscored, note=note
            )
        return _row(episode, given, label=self.reward_name, weight=self.weight)
