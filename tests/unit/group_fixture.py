"""Small groups built by hand: segments with columns, episodes over them, rewards."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.types.episode import (
    Column,
    Episode,
    Fault,
    Group,
    Origin,
    RewardRow,
    Scope,
    Segment,
    Stop,
)
from posttrain.types.message import Message, Task

TASK = Task(id="t", prompt=(Message("user", "2+3"),))


def observed(length: int) -> Segment:
    """What an environment or a template wrote."""
    return Segment(
        ids=np.arange(length, dtype=np.int32),
        action_mask=np.zeros(length, bool),
        rollout_logprobs=np.full(length, np.nan, np.float32),
        version=np.full(length, -1, np.int32),
    )


def sampled(
    length: int, *, seat: str = "policy", trains: bool = True, forced: int = 0, **columns: float
) -> Segment:
    """Drawn tokens, the first ``forced`` of them put there; columns are constants."""
    drawn = np.arange(length) >= forced
    return Segment(
        ids=np.arange(length, dtype=np.int32),
        action_mask=drawn,
        rollout_logprobs=np.where(drawn, -1.0, np.nan).astype(np.float32),
        version=np.zeros(length, np.int32),
        seat=seat,
        trains=trains,
        origin=Origin.SAMPLED,
        columns={
            name: Column(np.where(drawn, value, np.nan).astype(np.float32))
            for name, value in columns.items()
        },
    )


def group(
    rewards: Sequence[float | None],
    *,
    segments: Sequence[Segment] | None = None,
    paths: Sequence[Sequence[int]] | None = None,
    tags: Sequence[str] = (),
    stops: Sequence[Stop] = (),
    refused: bool = False,
    draw: int = 0,
) -> Group:
    """A prompt of 2 tokens and an answer of i + 1 tokens for reward i; None is unscorable."""
    if segments is None:
        segments = [observed(2), *(sampled(i + 1) for i in range(len(rewards)))]
    if paths is None:
        paths = [(0, i + 1) for i in range(len(rewards))]
    episodes = tuple(
        Episode(
            episode_id=f"e{i}",
            segments=tuple(path),
            tag=tags[i] if tags else "",
            stop=stops[i] if stops else Stop.COMPLETED,
            fault=Fault.NONE if rewards[i] is not None else Fault.VERIFIER,
        )
        for i, path in enumerate(paths)
    )
    rows = tuple(
        RewardRow(scope=Scope.EPISODE, target=i, name="correct", value=value)
        for i, value in enumerate(rewards)
        if value is not None
    )
    return Group(
        key=(0, 0, draw),
        task=TASK,
        segments=tuple(segments),
        episodes=episodes,
        rewards=rows,
        refused=refused,
    )
