"""KL to a reference as a part of the reward: the policy gradient of it is the exact KL gradient."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from posttrain.errors import ConfigError, NumericsError
from posttrain.parts.credit import LeaveOneOut
from posttrain.types.episode import Group, RewardRow, Scope, Segment
from posttrain.types.method import Columns, Credit, State


@dataclass(frozen=True, slots=True, kw_only=True)
class KLInReward(Credit):
    """Credit of the reward minus ``beta`` times the summed k1 of the episode's drawn tokens.

    Episode reward R - beta * sum_t (log pi_old - log pi_ref). Source: RLOO, arXiv:2402.14740
    sec. 2; unbiased in value and gradient where the tokens are the policy's own.
    """

    credit: Credit = field(default_factory=LeaveOneOut)
    """What is made of the reward after the penalty."""

    beta: float = 0.03
    """Reward a nat, > 0. Source: RLOO's summarisation runs; 0.1 for its dialogue runs."""

    policy: str = "old_logprobs"
    """Column of the policy's own log-probs."""

    reference: str = "ref_logprobs"
    """Column of the reference's log-probs."""

    def __post_init__(self) -> None:
        if not self.beta > 0.0:
            raise ConfigError(
                f"KLInReward.beta must be > 0, got {self.beta}. Without a penalty use its credit "
                f"alone: {type(self.credit).__name__}(...)."
            )
        if isinstance(self.credit, KLInReward):
            raise ConfigError("KLInReward around KLInReward would count the KL twice.")

    @property
    @override
    def reads(self) -> frozenset[str]:
        """Both columns, and what the inner credit reads."""
        return self.credit.reads | {self.policy, self.reference}

    @property
    @override
    def min_group(self) -> int:
        """That of the inner credit."""
        return self.credit.min_group

    @override
    def __call__(self, groups: Sequence[Group], state: State) -> Columns:
        """The inner credit's columns.

        Raises:
            NumericsError: a drawn token has no finite log-prob in one of the columns.
        """
        return self.credit([self._with_penalty(group) for group in groups], state)

    def _with_penalty(self, group: Group) -> Group:
        if group.refused:
            return group
        sums = {
            index: self._summed_k1(group, index, segment)
            for index, segment in enumerate(group.segments)
            if segment.trains
        }
        rows = [
            RewardRow(
                scope=Scope.EPISODE,
                target=index,
                name="kl",
                value=-self.beta * sum(sums.get(s, 0.0) for s in episode.segments),
            )
            for index, episode in enumerate(group.episodes)
            if group.total(index) is not None
        ]
        return group.add(rewards=rows)

    def _summed_k1(self, group: Group, index: int, segment: Segment) -> float:
        drawn = segment.drawn
        if not drawn.any():
            return 0.0
        policy, reference = (
            self._read(group, index, segment, name)[drawn].astype(np.float64)
            for name in (self.policy, self.reference)
        )
        return float((policy - reference).sum())

    def _read(self, group: Group, index: int, segment: Segment, name: str) -> np.ndarray:
        column = segment.columns.get(name)
        if column is None:
            raise ConfigError(
                f"KLInReward reads the column {name!r}, which segment {index} of group "
                f"{group.group_id} lacks (it has {sorted(segment.columns)}). Add its probe."
            )
        broken = np.flatnonzero(segment.drawn & ~np.isfinite(column.values))
        if broken.size:
            raise NumericsError(
                f"{name} must be finite on every drawn token, but token {broken[0]} of segment "
                f"{index} in group {group.group_id} is {column.values[broken[0]]}."
            )
        return column.values
