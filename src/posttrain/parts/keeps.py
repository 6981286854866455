"""Keeps: which finished groups train."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from typing_extensions import override

from posttrain.errors import ConfigError, DataError, nearest
from posttrain.objectives.groups import outcomes_differ
from posttrain.types.episode import Group
from posttrain.types.method import Keep, State


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardsDiffer(Keep):
    """Only groups whose scored outcomes are not all alike; the others have no gradient.

    Whole groups are kept or refused, and a group's size never changes.
    Source: dynamic sampling, DAPO, arXiv:2503.14476 sec. 3.2.
    """

    max_redraws: int = 3
    """Further tasks tried for a place, >= 0; then it stays empty."""

    outcome: str = ""
    """Name of the reward that is looked at, as the verifier gave it. Empty takes the weighted
    sum of all: then a length or format reward makes equal outcomes look different."""

    def __post_init__(self) -> None:
        if self.max_redraws < 0:
            raise ConfigError(
                f"RewardsDiffer.max_redraws must be >= 0, got {self.max_redraws}; 0 leaves the "
                "place of a refused group empty."
            )

    @override
    def __call__(self, group: Group, state: State) -> bool:
        """Whether at least two scored episodes have different outcomes.

        Raises:
            DataError: no reward has the name asked for.
        """
        outcomes = torch.from_numpy(_outcomes(group, self.outcome))
        same = torch.zeros(len(outcomes), dtype=torch.long)
        return bool(outcomes_differ(outcomes, same).any())


def _outcomes(group: Group, name: str) -> np.ndarray:
    """[episodes] float64, NaN where an episode has no such outcome."""
    totals = group.totals()
    if not name:
        return totals
    names = {row.name for row in group.rewards}
    if names and name not in names:
        raise DataError(
            f"RewardsDiffer looks at the reward {name!r}, but group {group.group_id} has the "
            f"rewards {sorted(names)}.{nearest(name, names)}"
        )
    raw = np.full(len(group.episodes), np.nan)
    for episode in range(len(group.episodes)):
        for row in group.rewards_for(episode):
            if row.name == name and row.value is not None:
                raw[episode] = row.value
    return np.where(np.isnan(totals), np.nan, raw)
