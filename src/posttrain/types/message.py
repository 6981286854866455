"""Chat messages and tasks: data a source draws, a runner renders, a verifier reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

JSON: TypeAlias = "bool | int | float | str | list[JSON] | dict[str, JSON] | None"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call as the policy wrote it; ``arguments`` is the text, parsed or not."""

    name: str
    arguments: str
    id: str = ""


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation, as text."""

    role: str
    """``system``, ``user``, ``assistant``, ``tool`` or a role the chat template knows."""

    content: str

    name: str = ""
    """Speaker or tool name, where the template uses one."""

    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str = ""


Messages: TypeAlias = tuple[Message, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One problem: data only, picklable, stored beside the group that attempted it."""

    id: str
    """Stable name; equal ids are the same problem."""

    prompt: Messages | str
    """Messages are rendered by the seat's chat template; a string is tokenised as it is."""

    gold: JSON = None
    """Reference answer, for verifiers."""

    verifiers: tuple[str, ...] | None = None
    """Names of the source's verifiers that grade this task; None means all of them."""

    env: str = ""
    """Name of the source's environment that plays this task; empty means one step."""

    columns: Mapping[str, JSON] = field(default_factory=dict)
    """Every other column of the row, for verifiers, environments and source rules."""
