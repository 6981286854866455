"""What a method remembers from step to step: one small table for each part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa
from typing_extensions import override

from posttrain.errors import ConfigError
from posttrain.objectives.batch_advantages import exponential_mean
from posttrain.parts.spread import episode_rows
from posttrain.types.episode import Group
from posttrain.types.method import Observe, State

MEAN_REWARD = "mean_reward"
"""Name of the table of `RememberMeanReward`: one row, one column ``mean``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RememberMeanReward(Observe):
    """An exponential mean of the reward, for the credit `RunningMean`."""

    decay: float = 0.95
    """Share of the old mean that stays after a step, in [0, 1). Source: the library's own."""

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError(
                f"RememberMeanReward.decay must be in [0, 1), got {self.decay}; 0 keeps the mean "
                "of the last step alone."
            )

    @override
    def __call__(
        self, state: State, groups: Sequence[Group], metrics: Mapping[str, float]
    ) -> State:
        """The state with the mean moved by the scored episodes of this step."""
        rewards = episode_rows(groups, by=()).rewards
        mean = exponential_mean(read_mean(state), rewards, decay=self.decay)
        if mean is None:
            return state
        return {**state, MEAN_REWARD: pa.table({"mean": pa.array([mean], pa.float64())})}


def read_mean(state: State) -> float | None:
    """The mean reward remembered, None before the first step."""
    table = state.get(MEAN_REWARD)
    return None if table is None else float(table.column("mean")[0].as_py())
