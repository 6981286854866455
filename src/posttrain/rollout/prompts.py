"""Seats and what they see: words become tokens here, once, and are stored as segments.

A context is laid out of pieces. Spans are tokens that exist. Messages that stand together are
rendered together: at the start of a context as a prompt, later as what follows a turn. Every seat
has its own template; tokens of one tokenizer are never shown to a seat with another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias

import numpy as np

from posttrain.errors import ConfigError, nearest
from posttrain.types.episode import Group, Origin, Piece, Said, Segment, Span
from posttrain.types.message import Message, Messages, Task
from posttrain.types.models import Seat

Laid: TypeAlias = "list[Span | np.ndarray]"
"""A context in order: spans, and [tokens] int32 ids newly rendered between them."""

WHOLE = -1
"""``Span.tokens`` of environments and plans for a segment with all its tokens."""


class Chat(Protocol):
    """What the runner needs of a renderer (``posttrain.data.chat.Renderer`` is one)."""

    def prompt(self, messages: Messages) -> np.ndarray: ...  # noqa: D102
    def raw(self, text: str) -> np.ndarray: ...  # noqa: D102
    def bridge(  # noqa: D102
        self, messages: Messages, *, closed: bool, after: np.ndarray | None = None
    ) -> np.ndarray: ...
    def assistant(self, text: str) -> np.ndarray: ...  # noqa: D102
    def decode(self, ids: np.ndarray) -> tuple[str, np.ndarray]: ...  # noqa: D102
    def message(self, ids: np.ndarray) -> Message: ...  # noqa: D102
    def closes(self, ids: np.ndarray) -> bool: ...  # noqa: D102
    @property
    def end_ids(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def end_strings(self) -> tuple[str, ...]: ...  # noqa: D102
    @property
    def template_hash(self) -> str: ...  # noqa: D102
    @property
    def tokenizer_hash(self) -> str: ...  # noqa: D102


def observed(
    ids: np.ndarray, chat: Chat, *, context: tuple[Span, ...], seat: str, role: str, turn: int
) -> Segment:
    """A segment nobody chose: a prompt, an environment's answer, a plan's message."""
    text, char_ends = chat.decode(ids)
    return Segment(
        ids=ids.astype(np.int32),
        action_mask=np.zeros(len(ids), bool),
        rollout_logprobs=np.full(len(ids), np.nan, np.float32),
        version=np.full(len(ids), -1, np.int32),
        context=context,
        seat=seat,
        role=role,
        turn=turn,
        origin=Origin.OBSERVED,
        text=text,
        char_ends=char_ends,
    )


class Seating:
    """Which model and which template speak for each seat."""

    def __init__(self, seats: Mapping[str, Seat], chats: Mapping[str, Chat]) -> None:
        self.seats = dict(seats)
        self._chats = dict(chats)
        missing = sorted(set(self.seats) - set(self._chats))
        if missing or not self.seats:
            raise ConfigError(
                f"the runner has seats {sorted(self.seats)} and renderers for "
                f"{sorted(self._chats)}; every seat needs one, {missing or 'a seat'} is missing."
            )

    def seat(self, name: str) -> Seat:
        """The seat of a name.

        Raises:
            ConfigError: there is no such seat.
        """
        if name not in self.seats:
            raise ConfigError(
                f"no seat {name!r}; the run has {sorted(self.seats)}.{nearest(name, self.seats)} "
                "Add it to Run.seats, e.g. seats={..., " + repr(name) + ": Seat(model=...)}."
            )
        return self.seats[name]

    def chat(self, name: str) -> Chat:
        """The renderer of a seat."""
        self.seat(name)
        return self._chats[name]

    @property
    def first(self) -> str:
        """The seat whose template a group's first segment is rendered with."""
        return "policy" if "policy" in self.seats else next(iter(self.seats))

    def shares_prompt(self, one: str, other: str) -> bool:
        """Whether two seats see the same task as the same tokens."""
        a, b = self.chat(one), self.chat(other)
        same = (a.tokenizer_hash, a.template_hash) == (b.tokenizer_hash, b.template_hash)
        return same and self.seat(one).system == self.seat(other).system

    def task_prompt(self, task: Task, seat: str, opening: Messages = ()) -> Segment:
        """The task's prompt, with an environment's opening messages, for a seat.

        Raises:
            ConfigError: a prompt that is a string cannot take a system or opening message.
        """
        chat, system = self.chat(seat), self.seat(seat).system
        if isinstance(task.prompt, str):
            if system or opening:
                what = (
                    f"the system message of seat {seat!r}" if system else "its environment's words"
                )
                raise ConfigError(
                    f"the prompt of task {task.id!r} is a string, used as it is, so {what} cannot "
                    "be put to it. Write the prompt as messages, or leave those out."
                )
            ids, role = chat.raw(task.prompt), "user"
        else:
            messages = (*task.prompt, *opening)
            ids = chat.prompt(_with_system(system, messages))
            role = messages[-1].role if messages else ""
        return observed(ids, chat, context=(), seat=seat, role=role, turn=0)

    def lay(
        self,
        seat: str,
        pieces: Sequence[Piece | Message],
        *,
        ids: Callable[[Span], np.ndarray],
    ) -> Laid:
        """The pieces in order, messages rendered for the seat.

        Args:
            seat: Whose template renders.
            pieces: Spans, and messages as ``Said`` or ``Message``.
            ids: Token ids of a span, to see whether the turn before a message is closed.
        """
        laid: Laid = []
        said: list[Message] = []
        for piece in pieces:
            if not isinstance(piece, Span):
                said.append(Message(piece.role, piece.text) if isinstance(piece, Said) else piece)
                continue
            if said:
                laid.append(self._render(seat, tuple(said), laid, ids))
                said = []
            laid.append(piece)
        if said or self._awaits_header(seat, laid, ids):
            laid.append(self._render(seat, tuple(said), laid, ids))
        return laid

    def _awaits_header(self, seat: str, laid: Laid, ids: Callable[[Span], np.ndarray]) -> bool:
        """Whether the context ends in a closed turn, so that the next has no header yet."""
        last = laid[-1] if laid else None
        return isinstance(last, Span) and last.tokens > 0 and self.chat(seat).closes(ids(last))

    def _render(
        self, seat: str, said: Messages, laid: Laid, ids: Callable[[Span], np.ndarray]
    ) -> np.ndarray:
        chat = self.chat(seat)
        if not laid:
            return chat.prompt(_with_system(self.seat(seat).system, said))
        last = laid[-1]
        before = ids(last) if isinstance(last, Span) else last
        return chat.bridge(said, closed=chat.closes(before), after=before)

    def render(self, group: Group, pieces: tuple[Piece, ...], seat: str) -> np.ndarray:
        """Token ids of a context for a seat, [tokens] int32; nothing is stored."""
        laid = self.lay(seat, pieces, ids=lambda span: group.context_ids((span,)))
        parts = [group.context_ids((p,)) if isinstance(p, Span) else p for p in laid]
        return np.concatenate(parts) if parts else np.zeros(0, np.int32)


def _with_system(system: str, messages: Messages) -> Messages:
    """The messages with the seat's system message first; a task's own follows it in one."""
    if not system:
        return messages
    if messages and messages[0].role == "system":
        joined = Message("system", f"{system}\n\n{messages[0].content}")
        return (joined, *messages[1:])
    return (Message("system", system), *messages)
