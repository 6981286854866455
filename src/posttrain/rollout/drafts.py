"""Episodes while they are played, and how they become rows of a group.

Asks of a round run side by side, and a group's indices must not depend on who ends first. So an
episode is played in a draft of its own, whose new segments are numbered after those of the group
as the round began; ``merge`` puts all drafts in by (ask, member), and ``reopen`` takes them out of
a stored group whose round was interrupted. An observed segment that is already in the group (the
same tokens after the same context for the same seat) is not stored again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from posttrain.errors import InternalError
from posttrain.types.engine import Sample
from posttrain.types.episode import (
    Episode,
    Fault,
    Group,
    Origin,
    RewardRow,
    Scope,
    Segment,
    Span,
    Stop,
)

KEPT_LOGMASS = "kept_logmass"
"""Column with the log of the probability that the decoding filters kept."""

UNFINISHED = "unfinished"

Place: TypeAlias = tuple[int, int]
"""(ask, member)."""


class Draft:
    """One episode as it grows."""

    def __init__(self, base: Group, head: Episode) -> None:
        self.base = base
        self.head = head
        self.path = list(head.segments)
        self.own: list[Segment] = []
        self.turn_rewards: list[tuple[int, float]] = []
        """(segment, reward), in the draft's numbering."""
        self.total: RewardRow | None = None
        self.env_states: dict[int, bytes] = dict(head.env_states)
        self.ended = False

    @property
    def place(self) -> Place:
        """(ask, member)."""
        return self.head.ask, self.head.member

    def segment(self, index: int) -> Segment:
        """A segment of the group or of the draft."""
        known = len(self.base.segments)
        return self.base.segments[index] if index < known else self.own[index - known]

    def ids(self, context: Sequence[Span]) -> np.ndarray:
        """Token ids of a context, [tokens] int32."""
        parts = [self.segment(s.segment).ids[: s.tokens] for s in context]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)

    def add(self, segment: Segment) -> Span:
        """Put a new segment at the end of the path; returns it as a span."""
        self.own.append(segment)
        index = len(self.base.segments) + len(self.own) - 1
        self.path.append(index)
        return Span(index, segment.num_tokens)

    def end(self, stop: Stop, fault: Fault = Fault.NONE, note: str = "") -> None:
        """Close the episode; a second ending is a bug."""
        if self.ended:
            raise InternalError(f"episode {self.head.episode_id} ended twice, now by {stop}.")
        self.head = replace(self.head, stop=stop, fault=fault, note=note)
        self.ended = True


def merge(base: Group, drafts: Sequence[Draft]) -> Group:
    """The group with the drafts' segments, episodes and rewards, by (ask, member)."""
    segments = list(base.segments)
    known = {_sameness(s): i for i, s in enumerate(segments) if s.origin is Origin.OBSERVED}
    episodes, rewards = list(base.episodes), list(base.rewards)
    for draft in sorted(drafts, key=lambda d: d.place):
        moved: dict[int, int] = {}
        for number, own in enumerate(draft.own, start=len(base.segments)):
            context = tuple(Span(moved.get(s.segment, s.segment), s.tokens) for s in own.context)
            segment = replace(own, context=context)
            index = known.get(_sameness(segment)) if own.origin is Origin.OBSERVED else None
            if index is None:
                index = len(segments)
                segments.append(segment)
                if own.origin is Origin.OBSERVED:
                    known[_sameness(segment)] = index
            moved[number] = index
        episodes.append(_episode(draft, moved))
        rewards += _rewards(draft, moved, episode=len(episodes) - 1)
    return replace(base, segments=tuple(segments), episodes=tuple(episodes), rewards=tuple(rewards))


def _sameness(segment: Segment) -> tuple[object, ...]:
    return (segment.context, segment.ids.tobytes(), segment.seat, segment.role, segment.turn)


def _episode(draft: Draft, moved: Mapping[int, int]) -> Episode:
    return replace(
        draft.head,
        segments=tuple(moved.get(s, s) for s in draft.path),
        env_states={moved.get(s, s): state for s, state in draft.env_states.items()},
    )


def _rewards(draft: Draft, moved: Mapping[int, int], *, episode: int) -> list[RewardRow]:
    turns = [
        RewardRow(Scope.TURN, moved.get(s, s), "env", value, verifier="env")
        for s, value in draft.turn_rewards
    ]
    return turns if draft.total is None else [*turns, replace(draft.total, target=episode)]


def reopen(stored: Group) -> tuple[Group, dict[Place, Draft]]:
    """A group as its round began, and the drafts of that round, ended or not."""
    before = [e for e in stored.episodes if e.round < stored.round]
    now = stored.episodes[len(before) :]
    if any(e.round != stored.round for e in now):
        raise InternalError(
            f"group {stored.group_id} is in round {stored.round} but holds episodes of the rounds "
            f"{[e.round for e in stored.episodes]}, which must rise to it."
        )
    size = 1 + max((s for e in before for s in e.segments), default=0)
    rows = [r for r in stored.rewards if not _is_new(r, episodes=len(before), segments=size)]
    base = replace(
        stored,
        segments=stored.segments[:size],
        episodes=tuple(before),
        rewards=tuple(rows),
    )
    drafts = [_draft(base, stored, index) for index in range(len(before), len(stored.episodes))]
    return base, {d.place: d for d in drafts}


def _is_new(row: RewardRow, *, episodes: int, segments: int) -> bool:
    if row.scope is Scope.EPISODE:
        return row.target >= episodes
    return row.scope is not Scope.GROUP and row.target >= segments


def _draft(base: Group, stored: Group, index: int) -> Draft:
    episode, known = stored.episodes[index], len(base.segments)
    own = [s for s in episode.segments if s >= known]
    back = {s: known + i for i, s in enumerate(own)}
    draft = Draft(base, replace(episode, segments=(), env_states={}))
    draft.path = [back.get(s, s) for s in episode.segments]
    draft.env_states = {back.get(s, s): state for s, state in episode.env_states.items()}
    for s in own:
        segment = stored.segments[s]
        context = tuple(Span(back.get(c.segment, c.segment), c.tokens) for c in segment.context)
        draft.own.append(replace(segment, context=context))
    for row in stored.rewards:
        if row.scope is Scope.TURN and row.target in back and row.value is not None:
            draft.turn_rewards.append((back[row.target], row.value))
        elif row.scope is Scope.EPISODE and row.target == index:
            draft.total = row
    draft.ended = episode.note != UNFINISHED
    return draft


def journal(draft: Draft) -> dict[int, Sample]:
    """The samples of an interrupted episode by turn, to be used again instead of drawn."""
    return {
        s.turn: Sample(
            key="",
            ids=s.ids,
            logprobs=s.rollout_logprobs,
            version=s.version,
            stop=s.stop,
            kept_logmass=s.columns[KEPT_LOGMASS].values if KEPT_LOGMASS in s.columns else None,
            payloads=s.payloads,
        )
        for s in draft.own
        if s.origin is Origin.SAMPLED
    }
