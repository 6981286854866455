"""A row of a data set as a task, by the column names that chat data sets share.

prompt            a text, or a list of ``{"role", "content"}``
messages          a whole conversation; what comes after its last question is the completion
chosen, rejected  two conversations (or replies); where no prompt is given, what they share is it
completion        a demonstration, as text or messages
answer, ...       the reference answer (``ANSWERS``)
data_source, reward_model.ground_truth, extra_info    rows prepared for verl

Every column, the answer included, is also passed on to rewards under its own name.
"""

from __future__ import annotations

import datetime
import decimal
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from posttrain.errors import DataError, nearest
from posttrain.types.message import JSON, Message, Messages, Task, ToolCall

Row: TypeAlias = Mapping[str, Any]

ANSWERS = ("answer", "solution", "ground_truth", "gold", "target")
"""Columns taken as the reference answer, the first that is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowReader:
    """Turns rows of one source into tasks."""

    label: str
    """What the rows come from, for messages and task ids."""
    columns: tuple[str, ...]
    prompt: str = ""
    answer: str = ""
    chat: bool = False
    drop: tuple[str, ...] = ()
    env: str = ""

    def __post_init__(self) -> None:
        for name in (self.prompt, self.answer, *self.drop):
            if name and name not in self.columns:
                raise DataError(
                    f"{self.label} has no column {name!r}; it has {sorted(self.columns)}."
                    f"{nearest(name, self.columns)}"
                )
        if not self.prompt_columns:
            raise DataError(
                f"{self.label} has no column 'prompt' or 'messages', nor 'chosen' and 'rejected'; "
                f"it has {sorted(self.columns)}. Name the one that holds the prompt, e.g. "
                "prompt='question'."
            )

    @property
    def prompt_columns(self) -> tuple[str, ...]:
        """Columns the prompt is read from; empty if there are none."""
        if self.prompt:
            return (self.prompt,)
        for names in (("prompt",), ("messages",), ("chosen", "rejected")):
            if set(names) <= set(self.columns):
                return names
        return ()

    def task(self, row: Row, number: int) -> Task:
        """The task of row ``number``.

        Raises:
            DataError: an empty prompt, a column that is no JSON; the message names the row.
        """
        prompt, said = self.prompt_of(row, number)
        gold, columns = self._gold(row), self._columns(row, number)
        columns.update(said)
        return Task(
            id=self._id(row, prompt, gold),
            prompt=prompt,
            gold=gold,
            env=self.env,
            columns=columns,
        )

    def prompt_of(self, row: Row, number: int) -> tuple[Messages | str, dict[str, JSON]]:
        """The prompt, and columns of text that came with it.

        Raises:
            DataError: it is empty or no prompt; the message names the row.
        """
        where = f"row {number} of {self.label}"
        names = self.prompt_columns
        cells = [row.get(name) for name in names]
        said: dict[str, JSON] = {}
        if len(names) == 2:
            prompt, said = _from_pair(cells[0], cells[1], where)
        elif names[0] == "messages":
            prompt, said = _from_conversation(cells[0], where)
        else:
            prompt = _prompt(cells[0], where)
            for name in ("completion", "chosen", "rejected"):
                if isinstance(row.get(name), list):
                    said[name] = _last_text(row[name], f"{name} of {where}")
        if self.chat and isinstance(prompt, str):
            prompt = (Message("user", prompt),)
        return prompt, said

    def _gold(self, row: Row) -> JSON:
        graded = row.get("reward_model")
        if not self.answer and isinstance(graded, Mapping) and "ground_truth" in graded:
            return _json(graded["ground_truth"], "reward_model", self.label)
        named = (self.answer,) if self.answer else ANSWERS
        name = next((n for n in named if n in row), None)
        return None if name is None else _json(row[name], name, self.label)

    def _columns(self, row: Row, number: int) -> dict[str, JSON]:
        left = {*self.prompt_columns, *self.drop} - {"chosen", "rejected"}
        where = f"row {number} of {self.label}"
        return {n: _json(v, n, where) for n, v in row.items() if n not in left}

    def _id(self, row: Row, prompt: Messages | str, gold: JSON) -> str:
        """The row's own id, else a hash of prompt and answer: equal problems share it."""
        own = row.get("id")
        if isinstance(own, str | int) and not isinstance(own, bool) and own != "":
            return str(own)
        said = prompt if isinstance(prompt, str) else [[m.role, m.content] for m in prompt]
        text = json.dumps([said, gold], ensure_ascii=False, sort_keys=True)
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def _prompt(cell: Any, where: str) -> Messages | str:
    if isinstance(cell, str):
        if not cell.strip():
            raise DataError(f"{where} has an empty prompt. Take it out, or fill it in.")
        return cell
    messages = read_messages(cell, where)
    if not any(m.content.strip() for m in messages):
        raise DataError(f"{where} has an empty prompt. Take it out, or fill it in.")
    return messages


