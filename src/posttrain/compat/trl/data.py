"""Data sets with a ``prompt`` column as a source: passes in a seeded order, whole batches only."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from typing_extensions import override

from posttrain.errors import DataError, nearest
from posttrain.types.message import JSON, Message, Task
from posttrain.types.method import Source, State, Verifier

_IMAGES = ("image", "images")


@dataclass(frozen=True, slots=True)
class Prompts(Source):
    """Rows in passes of their own order each; a last incomplete batch of a pass is left out."""

    batch: int
    """Prompts a generation."""

    shuffle: bool
    seed: int
    digest: str
    """Hash of the rows, so that two runs on other data are not the same run."""

    _tasks: tuple[Task, ...]
    _graders: Mapping[str, Verifier]

    @property
    @override
    def verifiers(self) -> Mapping[str, Verifier]:
        """The reward functions."""
        return self._graders

    @property
    def per_pass(self) -> int:
        """Prompts of a pass over the data that are used."""
        return len(self._tasks) // self.batch * self.batch

    @property
    def longest_prompt(self) -> int:
        """Bytes of the longest prompt, which are no fewer than its tokens."""
        return max((len(_text(task).encode()) for task in self._tasks), default=0)

    @override
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """The next ``n`` rows after those drawn before."""
        first = int(state["draws"]["count"][0].as_py())
        orders: dict[int, np.ndarray] = {}
        found = []
        for position in range(first, first + n):
            number, place = divmod(position, self.per_pass)
            if number not in orders:
                orders[number] = self._order(number)
            found.append(self._tasks[int(orders[number][place])])
        return found

    def _order(self, number: int) -> np.ndarray:
        if not self.shuffle:
            return np.arange(len(self._tasks))
        return np.random.default_rng((self.seed, number)).permutation(len(self._tasks))


@dataclass(frozen=True, slots=True)
class Graded(Source):
    """Another source whose tasks the reward functions grade too."""

    source: Source
    _graders: Mapping[str, Verifier]

    @property
    @override
    def verifiers(self) -> Mapping[str, Verifier]:
        """The source's own and the reward functions."""
        return {**self.source.verifiers, **self._graders}

    @property
    @override
    def envs(self) -> Mapping[str, Any]:
        """The source's."""
        return self.source.envs

    @override
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """The source's tasks, graded by all verifiers they name and by the reward functions."""
        return [self._also_graded(task) for task in self.source.draw(state, n, rng)]

    def _also_graded(self, task: Task) -> Task:
        if task.verifiers is None:
            return task
        return replace(task, verifiers=(*task.verifiers, *self._graders))


def tasks_of(rows: Iterable[Mapping[str, Any]], *, prompt_only: bool = False) -> tuple[Task, ...]:
    """Rows as tasks.

    Args:
        rows: Dictionaries with a ``prompt``: a text, or messages with role and content.
        prompt_only: Leave out every other column.

    Raises:
        DataError: a row without a usable prompt, or a value that is no plain data.
    """
    return tuple(_task(at, row, prompt_only=prompt_only) for at, row in enumerate(rows))


def _text(task: Task) -> str:
    if isinstance(task.prompt, str):
        return task.prompt
    return "".join(m.role + m.content for m in task.prompt)


def digest_of(tasks: Sequence[Task]) -> str:
    """16 hex digits that equal rows share."""
    seen = hashlib.sha256()
    for task in tasks:
        seen.update(task.id.encode())
    return seen.hexdigest()[:16]


def _task(at: int, row: Mapping[str, Any], *, prompt_only: bool) -> Task:
    if not isinstance(row, Mapping) or "prompt" not in row:
        names = sorted(row) if isinstance(row, Mapping) else [type(row).__name__]
        raise DataError(
            f"row {at} of the data set has no column 'prompt', only {names}."
            f"{nearest('prompt', map(str, names))} Rename the column that holds the prompts."
        )
    for name in _IMAGES:
        if row.get(name):
            raise DataError(
                f"row {at} of the data set has a column {name!r}. Images are not supported; drop "
                "the column if the prompts can be answered without it."
            )
    kept = {} if prompt_only else {k: v for k, v in row.items() if k not in ("prompt", *_IMAGES)}
    columns = {str(name): _plain(value, at, str(name)) for name, value in kept.items()}
    prompt = _prompt(row["prompt"], at)
    text = json.dumps([repr(prompt), columns], sort_keys=True)
    name = hashlib.sha256(text.encode()).hexdigest()[:12]
    return Task(id=f"{at}-{name}", prompt=prompt, columns=columns)


def _prompt(given: Any, at: int) -> str | tuple[Message, ...]:
    if isinstance(given, str):
        return given
    if isinstance(given, Sequence) and given:
        return tuple(_message(each, at) for each in given)
    raise DataError(
        f"the prompt of row {at} must be a text or a list of messages, got {given!r:.80}."
    )


def _message(given: Any, at: int) -> Message:
    wrong = not isinstance(given, Mapping) or not isinstance(given.get("content"), str)
    if wrong or not isinstance(given.get("role"), str):
        raise DataError(
            f"a message of the prompt of row {at} must have the texts 'role' and 'content', got "
            f"{given!r:.80}. Join content parts into one text; images are not supported."
        )
    if given.get("tool_calls"):
        raise DataError(
            f"a message of the prompt of row {at} carries tool calls, which are not rendered. "
            "Write the call out in its content."
        )
    return Message(given["role"], given["content"], name=given.get("name") or "")


def _plain(value: Any, at: int, column: str) -> JSON:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, np.generic | np.ndarray):
        return _plain(value.tolist(), at, column)
    if isinstance(value, Mapping):
        return {str(k): _plain(v, at, column) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(v, at, column) for v in value]
    raise DataError(
        f"column {column!r} of row {at} holds a {type(value).__name__}, which cannot be stored "
        "beside the completions. Give texts, numbers, lists or dictionaries of them."
    )
