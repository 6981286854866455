"""Plans: what is sampled, or given, for one task."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from typing_extensions import override

from posttrain.errors import ConfigError, DataError
from posttrain.types.ask import Ask, Decode, Given
from posttrain.types.episode import Group, Said
from posttrain.types.message import JSON, Message, Messages, Task
from posttrain.types.method import Plan, State


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedGroup(Plan):
    """The same number of episodes for every task."""

    size: int = 8
    """Episodes a group, >= 1; 2 or more where they are compared with one another."""

    seat: str = "policy"
    """Who is asked."""

    decode: Decode | None = None
    """How tokens are drawn; None takes the run's own."""

    tag: str = ""
    """Written on every episode, for credit that tells tags apart."""

    def __post_init__(self) -> None:
        if self.size < 1:
            raise ConfigError(
                f"FixedGroup.size must be >= 1, got {self.size}. It is the number of episodes "
                "sampled for each task."
            )

    @property
    @override
    def group_size(self) -> int:
        """``size``."""
        return self.size

    @override
    def __call__(self, task: Task, group: Group, state: State) -> Sequence[Ask]:
        """All episodes in one round."""
        if group.round > 0:
            return ()
        return (Ask(seat=self.seat, n=self.size, decode=self.decode, tag=self.tag),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demonstrations(Plan):
    """Nothing is sampled: the answer that the task carries is given, to be imitated."""

    column: str = "completion"
    """Column with the answer: a string, or a list of one assistant message. Where a task has no
    such column its prompt must end with an assistant message, which is then the answer."""

    turns: Literal["last", "all"] = "last"
    """Which assistant messages of a conversation are imitated; ``all`` gives one episode for
    each, under the messages before it."""

    seat: str = "policy"
    """Whose template renders the answer."""

    @override
    def __call__(self, task: Task, group: Group, state: State) -> Sequence[Ask]:
        """One ask for each answer, in one round.

        Raises:
            DataError: the task has no answer, or not one that can be given as text.
        """
        if group.round > 0:
            return ()
        earlier = () if self.turns == "last" else _assistant_turns(task, self.seat)
        if self.column in task.columns:
            text = _answer(task, self.column, task.columns[self.column])
            return (*earlier, Ask(seat=self.seat, given=Given(text=text), tag="demonstration"))
        turns = _assistant_turns(task, self.seat)
        if not turns or (task.prompt[-1:] and _role(task.prompt[-1]) != "assistant"):
            raise DataError(
                f"task {task.id!r} has nothing to imitate: no column {self.column!r} (there are "
                f"{sorted(task.columns)}) and no assistant message at the end of its prompt. "
                "Name the column of the answers, e.g. Demonstrations(column='answer')."
            )
        return turns if self.turns == "all" else turns[-1:]


@dataclass(frozen=True, slots=True, kw_only=True)
class GivenRows(Plan):
    """Nothing is sampled: one episode for each named column, tagged with the column's name."""

    columns: tuple[str, ...] = ("chosen", "rejected")
    """Columns with texts (or lists of one assistant message), at least one."""

    seat: str = "policy"
    """Whose template renders the texts."""

    def __post_init__(self) -> None:
        if not self.columns or len(set(self.columns)) < len(self.columns):
            raise ConfigError(
                f"GivenRows.columns must be one or more different names, got {self.columns}."
            )

    @property
    @override
    def group_size(self) -> int:
        """One episode a column."""
        return len(self.columns)

    @override
    def __call__(self, task: Task, group: Group, state: State) -> Sequence[Ask]:
        """All columns in one round.

        Raises:
            DataError: a column is missing, or cannot be given as text.
        """
        if group.round > 0:
            return ()
        missing = [name for name in self.columns if name not in task.columns]
        if missing:
            raise DataError(
                f"task {task.id!r} lacks the columns {missing} (there are "
                f"{sorted(task.columns)}). Name those that hold the texts: GivenRows(columns=...)."
            )
        return tuple(
            Ask(
                seat=self.seat,
                given=Given(text=_answer(task, name, task.columns[name])),
                tag=name,
            )
            for name in self.columns
        )


def _answer(task: Task, column: str, value: JSON) -> str:
    """The text of a column: a string, or the content of a list of one assistant message."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if isinstance(value, dict) and value.get("role", "assistant") == "assistant":
        value = value.get("content")
    if not isinstance(value, str):
        raise DataError(
            f"column {column!r} of task {task.id!r} must be a text or a list of one assistant "
            f"message, got {value!r:.200}. For a longer conversation put all messages but the "
            "last into the prompt."
        )
    return value


def _assistant_turns(task: Task, seat: str) -> tuple[Ask, ...]:
    """One ask for each assistant message of the prompt, under the messages before it."""
    if isinstance(task.prompt, str):
        return ()
    messages: Messages = task.prompt
    turns = []
    for index, message in enumerate(messages):
        if message.role != "assistant":
            continue
        context = tuple(_said(task, earlier) for earlier in messages[:index])
        text = _said(task, message).text
        turns.append(Ask(seat=seat, context=context, given=Given(text=text), tag="demonstration"))
    return tuple(turns)


def _said(task: Task, message: Message) -> Said:
    if message.tool_calls or message.tool_call_id:
        raise DataError(
            f"task {task.id!r}: a {message.role} message of the conversation carries a tool "
            "call, which a demonstration cannot give as text. Write the call out in the content."
        )
    return Said(message.role, message.content)


def _role(message: Message | str) -> str:
    return message.role if isinstance(message, Message) else ""
