"""What an episode said, as verifiers read it."""

from __future__ import annotations

from itertools import groupby
from typing import Any, TypeAlias

from posttrain.types.episode import Group, Origin
from posttrain.types.message import Message, Task

Conversation: TypeAlias = list[dict[str, Any]]


def turns(group: Group, episode: int) -> list[tuple[str, str]]:
    """(role, text) of each turn the seats spoke, in order; observations are left out."""
    segments = (group.segments[s] for s in group.episodes[episode].segments)
    spoken = (s for s in segments if s.origin is not Origin.OBSERVED)
    return [
        (role or "assistant", "".join(s.text for s in part))
        for (_, role), part in groupby(spoken, key=lambda s: (s.turn, s.role))
    ]


def last_turn(group: Group, episode: int) -> str:
    """Text of the last turn the seats spoke; empty when there was none."""
    said = turns(group, episode)
    return said[-1][1] if said else ""


def drawn_ids(group: Group, episode: int) -> list[int]:
    """Token ids the seats chose, in order, end tokens included."""
    segments = (group.segments[s] for s in group.episodes[episode].segments)
    return [int(i) for s in segments for i in s.ids[s.action_mask]]


def prompt_of(task: Task) -> str | Conversation:
    """The prompt as chat datasets have it: a text, or messages as dictionaries."""
    return task.prompt if isinstance(task.prompt, str) else [_as_dict(m) for m in task.prompt]


def completion_of(task: Task, group: Group, episode: int) -> str | Conversation:
    """A text after a text prompt, messages after messages."""
    if isinstance(task.prompt, str):
        return group.episode_text(episode)
    return [{"role": role, "content": text} for role, text in turns(group, episode)]


def _as_dict(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name:
        found["name"] = message.name
    if message.tool_call_id:
        found["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        found["tool_calls"] = [
            {"type": "function", "function": {"name": c.name, "arguments": c.arguments}}
            for c in message.tool_calls
        ]
    return found
