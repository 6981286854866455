"""The Arrow schema of stored groups, and the way from a group to a row and back.

One row a group, nested as the types are; described for readers in docs/episodes.md. A change of
``GROUPS`` raises ``VERSION``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain.data import tagged
from posttrain.errors import DataError
from posttrain.types.episode import (
    Column,
    Episode,
    Fault,
    Group,
    Node,
    Origin,
    RewardRow,
    Scope,
    Segment,
    Span,
    Stop,
    Verdict,
)
from posttrain.types.message import Message, Task, ToolCall

VERSION = 1

_TEXT, _INT, _LONG, _FLAG = pa.string(), pa.int32(), pa.int64(), pa.bool_()


def _rows(**fields: pa.DataType) -> pa.DataType:
    return pa.list_(pa.struct(fields))


_MESSAGES = _rows(
    role=_TEXT,
    content=_TEXT,
    name=_TEXT,
    tool_calls=_rows(name=_TEXT, arguments=_TEXT, id=_TEXT),
    tool_call_id=_TEXT,
)
_TASK = pa.struct(
    {
        "id": _TEXT,
        "messages": _MESSAGES,
        "text": _TEXT,
        "gold": _TEXT,
        "verifiers": pa.list_(_TEXT),
        "env": _TEXT,
        "columns": _TEXT,
    }
)
_ARRAYS = {"ids": _INT, "action_mask": _FLAG, "rollout_logprobs": pa.float32(), "version": _INT}
"""Arrays of a segment with the item type they are stored as; ``char_ends`` is one more."""
_DTYPES = {_INT: np.dtype(np.int32), _FLAG: np.dtype(bool), pa.float32(): np.dtype(np.float32)}
_SEGMENTS = _rows(
    **{name: pa.list_(item) for name, item in _ARRAYS.items()},
    context=_rows(segment=_INT, tokens=_INT),
    seat=_TEXT,
    model=_TEXT,
    role=_TEXT,
    turn=_INT,
    trains=_FLAG,
    origin=_TEXT,
    stop=_TEXT,
    temperature=pa.float64(),
    tag=_TEXT,
    text=_TEXT,
    char_ends=pa.list_(_INT),
    columns=_rows(
        name=_TEXT,
        values=pa.list_(pa.float32()),
        shape=pa.list_(_LONG),
        model=_TEXT,
        version=_LONG,
        view=_TEXT,
    ),
    payloads=_rows(name=_TEXT, npy=pa.large_binary()),
)
_EPISODES = _rows(
    episode_id=_TEXT,
    segments=pa.list_(_INT),
    seed=pa.uint64(),
    round=_INT,
    ask=_INT,
    member=_INT,
    tag=_TEXT,
    stop=_TEXT,
    fault=_TEXT,
    note=_TEXT,
    start=pa.struct({"episode": _INT, "segment": _INT, "token": _INT}),
    env_states=_rows(segment=_INT, state=pa.large_binary()),
)
_REWARDS = _rows(
    scope=_TEXT,
    target=_INT,
    name=_TEXT,
    value=pa.float64(),
    weight=pa.float64(),
    verdict=_TEXT,
    token=_INT,
    verifier=_TEXT,
    version=_TEXT,
    seconds=pa.float64(),
    note=_TEXT,
    answer=_TEXT,
)
GROUPS = pa.schema(
    {
        "group_id": _TEXT,
        "phase": _LONG,
        "step": _LONG,
        "draw": _LONG,
        "task": _TASK,
        "segments": _SEGMENTS,
        "episodes": _EPISODES,
        "rewards": _REWARDS,
        "round": _INT,
        "finished": _FLAG,
        "refused": _FLAG,
        "template_hash": _TEXT,
        "tokenizer_hash": _TEXT,
    }
)


def to_row(group: Group) -> dict[str, object]:
    """One row of ``GROUPS``.

    Raises:
        DataError: an array has another dtype than its type states, or a task column cannot be
            stored; names the group and the field.
    """
    phase, step, draw = group.key
    where = f"group {group.group_id}"
    return {
        "group_id": group.group_id,
        "phase": phase,
        "step": step,
        "draw": draw,
        "task": _task_row(group.task, where),
        "segments": [
            _segment_row(s, f"{where}, segment {i}") for i, s in enumerate(group.segments)
        ],
        "episodes": [_episode_row(e) for e in group.episodes],
        "rewards": [_fields(r) for r in group.rewards],
        "round": group.round,
        "finished": group.finished,
        "refused": group.refused,
        "template_hash": group.template_hash,
        "tokenizer_hash": group.tokenizer_hash,
    }


def _fields(item: object) -> dict[str, Any]:
    return {name: getattr(item, name) for name in type(item).__dataclass_fields__}  # type: ignore[attr-defined]


def _task_row(task: Task, where: str) -> dict[str, object]:
    row = _fields(task)
    prompt = row.pop("prompt")
    row["text"] = prompt if isinstance(prompt, str) else None
    row["messages"] = None if isinstance(prompt, str) else [_message_row(m) for m in prompt]
    row["gold"] = tagged.dumps(task.gold, where=f"{where}: gold of task {task.id!r}")
    row["columns"] = tagged.dumps(
        dict(task.columns), where=f"{where}: column of task {task.id!r}, columns"
    )
    return row


def _message_row(message: Message) -> dict[str, object]:
    return {**_fields(message), "tool_calls": [_fields(call) for call in message.tool_calls]}


def _segment_row(segment: Segment, where: str) -> dict[str, object]:
    row = _fields(segment)
    for name, item in {**_ARRAYS, "char_ends": _INT}.items():
        _check(row[name], _DTYPES[item], f"{where}: {name}", flat=True)
    row["context"] = [_fields(span) for span in segment.context]
    row["columns"] = [_column_row(n, c, where) for n, c in segment.columns.items()]
    row["payloads"] = [
        {"name": n, "npy": tagged.npy_bytes(p, where=f"{where}: payload {n!r}")}
        for n, p in segment.payloads.items()
    ]
    return row


def _column_row(name: str, column: Column, where: str) -> dict[str, object]:
    _check(column.values, np.dtype(np.float32), f"{where}: column {name!r}", flat=False)
    shape = list(column.values.shape)
    return {**_fields(column), "name": name, "values": column.values.reshape(-1), "shape": shape}


def _check(array: np.ndarray, dtype: np.dtype[Any], where: str, *, flat: bool) -> None:
    if array.dtype != dtype or (flat and array.ndim != 1):
        raise DataError(
            f"{where} must be {'a flat' if flat else 'an'} array of {dtype}, got {array.dtype} "
            f"of shape {array.shape}. Convert it where it is made; the store does not round."
        )


def _episode_row(episode: Episode) -> dict[str, object]:
    row = _fields(episode)
    row["start"] = None if episode.start is None else _fields(episode.start)
    row["env_states"] = [{"segment": s, "state": b} for s, b in episode.env_states.items()]
    return row


def from_batch(batch: pa.RecordBatch) -> list[Group]:
    """The groups of a record batch with the schema ``GROUPS``."""
    return [_group(row) for row in _unpack(batch.to_struct_array())]


def _unpack(array: pa.Array) -> list[Any]:
    """Python values of an Arrow array, with lists of numbers as numpy arrays of their own."""
    if pa.types.is_struct(array.type):
        names = [f.name for f in array.type]
        columns = [_unpack(child) for child in array.flatten()]
        rows = [dict(zip(names, values, strict=True)) for values in zip(*columns, strict=True)]
        valid = array.is_valid().to_pylist()
        return [row if ok else None for row, ok in zip(rows, valid, strict=True)]
    if not pa.types.is_list(array.type):
        return array.to_pylist()
    item = array.type.value_type
    number = pa.types.is_primitive(item)
    flat = array.flatten()
    items = flat.to_numpy(zero_copy_only=False) if number else _unpack(flat)
    ends = np.cumsum(array.value_lengths().fill_null(0).to_numpy(zero_copy_only=False))
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    valid = array.is_valid().to_pylist()
    cut = [items[a:b].copy() if ok else None for a, b, ok in zip(starts, ends, valid, strict=True)]
    return cut


def _group(row: dict[str, Any]) -> Group:
    key = (row.pop("phase"), row.pop("step"), row.pop("draw"))
    row.pop("group_id")
    row["task"] = _task(row["task"])
    row["segments"] = tuple(_segment(s) for s in row["segments"])
    row["episodes"] = tuple(_episode(e) for e in row["episodes"])
    row["rewards"] = tuple(_reward(r) for r in row["rewards"])
    return Group(key=key, **row)


def _task(row: dict[str, Any]) -> Task:
    text, messages = row.pop("text"), row.pop("messages")
    prompt = text if messages is None else tuple(_message(m) for m in messages)
    row["gold"] = tagged.loads(row["gold"])
    row["columns"] = tagged.loads(row["columns"])
    row["verifiers"] = None if row["verifiers"] is None else tuple(row["verifiers"])
    return Task(prompt=prompt, **row)


def _message(row: dict[str, Any]) -> Message:
    calls = tuple(ToolCall(**call) for call in row.pop("tool_calls"))
    return Message(tool_calls=calls, **row)


def _segment(row: dict[str, Any]) -> Segment:
    row["context"] = tuple(Span(**span) for span in row["context"])
    row["origin"], row["stop"] = Origin(row["origin"]), Stop(row["stop"])
    row["columns"] = {c.pop("name"): _column(c) for c in row["columns"]}
    row["payloads"] = {p["name"]: tagged.from_npy_bytes(p["npy"]) for p in row["payloads"]}
    return Segment(**row)


def _column(row: Mapping[str, Any]) -> Column:
    values = row["values"].reshape(row["shape"])
    return Column(values, model=row["model"], version=row["version"], view=row["view"])


def _episode(row: dict[str, Any]) -> Episode:
    row["segments"] = tuple(_ints(row["segments"]))
    row["stop"], row["fault"] = Stop(row["stop"]), Fault(row["fault"])
    row["start"] = None if row["start"] is None else Node(**row["start"])
    row["env_states"] = {e["segment"]: e["state"] for e in row["env_states"]}
    return Episode(**row)


def _ints(values: np.ndarray) -> Sequence[int]:
    return values.tolist()


def _reward(row: dict[str, Any]) -> RewardRow:
    row["scope"], row["verdict"] = Scope(row["scope"]), Verdict(row["verdict"])
    return RewardRow(**row)
