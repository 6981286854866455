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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from typing_extensions import override

from posttrain.errors import ConfigError, DataError
from posttrain.types.episode import Group, RewardRow, Scope, Verdict
from posttrain.types.message import JSON, Message, Task
from posttrain.types.method import Verifier

Reward: TypeAlias = Callable[..., Any]
"""Gives a list of numbers or None, or an awaitable of one."""

Conversation: TypeAlias = list[dict[str, str]]


@dataclass(slots=True)
class Notes:
    """What reward functions logged since it was last read, and the trainer state they see."""

    trainer_state: object = None
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
        """One row an episode.

        Raises:
            DataError: the function gave another number of rewards than there are completions,
                or one that is no finite number.
        """
        given = self._function(**self._arguments(task, group, episodes))
        if inspect.isawaitable(given):
            return self._wait(given, episodes)
        return self._rows(given, episodes)

    async def _wait(self, given: Awaitable[Any], episodes: Sequence[int]) -> Sequence[RewardRow]:
        return self._rows(await given, episodes)

    def _arguments(self, task: Task, group: Group, episodes: Sequence[int]) -> dict[str, Any]:
        columns: dict[str, JSON] = {n: v for n, v in task.columns.items() if n != "completion"}
        if task.gold is not None:
            columns.setdefault("gold", task.gold)
        return {
            **{name: [value] * len(episodes) for name, value in columns.items()},
            "prompts": [spoken(task) for _ in episodes],
            "completions": [completion(task, group, episode) for episode in episodes],
            "completion_ids": [drawn_ids(group, episode) for episode in episodes],
            "trainer_state": self._notes.trainer_state,
            "log_extra": self._notes.extra_of(group, episodes),
            "log_metric": self._notes.log_metric,
        }

    def _rows(self, given: Any, episodes: Sequence[int]) -> list[RewardRow]:
        rewards = list(given)
        if len(rewards) != len(episodes):
            raise DataError(
                f"the reward function {self.label!r} gave {len(rewards)} rewards for "
                f"{len(episodes)} completions. It must give a list of one number, or None, for "
                "each completion, in order."
            )
        return [self._row(e, r) for e, r in zip(episodes, rewards, strict=True)]

    def _row(self, episode: int, reward: Any) -> RewardRow:
        value = number_or_none(reward, self.label)
        return RewardRow(
            scope=Scope.EPISODE,
            target=episode,
            name=self.label,
            value=value,
            weight=self.weight,
            verdict=Verdict.GRADED if value is not None else Verdict.NOT_APPLICABLE,
        )


def number_or_none(reward: Any, label: str) -> float | None:
    """A reward as a float; None and NaN as None.

    Raises:
        DataError: anything that is no finite number.
    """
    if reward is None:
        return None
    try:
        value = float(reward)
    except (TypeError, ValueError):
        value = math.inf
    if math.isinf(value):
        raise DataError(
            f"the reward function {label!r} gave {reward!r} ({type(reward).__name__}), which is "
            "no finite number. Give a number, or None to leave the completion out."
        )
    return None if math.isnan(value) else value


def spoken(task: Task) -> str | Conversation:
    """The prompt as the data set has it: a text, or messages as dictionaries."""
    if isinstance(task.prompt, str):
        return task.prompt
    return [_as_dict(message) for message in task.prompt]


def completion(task: Task, group: Group, episode: int) -> str | Conversation:
    """What was sampled: a text after a text, one assistant message after messages."""
    text = group.episode_text(episode)
    if isinstance(task.prompt, str):
        return text
    return [{"role": "assistant", "content": text}]


def drawn_ids(group: Group, episode: int) -> list[int]:
    """Token ids the policy chose, end token included."""
    segments = (group.segments[s] for s in group.episodes[episode].segments)
    return [int(i) for segment in segments for i in segment.ids[segment.action_mask]]


def _as_dict(message: Message) -> dict[str, str]:
    named = {"name": message.name} if message.name else {}
    return {"role": message.role, "content": message.content, **named}


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
