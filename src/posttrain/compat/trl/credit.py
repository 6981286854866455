"""TRL's advantages, and TRL's normalisers as a share of the loss for every token.

An unscored completion (every function gave None, or grading failed) has advantage 0 and stays in
the denominators, as in TRL. One that TRL's ``mask_truncated_completions`` leaves out counts in the
statistics of its group and in the number of completions, and its tokens nowhere.
Shapes: B episodes over all groups of a step, K reward functions.
Source: TRL 1.16.0, checked by values in ``tests/parity/test_trl_grpo.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from typing_extensions import override

from posttrain.objectives.advantages import center_by_group, standardise_by_group
from posttrain.objectives.batch_advantages import center_over_batch_std, standardise_by_batch
from posttrain.parts.aggregation import Aggregation
from posttrain.parts.spread import spread_over_segments, trains
from posttrain.types.episode import Group
from posttrain.types.method import Columns, Credit, State
from posttrain.types.term import Counts, TokenBatch

SHARE = "loss_share"
"""Column: the weight of each token's loss in its optimiser step."""

Scale: TypeAlias = Literal["group", "batch", "none"]
Joint: TypeAlias = Literal["sum_then_normalize", "normalize_then_sum"]
LossType: TypeAlias = Literal["dapo", "grpo", "dr_grpo", "luspo", "bnpo"]

EPS = 1e-4
"""Added to every standard deviation. Source: TRL 1.16.0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TRLCredit(Credit):
    """Advantages and loss shares of a generation batch."""

    writes: ClassVar[frozenset[str]] = frozenset({"advantages", SHARE})

    scale: Scale = "group"
    """Which standard deviation divides: of the group, of all rewards, or none."""

    joint: Joint = "sum_then_normalize"
    """Whether rewards are summed first, or standardised in their group first."""

    loss_type: LossType = "dapo"
    """Which normaliser the shares carry."""

    max_completion_length: int
    """Tokens a completion may have; the divisor of ``dr_grpo``."""

    minibatches: int = 1
    """Optimiser steps a pass: each takes an equal part of the normaliser."""

    mask_truncated: bool = False
    """Leave completions that the length limit cut out of the loss."""

    @property
    @override
    def min_group(self) -> int:
        """2."""
        return 2

    @override
    def __call__(self, groups: Sequence[Group], state: State) -> Columns:
        """The columns ``advantages`` and ``loss_share``."""
        trained = torch.tensor(self._trained(groups))
        lengths = torch.tensor([n for group in groups for n in _lengths(group)])
        advantages = torch.where(trained, self._advantages(groups), torch.nan)
        shares = torch.where(trained, self._shares(lengths * trained), torch.nan)
        return {
            "advantages": spread_over_segments(groups, advantages),
            SHARE: spread_over_segments(groups, shares),
        }

    def _trained(self, groups: Sequence[Group]) -> list[bool]:
        return [
            not group.refused
            and not episode.fault.infrastructure
            and not (self.mask_truncated and episode.stop.truncated)
            for group in groups
            for episode in group.episodes
        ]

    def _advantages(self, groups: Sequence[Group]) -> Float[Tensor, " B"]:
        sizes = torch.tensor([len(group.episodes) for group in groups])
        group_ids = torch.repeat_interleave(torch.arange(len(groups)), sizes)
        if self.joint == "normalize_then_sum":
            return standardise_by_batch(_standardised_sum(groups, group_ids), eps=EPS)
        totals = np.concatenate([group.totals() for group in groups])
        rewards = torch.from_numpy(totals)
        if self.scale == "group":
            return standardise_by_group(rewards, group_ids, eps=EPS)
        if self.scale == "batch":
            return center_over_batch_std(rewards, group_ids, eps=EPS)
        return center_by_group(rewards, group_ids)

    def _shares(self, lengths: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
        """A token's weight in each episode; ``lengths`` are 0 where nothing trains."""
        rows = len(lengths) / self.minibatches
        if self.loss_type == "grpo":
            return 1.0 / (rows * lengths.clamp(min=1).double())
        if self.loss_type in ("dr_grpo", "luspo"):
            constant = self.max_completion_length if self.loss_type == "dr_grpo" else 1
            return torch.full((len(lengths),), 1.0 / (rows * constant), dtype=torch.double)
        tokens = max(int(lengths.sum()), 1) / self.minibatches
        return torch.full((len(lengths),), 1.0 / tokens, dtype=torch.double)


@dataclass(frozen=True, slots=True)
class LossShare(Aggregation):
    """The shares that the credit wrote: counts of what was sampled, not of what a step trains."""

    @override
    def __call__(self, batch: TokenBatch, counts: Counts) -> Float[Tensor, "B T"]:
        """The column ``loss_share`` on trained tokens, 0 elsewhere."""
        return torch.where(batch.loss_mask, batch.column(SHARE), 0.0)


def _lengths(group: Group) -> list[int]:
    """Tokens of each episode that can be trained."""
    segments = [int(trains(segment).sum()) for segment in group.segments]
    return [sum(segments[s] for s in episode.segments) for episode in group.episodes]


def _standardised_sum(groups: Sequence[Group], group_ids: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Weighted sum of rewards standardised in their groups; NaN where no function scored."""
    names = sorted({row.name for group in groups for row in group.rewards})
    table = np.full((len(group_ids), max(len(names), 1)), np.nan)
    weights = np.ones(max(len(names), 1))
    first = 0
    for group in groups:
        for episode in range(len(group.episodes)):
            for row in group.rewards_for(episode):
                weights[names.index(row.name)] = row.weight
                if row.value is not None:
                    table[first + episode, names.index(row.name)] = row.value
        first += len(group.episodes)
    columns = torch.from_numpy(table).unbind(dim=-1)
    scaled = [standardise_by_group(column, group_ids, eps=EPS) for column in columns]
    total = (torch.stack(scaled, dim=-1) * torch.from_numpy(weights)).sum(dim=-1)
    return total.masked_fill(torch.from_numpy(np.isnan(table).all(axis=-1)), torch.nan)