def _from_conversation(cell: Any, where: str) -> tuple[Messages, dict[str, JSON]]:
    messages = read_messages(cell, where)
    cut = len(messages)
    while cut and messages[cut - 1].role == "assistant":
        cut -= 1
    if not cut:
        raise DataError(f"{where} has no message before the assistant's, so it has no prompt.")
    completion = "".join(m.content for m in messages[cut:])
    said: dict[str, JSON] = {"completion": completion} if messages[cut:] else {}
    _prompt([{"role": m.role, "content": m.content} for m in messages[:cut]], where)
    return messages[:cut], said


def _from_pair(chosen: Any, rejected: Any, where: str) -> tuple[Messages, dict[str, JSON]]:
    one, other = (read_messages(c, where) for c in (chosen, rejected))
    shared = 0
    while shared < min(len(one), len(other)) and one[shared] == other[shared]:
        shared += 1
    if not shared:
        raise DataError(
            f"{where}: chosen and rejected share no message, so there is no prompt. Add a column "
            "'prompt'."
        )
    tails = ["".join(m.content for m in messages[shared:]) for messages in (one, other)]
    return one[:shared], {"chosen": tails[0], "rejected": tails[1]}


def _last_text(cell: Any, where: str) -> str:
    return "".join(m.content for m in read_messages(cell, where) if m.role == "assistant")


def read_messages(cell: Any, where: str) -> Messages:
    """Messages of a list of dictionaries.

    Raises:
        DataError: it is no such list, or a message holds more than text.
    """
    if not isinstance(cell, Sequence) or isinstance(cell, str | bytes):
        raise DataError(
            f"{where} has no prompt: a text or a list of messages was expected, got {cell!r:.80}."
        )
    return tuple(_message(entry, where) for entry in cell)


def _message(entry: Any, where: str) -> Message:
    if isinstance(entry, Message):
        return entry
    if not isinstance(entry, Mapping) or not isinstance(entry.get("role"), str):
        raise DataError(
            f"{where}: a message must be {{'role': ..., 'content': ...}}, got {entry!r:.80}."
        )
    calls = tuple(_call(c, where) for c in entry.get("tool_calls") or ())
    return Message(
        entry["role"],
        _content(entry.get("content"), where),
        name=entry.get("name") or "",
        tool_calls=calls,
        tool_call_id=entry.get("tool_call_id") or "",
    )


def _content(content: Any, where: str) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else [content]
    texts = [p.get("text") for p in parts if isinstance(p, Mapping) and p.get("type") == "text"]
    if len(texts) != len(parts) or not all(isinstance(t, str) for t in texts):
        raise DataError(
            f"{where}: a message holds something else than text ({content!r:.80}). Only text "
            "prompts can be trained."
        )
    return "".join(str(t) for t in texts)


def _call(call: Any, where: str) -> ToolCall:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise DataError(f"{where}: a tool call must have a function name, got {call!r:.80}.")
    arguments = function.get("arguments", "")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return ToolCall(function["name"], text, str(call.get("id") or ""))


def _json(value: Any, column: str, where: str) -> JSON:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, datetime.date | datetime.time | decimal.Decimal):
        return str(value)
    if isinstance(value, Mapping):
        return {str(k): _json(v, column, where) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [_json(v, column, where) for v in value]
    if isinstance(value, np.generic | np.ndarray):
        return _json(value.tolist(), column, where)
    raise DataError(
        f"{where}: the column {column!r} holds a {type(value).__name__}, which cannot be stored "
        f"with a task. Leave it out with drop=({column!r},)."
    )
