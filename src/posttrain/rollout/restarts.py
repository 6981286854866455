"""Restarts: an episode that begins at a node of another one.

Its context is the tokens up to the node. Its environment is put there too: from a saved state, or
by playing the turns before the node again if the environment is declared deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.errors import ConfigError
from posttrain.rollout.drafts import Draft
from posttrain.rollout.guard import GuardedEnv
from posttrain.rollout.prompts import Seating
from posttrain.types.ask import Ask
from posttrain.types.episode import Group, Node, Origin, Scope, Span, Stop

ENDED = (Stop.COMPLETED, Stop.STOP_STRING)


@dataclass(frozen=True, slots=True, kw_only=True)
class Resumed:
    """Where an episode stands when it begins at a node."""

    seat: str
    turn: int
    context: tuple[Span, ...]
    spoken: tuple[Span, ...]
    """What of the turn was said before the node."""
    turn_is_over: bool
    """The node is the end of a turn: the environment answers next."""
    rewards: tuple[float, ...]
    """From the environment, for the turns before."""


async def resume_at(draft: Draft, node: Node, env: GuardedEnv, seating: Seating) -> Resumed:
    """Put draft and environment at the node.

    Raises:
        ConfigError: the group has no such node, or the environment can neither be restored nor
            played again.
    """
    group = draft.base
    before = _path_to(group, node)
    cuts = {**group.cuts(node.episode), node.segment: node.token}
    held = [*before, node.segment] if node.token else before
    draft.path = list(held)
    segment = group.segments[node.segment]
    turns = _turns(group, held, cuts)
    own = Span(node.segment, node.token)
    await _place_env(group, node, env, seating, [t for k, t in turns.items() if k < segment.turn])
    return Resumed(
        seat=segment.seat,
        turn=segment.turn,
        context=(*segment.context, own) if node.token else segment.context,
        spoken=tuple(turns.get(segment.turn, ())),
        turn_is_over=_ends_turn(group, node),
        rewards=_turn_rewards(group, set(before) - set(cuts)),
    )


def _turn_rewards(group: Group, segments: set[int]) -> tuple[float, ...]:
    rows = (r for r in group.rewards if r.scope is Scope.TURN and r.name == "env")
    return tuple(r.value for r in rows if r.value is not None and r.target in segments)


def _path_to(group: Group, node: Node) -> list[int]:
    """The episode's segments before the node's."""
    if not 0 <= node.episode < len(group.episodes):
        raise ConfigError(
            f"Ask.at names episode {node.episode} of group {group.group_id}, which has "
            f"{len(group.episodes)}."
        )
    path = group.episodes[node.episode].segments
    if node.segment not in path:
        raise ConfigError(
            f"Ask.at names segment {node.segment}, which episode {node.episode} of group "
            f"{group.group_id} does not pass; it passes {list(path)}."
        )
    kept = group.cuts(node.episode).get(node.segment, group.segments[node.segment].num_tokens)
    if not 0 <= node.token <= kept:
        raise ConfigError(
            f"Ask.at names token {node.token} of segment {node.segment} in group "
            f"{group.group_id}; episode {node.episode} holds {kept} of its tokens."
        )
    return list(path[: path.index(node.segment)])


def _turns(group: Group, path: Sequence[int], cuts: dict[int, int]) -> dict[int, list[Span]]:
    """What was said in each turn along a path."""
    turns: dict[int, list[Span]] = {}
    for s in path:
        segment = group.segments[s]
        if segment.origin is not Origin.OBSERVED:
            turns.setdefault(segment.turn, []).append(Span(s, cuts.get(s, segment.num_tokens)))
    return turns


def _ends_turn(group: Group, node: Node) -> bool:
    segment = group.segments[node.segment]
    path = group.episodes[node.episode].segments
    later = path[path.index(node.segment) + 1 :]
    goes_on = any(
        group.segments[s].turn == segment.turn and group.segments[s].origin is not Origin.OBSERVED
        for s in later
    )
    whole = node.token == segment.num_tokens and segment.stop in ENDED
    return whole and not goes_on and segment.origin is not Origin.OBSERVED


async def _place_env(
    group: Group, node: Node, env: GuardedEnv, seating: Seating, said: list[list[Span]]
) -> None:
    """Restore the environment as the node's turn began, or play the turns before it again."""
    states, seed = _history(group, node.episode)
    turn = group.segments[node.segment].turn
    path = group.episodes[node.episode].segments
    for s in reversed(path[: path.index(node.segment) + 1]):
        if s in states and (group.segments[s].turn == turn or s == 0):
            env.restore(states[s])
            return
    if not env.factory.deterministic:
        raise ConfigError(
            f"Ask.at restarts an episode of environment {env.name!r}, which can neither be "
            "restored nor played again. Give it save() and restore(), or set "
            f"{type(env.factory).__name__}.deterministic if equal seeds and actions give equal "
            "episodes."
        )
    await env.start(seed)
    for spans in said:
        ids = group.context_ids(spans)
        await env.step(seating.chat(group.segments[spans[0].segment].seat).message(ids))


def _history(group: Group, episode: int) -> tuple[dict[int, bytes], int]:
    """Saved environments by segment along an episode's restarts, and the first one's seed."""
    found = group.episodes[episode]
    states = dict(found.env_states)
    while found.start is not None:
        found = group.episodes[found.start.episode]
        states = {**found.env_states, **states}
    return states, found.seed


def finished_turn(ask: Ask, group: Group) -> ConfigError:
    """The error of an ask that restarts where nothing is left to sample."""
    node = ask.at or Node(-1, -1, -1)
    return ConfigError(
        f"Ask.at is the end of turn {group.segments[node.segment].turn} of episode {node.episode} "
        f"in group {group.group_id}: the turn was ended by token {node.token - 1} and no other "
        "follows. To go on within the turn, restart before its end token "
        f"(Node({node.episode}, {node.segment}, {node.token - 1}))."
    )
