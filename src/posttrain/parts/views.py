"""Views: the context a segment is scored in, other than the one it was sampled in."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from posttrain.errors import DataError
from posttrain.types.episode import Group, Piece, Said
from posttrain.types.message import Task
from posttrain.types.probe import View


@dataclass(frozen=True, slots=True)
class BarePrompt(View):
    """The task's own prompt, whatever the plan showed the sampler: no hint, no example.

    For segments that answer the prompt itself; later turns of an episode are left out.
    """

    @override
    def __call__(self, task: Task, group: Group, segment: int) -> tuple[Piece, ...] | None:
        """The prompt's messages, or None for later turns.

        Raises:
            DataError: the prompt is a string, which has no messages.
        """
        return None if group.segments[segment].turn > 0 else _prompt(task)


@dataclass(frozen=True, slots=True, kw_only=True)
class WithColumn(View):
    """The task's own prompt with a column of the task added: a teacher that sees the answer."""

    column: str = "gold"
    """Column to show; ``gold`` is the task's reference answer."""

    lead: str = "The reference answer is: "
    """Text put before it, in a message of its own."""

    role: str = "user"
    """Role of that message."""

    @override
    def __call__(self, task: Task, group: Group, segment: int) -> tuple[Piece, ...] | None:
        """The prompt's messages and one more, or None for later turns.

        Raises:
            DataError: the task has no such column, or its prompt is a string.
        """
        if group.segments[segment].turn > 0:
            return None
        value = task.gold if self.column == "gold" else task.columns.get(self.column)
        if value is None:
            raise DataError(
                f"WithColumn shows the column {self.column!r}, which task {task.id!r} lacks "
                f"(there are {sorted(task.columns)})."
            )
        return (*_prompt(task), Said(self.role, f"{self.lead}{value}"))


def _prompt(task: Task) -> tuple[Said, ...]:
    if isinstance(task.prompt, str):
        raise DataError(
            f"the prompt of task {task.id!r} is a string, and a view is made of messages. Write "
            "the prompt as messages, or score the segments as sampled."
        )
    return tuple(Said(m.role, m.content) for m in task.prompt)
