"""From groups to rows of episodes, and from one number an episode back to token columns.

Shapes: B episodes, over all groups of a step in order. A segment that several episodes pass is
trained once, with the mean of what those episodes deserve. A token without a value is NaN: no
term that reads the column trains it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from posttrain.types.episode import Episode, Group, Segment

EpisodeKey: TypeAlias = Literal["seat", "tag", "round"]
"""What beside the group tells episodes apart: the seats they train, their tag, their round."""

Truncated: TypeAlias = Literal["train", "no_loss", "left_out"]
"""What becomes of an episode that a limit ended; its reward always counts in the statistics.
``no_loss``: advantage 0, its tokens stay in the denominators; ``left_out``: no advantage."""


@dataclass(frozen=True, slots=True)
class EpisodeRows:
    """Every episode of a step as one row."""

    rewards: Float[Tensor, " B"]
    """float64 weighted sum of each episode's rewards, NaN where it cannot be scored."""
    group_ids: Int[Tensor, " B"]
    """Episodes with the same id are compared with one another."""


def episode_rows(groups: Sequence[Group], *, by: Sequence[EpisodeKey]) -> EpisodeRows:
    """Rewards and ids of the episodes of all groups, in order; a refused group is unscored."""
    rewards: list[np.ndarray] = [np.zeros(0)]
    keys: dict[tuple[object, ...], int] = {}
    ids: list[int] = []
    for index, group in enumerate(groups):
        totals = group.totals()
        rewards.append(np.full_like(totals, np.nan) if group.refused else totals)
        for episode in group.episodes:
            key = (index, *(_key_part(group, episode, part) for part in by))
            ids.append(keys.setdefault(key, len(keys)))
    return EpisodeRows(
        torch.from_numpy(np.concatenate(rewards)), torch.tensor(ids, dtype=torch.long)
    )


def spread_over_segments(
    groups: Sequence[Group], advantages: Float[Tensor, " B"], *, truncated: Truncated = "train"
) -> list[np.ndarray]:
    """One column by segment: each episode's number on the tokens its training seats chose.

    Args:
        groups: The groups of the step.
        advantages: One number an episode, over all groups in order; NaN where it has none.
        truncated: What becomes of episodes that a limit ended.
    """
    columns: list[np.ndarray] = []
    rows = iter(advantages.tolist())
    for group in groups:
        values = [_held(episode, next(rows), truncated) for episode in group.episodes]
        columns.extend(_group_columns(group, values))
    return columns


def trains(segment: Segment) -> np.ndarray:
    """[tokens] bool, True where a training seat chose the token."""
    return segment.action_mask & segment.trains


def _group_columns(group: Group, values: Sequence[float]) -> list[np.ndarray]:
    passing: list[list[float]] = [[] for _ in group.segments]
    for episode, value in zip(group.episodes, values, strict=True):
        if not np.isnan(value):
            for segment in episode.segments:
                passing[segment].append(value)
    return [
        np.where(trains(segment), np.mean(found) if found else np.nan, np.nan).astype(np.float32)
        for segment, found in zip(group.segments, passing, strict=True)
    ]


def _held(episode: Episode, value: float, truncated: Truncated) -> float:
    if np.isnan(value) or truncated == "train" or not episode.stop.truncated:
        return value
    return 0.0 if truncated == "no_loss" else float("nan")


def _key_part(group: Group, episode: Episode, part: EpisodeKey) -> object:
    if part == "tag":
        return episode.tag
    if part == "round":
        return episode.round
    seats = {group.segments[s].seat for s in episode.segments if group.segments[s].trains}
    return tuple(sorted(seats))
