"""Credit from one reward an episode: how much better than its siblings, or than a baseline.

An episode that could not be scored enters no statistic and gets no advantage (NaN); a group of one
and a group of equal rewards get exactly 0. What an episode deserves lands on every token its
training seats chose (`parts.spread`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import get_args

import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from posttrain.errors import ConfigError, nearest
from posttrain.objectives.advantages import (
    center_by_group,
    leave_one_out,
    standardise_by_group,
    subtract_baseline,
)
from posttrain.objectives.batch_advantages import center_by_batch
from posttrain.parts.memory import read_mean
from posttrain.parts.spread import (
    EpisodeKey,
    EpisodeRows,
    Truncated,
    episode_rows,
    spread_over_segments,
)
from posttrain.types.episode import Group
from posttrain.types.method import Columns, Credit, State


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupMean(Credit):
    """Reward minus the mean of its group. Source: Dr. GRPO, arXiv:2503.20783."""

    by: tuple[EpisodeKey, ...] = ("seat",)
    """What beside the group tells episodes apart that are not compared."""

    truncated: Truncated = "train"
    """What becomes of episodes that a limit ended: train, no_loss or left_out."""

    def __post_init__(self) -> None:
        _check(self, self.by, self.truncated)

    @property
    @override
    def min_group(self) -> int:
        """2."""
        return 2

    @override
    def __call__(self, groups: Sequence[Group], state: State) -> Columns:
        """The column ``advantages``."""
        return _advantages(
            groups,
            lambda rows: center_by_group(rows.rewards, rows.group_ids),
            by=self.by,
            truncated=self.truncated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupStandardised(Credit):
    """(reward - group mean) / (group std + eps). Source: GRPO, arXiv:2402.03300 sec. 4.1.2."""

    ddof: int = 1
    """The std divides by size - ddof, in {0, 1}. The paper does not say; most code uses 1."""

    eps: float = 1e-6
    """Added to the std, >= 0. Source: verl's value; TRL adds 1e-4."""

    by: tuple[EpisodeKey, ...] = ("seat",)
    """What beside the group tells episodes apart that are not compared."""

    truncated: Truncated = "train"
    """What becomes of episodes that a limit ended: train, no_loss or left_out."""

    def __post_init__(self) -> None:
        _check(self, self.by, self.truncated)
        if self.ddof not in (0, 1) or self.eps < 0.0:
            raise ConfigError(
                f"GroupStandardised.ddof must be 0 or 1 and .eps >= 0, got {self.ddof} and "
                f"{self.eps}. ddof 1 is the sample std, 0 that of a population."
            )

    @property
    @override
    def min_group(self) -> int:
        """2."""
        return 2

    @override
    def __call__(self, groups: Sequence[Group], state: State) -> Columns:
        """The column ``advantages``."""
        return _advantages(
            groups,
            lambda rows: standardise_by_group(
                rows.rewards, rows.group_ids, ddof=self.ddof, eps=self.eps
            ),
            by=self.by,
            truncated=self.truncated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneOut(Credit):
    """Reward minus the mean of the *other* members. Source: RLOO, arXiv:2402.14740 eq. (8)."""

    by: tuple[EpisodeKey, ...] = ("seat",)
    """What beside the group tells episodes apart that are not compared."""

    truncated: Truncated = "train"
    """What becomes of episodes that a limit ended: train, no_loss or left_out."""

    def __post_init__(self) -> None:
        _check(self, self.by, self.truncated)

    @property
    @override
    def min_group(self) -> int:
        """2."""
        return 2

    @override
    def __call__(self, groups: Sequence[Group], state: State) -> Columns:
        """The column ``advantages``."""
        return _advantages(
            groups,
            lambda rows: leave_one_out(rows.rewards, rows.group_ids),
            by=self.by,
            truncated=self.truncated,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardItself(Credit):
    """The reward, without a baseline. Source: REINFORCE, Williams 1992."""

    truncated: Truncated = "train"
    """What becomes of episodes that a limit ended: train, no_loss or left_out."""

    def __post_init__(self) -> None:
        _check(self, (), self.truncated)

    @override
    def __call__(self, groups: Sequence[Group], state: State) -> Columns:
        """The column ``advantages``."""
        return _advantages(groups, lambda rows: rows.rewards, truncated=self.truncated)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchMean(Credit):
    """Reward minus the mean over all episodes of the step. Source: REINFORCE, Williams 1992."""

    truncated: Truncated = "train"
    """What becomes of episodes that a limit ended: train, no_loss or left_out."""

    def __post_init__(self) -> None:
        _check(self, (), self.truncated)

    @override
    def __call__(self, groups: Sequence[Group], state: State) -> Columns:
        """The column ``advantages``."""
        return _advantages(
            groups, lambda rows: center_by_batch(rows.rewards), truncated=self.truncated
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningMean(Credit):
    """Reward minus the mean that `parts.memory.RememberMeanReward` keeps of *earlier* steps.

    Before the first step that mean is 0. Source: REINFORCE, Williams 1992.
    """

    truncated: Truncated = "train"
    """What becomes of episodes that a limit ended: train, no_loss or left_out."""

    def __post_init__(self) -> None:
        _check(self, (), self.truncated)

    @override
    def __call__(self, groups: Sequence[Group], state: State) -> Columns:
        """The column ``advantages``."""
        baseline = read_mean(state) or 0.0
        return _advantages(
            groups,
            lambda rows: subtract_baseline(rows.rewards, baseline),
            truncated=self.truncated,
        )


def _advantages(
    groups: Sequence[Group],
    estimate: Callable[[EpisodeRows], Float[Tensor, " B"]],
    *,
    by: Sequence[EpisodeKey] = (),
    truncated: Truncated,
) -> Columns:
    rows = episode_rows(groups, by=by)
    scored = ~torch.isnan(rows.rewards)
    advantages = torch.where(scored, estimate(rows), torch.nan)
    return {"advantages": spread_over_segments(groups, advantages, truncated=truncated)}


def _check(part: Credit, by: Sequence[str], truncated: str) -> None:
    for field, given, allowed in (
        ("by", by, get_args(EpisodeKey)),
        ("truncated", (truncated,), get_args(Truncated)),
    ):
        for name in given:
            if name not in allowed:
                raise ConfigError(
                    f"{type(part).__name__}.{field} knows {', '.join(allowed)}; got {name!r}."
                    f"{nearest(name, allowed)}"
                )
