"""Facts about groups of completions: ids, sizes, means, spread, and whether a group can teach.

Shapes: B completions, P groups, K keys or reward functions. ``group_ids[b]`` names the group of
completion b by any integer; ids need be neither sorted nor contiguous, groups may differ in size.
A reward that is NaN was not scored: it is left out of every statistic.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = [
    "GroupSpread",
    "group_mean",
    "group_spread",
    "joint_ids",
    "outcomes_differ",
    "weighted_rewards",
]


class GroupSpread(NamedTuple):
    """What every row needs to know of its group; unscored rows have ``centered`` 0."""

    scored: Bool[Tensor, " B"]
    size: Float[Tensor, " B"]  # scored members of the row's group
    lowest: Float[Tensor, " B"]  # smallest scored reward of the group; 0 if none is scored
    mean: Float[Tensor, " B"]  # (weighted) mean of the group's scored rewards; NaN if none is
    centered: Float[Tensor, " B"]  # reward minus the group's mean
    squares: Float[Tensor, " B"]  # the group's sum of squared deviations

    def std(self, *, ddof: int) -> Float[Tensor, " B"]:
        """Standard deviation of the row's group, dividing by size - `ddof`; 0 for one member."""
        return (self.squares / (self.size - ddof).clamp(min=1.0)).sqrt()


def group_spread(
    rewards: Float[Tensor, " B"],
    group_ids: Int[Tensor, " B"],
    *,
    row_weights: Float[Tensor, " B"] | None = None,
) -> GroupSpread:
    """Deviations from the (weighted) mean of each group.

    Every reward is first taken relative to the group's smallest. Equal rewards are then exact
    zeros, so their deviations are exact zeros too, whatever the mean would have rounded to.
    """
    rewards = rewards.detach()
    _, group = torch.unique(group_ids, return_inverse=True)  # [B], values in 0..P-1
    num_groups = int(group.max()) + 1 if group.numel() else 0
    scored = ~torch.isnan(rewards)
    ones = scored.to(rewards.dtype)
    weight = ones if row_weights is None else torch.where(scored, row_weights.to(ones), 0.0)

    def total(values: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
        zeros_P = torch.zeros(num_groups, dtype=rewards.dtype, device=rewards.device)
        return zeros_P.index_add(0, group, values)[group]

    infinity = torch.full((num_groups,), torch.inf, dtype=rewards.dtype, device=rewards.device)
    candidates = torch.where(scored, rewards, torch.inf)
    lowest_P = infinity.scatter_reduce(0, group, candidates, "amin")
    lowest = torch.where(torch.isinf(lowest_P), 0.0, lowest_P)[group]
    above = torch.where(scored, rewards - lowest, 0.0)
    mass = total(weight)
    mean_above = total(weight * above) / mass  # NaN where nothing has weight
    centered = torch.where(scored & (mass > 0), above - mean_above, 0.0)
    squares = total(centered.square())
    return GroupSpread(scored, total(ones), lowest, lowest + mean_above, centered, squares)


def group_mean(rewards: Float[Tensor, " B"], group_ids: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Mean of the scored rewards of each row's group, also on unscored rows; NaN if none is."""
    return group_spread(rewards, group_ids).mean


def outcomes_differ(
    outcomes: Float[Tensor, " B"], group_ids: Int[Tensor, " B"]
) -> Bool[Tensor, " B"]:
    """True on every row of a group whose scored outcomes are not all alike.

    The decision is the group's: its rows are kept or dropped together. `outcomes` are the raw
    results, before any length shaping, which would make equal results look different.
    Source: dynamic sampling, DAPO, arXiv:2503.14476 sec. 3.2.
    """
    return group_spread(outcomes, group_ids).squares > 0


def joint_ids(*ids: Int[Tensor, " B"]) -> Int[Tensor, " B"]:
    """One id for each combination that occurs: group and seat, group and step state, domain."""
    _, joint = torch.unique(torch.stack(ids, dim=-1), dim=0, return_inverse=True)
    return joint


def weighted_rewards(
    rewards: Float[Tensor, "B K"], reward_weights: Float[Tensor, " K"]
) -> Float[Tensor, " B"]:
    """Weighted sum over reward functions: what training uses is what is to be logged.

    A row that misses a reward with a non-zero weight is NaN, that is, unscored.
    """
    return torch.where(reward_weights != 0, rewards * reward_weights, 0.0).sum(dim=-1)
