"""Reward functions with TRL's signature, as verifiers.

A function is called with ``prompts``, ``completions``, ``completion_ids`` and every column of the
data set, all lists of one entry a completion, further ``trainer_state``, ``log_extra`` and
``log_metric``, and gives one number or None a completion. It sees the completions of one prompt at
a time; TRL shows it those of a whole generation batch. None leaves a completion out of this
function's share of the total; one that every function leaves out is unscored.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsFloat, TypeAlias

from typing_extensions import override

from posttrain.errors import ConfigError, DataError
from posttrain.rewards.functions import reward_value
from posttrain.rewards.said import completion_of, drawn_ids, prompt_of
from posttrain.types.episode import Group, RewardRow, Scope, Verdict
from posttrain.types.message import JSON, Task
from posttrain.types.method import Verifier

Reward: TypeAlias = Callable[..., Any]
"""Gives a list of numbers or None, or an awaitable of one."""


@dataclass(slots=True)
class Notes:
    """What reward functions logged since it was last read, and the trainer state they see."""

    trainer_state: object = None
    turn: threading.Lock = field(default_factory=threading.Lock)
    """Held by the function that is being called."""
    metrics: dict[str, list[float]] = field(default_factory=dict)
    extra: dict[tuple[str, int], dict[str, Any]] = field(default_factory=dict)
    """Columns of the printed completions, by group and episode."""

    def log_metric(self, name: str, value: float) -> None:
        """Add a number to the average logged under ``name``."""
        self.metrics.setdefault(name, []).append(float(value))

    def extra_of(self, group: Group, episodes: Sequence[int]) -> Callable[..., None]:
        """The ``log_extra`` of one call: takes a column's name and one value a completion."""

        def log_extra(column: str, values: Sequence[Any]) -> None:
            for episode, value in zip(episodes, values, strict=True):
                self.extra.setdefault((group.group_id, episode), {})[column] = value

        return log_extra

    def take_metrics(self) -> dict[str, float]:
        """Means of what was logged, which are then forgotten."""
        means = {name: sum(values) / len(values) for name, values in self.metrics.items()}
        self.metrics.clear()
        return means


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardFunction(Verifier):
    """One reward function; its rows carry its name and its weight."""

    label: str
    """Name of the function, and of its metrics."""

    weight: float = 1.0
    """Multiplier in the total. Source: ``reward_weights``."""

    _function: Reward
    _notes: Notes

    @override
    def grade(
        self, task: Task, group: Group, episodes: Sequence[int]
    ) -> Sequence[RewardRow] | Awaitable[Sequence[RewardRow]]:
        """One row an episode. Functions of one trainer are called one at a time.

        Raises:
            DataError: the function raised, gave another number of rewards than there are
                completions, or one that is no finite number.
        """
        arguments = self._arguments(task, group, episodes)
        try:
            with self._notes.turn:
                given = self._function(**arguments)
        except Exception as error:  # the boundary to the user's code, which in TRL ends the run
            raise self._failed(error) from error
        if inspect.isawaitable(given):
            return self._wait(given, episodes)
        return self._rows(given, episodes)

    async def _wait(self, given: Awaitable[Any], episodes: Sequence[int]) -> Sequence[RewardRow]:
        try:
            rewards = await given
        except Exception as error:  # as above
            raise self._failed(error) from error
        return self._rows(rewards, episodes)

    def _failed(self, error: Exception) -> DataError:
        return DataError(
            f"the reward function {self.label!r} raised {type(error).__name__}: {error}. Let it "
            "return None for a completion that it cannot score."
        )

    def _arguments(self, task: Task, group: Group, episodes: Sequence[int]) -> dict[str, Any]:
        columns: dict[str, JSON] = {n: v for n, v in task.columns.items() if n != "completion"}
        if task.gold is not None:
            columns.setdefault("gold", task.gold)
        given = {
            **{name: [value] * len(episodes) for name, value in columns.items()},
            "prompts": [prompt_of(task) for _ in episodes],
            "completions": [completion_of(task, group, episode) for episode in episodes],
            "completion_ids": [drawn_ids(group, episode) for episode in episodes],
            "trainer_state": self._notes.trainer_state,
            "log_extra": self._notes.extra_of(group, episodes),
            "log_metric": self._notes.log_metric,
        }
        named = inspect.signature(self._function).parameters.values()
        if any(each.kind is each.VAR_KEYWORD for each in named):
            return given
        return {each.name: given[each.name] for each in named if each.name in given}

    def _rows(self, given: Any, episodes: Sequence[int]) -> list[RewardRow]:
        if isinstance(given, str | dict) or not isinstance(given, Iterable):
            raise DataError(
                f"the reward function {self.label!r} gave {given!r:.80} for {len(episodes)} "
                "completions. It must give a list of one number, or None, for each."
            )
        rewards = list(given)
        if len(rewards) != len(episodes):
            raise DataError(
                f"the reward function {self.label!r} gave {len(rewards)} rewards for "
                f"{len(episodes)} completions. It must give a list of one number, or None, for "
                "each completion, in order."
            )
        return [self._row(e, r) for e, r in zip(episodes, rewards, strict=True)]

    def _row(self, episode: int, reward: object) -> RewardRow:
        value, _ = reward_value(reward, label=self.label)
        if value is None and isinstance(reward, SupportsFloat) and math.isinf(float(reward)):
            raise DataError(
                f"the reward function {self.label!r} gave {reward!r}, which is no finite number. "
                "Give a number, or None to leave the completion out."
            )
        return RewardRow(
            scope=Scope.EPISODE,
            target=episode,
            name=self.label,
            value=value,
            weight=self.weight,
            verdict=Verdict.GRADED if value is not None else Verdict.NOT_APPLICABLE,
        )


def reward_functions(
    functions: Reward | Sequence[Reward] | None,
    weights: Sequence[float] | None,
    notes: Notes,
) -> dict[str, RewardFunction]:
    """Verifiers by name, in order; equal names get a number.

    Raises:
        ConfigError: not a function, or another number of weights than functions.
    """
    given = [] if functions is None else [functions] if callable(functions) else list(functions)
    factors = [1.0] * len(given) if weights is None else [float(w) for w in weights]
    if len(factors) != len(given):
        raise ConfigError(
            f"reward_weights has {len(factors)} numbers for {len(given)} reward functions. Give "
            "one for each, in the order of reward_funcs."
        )
    found: dict[str, RewardFunction] = {}
    for function, factor in zip(given, factors, strict=True):
        label = _label(function)
        alike = sum(name.split("#")[0] == label for name in found)
        name = f"{label}#{alike + 1}" if alike else label
        found[name] = RewardFunction(label=name, weight=factor, _function=function, _notes=notes)
    return found


def _label(function: object) -> str:
    if isinstance(function, str) or hasattr(function, "state_dict") or not callable(function):
        raise ConfigError(
            f"reward_funcs takes functions, got {function!r:.80}. Wrap a reward model in a "
            "function of prompts and completions that gives its scores as a list."
        )
    inner = getattr(function, "func", function)  # functools.partial
    return getattr(inner, "__name__", type(inner).__name__)
