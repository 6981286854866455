"""Stored groups come back as they were; damaged files say so."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from posttrain.data.compare import difference, groups_equal
from posttrain.data.store import read_groups, write_groups
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

text = st.text(st.characters(exclude_categories=("Cs",)), max_size=6)
small = st.integers(-(2**31), 2**31 - 1)
floats32 = st.floats(width=32)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.binary(max_size=5)
    | hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, max_dims=2, max_side=3))
    | hnp.from_dtype(np.dtype(np.float32))
)
json_values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.dictionaries(st.sampled_from(["a", "$tuple", "$float"]) | text, inner, max_size=2)
    ),
    max_leaves=5,
)
messages = st.builds(
    Message,
    role=text,
    content=text,
    name=text,
    tool_calls=st.lists(st.builds(ToolCall, text, text, text), max_size=2).map(tuple),
    tool_call_id=text,
)
tasks = st.builds(
    Task,
    id=text,
    prompt=st.lists(messages, max_size=2).map(tuple) | text,
    gold=json_values,
    verifiers=st.none() | st.lists(text, max_size=2).map(tuple),
    env=text,
    columns=st.dictionaries(text, json_values, max_size=3),
)


@st.composite
def segments(draw):
    n = draw(st.integers(0, 4))

    def array(dtype, *tail):
        return draw(hnp.arrays(dtype, (n, *tail)))

    return Segment(
        ids=array(np.int32),
        action_mask=array(bool),
        rollout_logprobs=array(np.float32),
        version=array(np.int32),
        context=tuple(draw(st.lists(st.builds(Span, small, small), max_size=2))),
        seat=draw(text),
        model=draw(text),
        role=draw(text),
        turn=draw(small),
        trains=draw(st.booleans()),
        origin=draw(st.sampled_from(Origin)),
        stop=draw(st.sampled_from(Stop)),
        temperature=draw(st.floats()),
        tag=draw(text),
        text=draw(text),
        char_ends=draw(st.sampled_from([np.zeros(0, np.int32), array(np.int32)])),
        columns={
            name: Column(array(np.float32, *tail), draw(text), draw(small), draw(text))
            for name, tail in draw(
                st.dictionaries(text, st.sampled_from([(), (3,), (0,), (2, 5)]), max_size=2)
            ).items()
        },
        payloads=draw(
            st.dictionaries(
                text,
                hnp.arrays(hnp.scalar_dtypes(), hnp.array_shapes(min_dims=0, min_side=0)),
                max_size=2,
            )
        ),
    )


episodes = st.builds(
    Episode,
    episode_id=text,
    segments=st.lists(small, max_size=3).map(tuple),
    seed=st.integers(0, 2**64 - 1),
    round=small,
    ask=small,
    member=small,
    tag=text,
    stop=st.sampled_from(Stop),
    fault=st.sampled_from(Fault),
    note=text,
    start=st.none() | st.builds(Node, small, small, small),
    env_states=st.dictionaries(small, st.binary(max_size=9), max_size=2),
)
rewards = st.builds(
    RewardRow,
    scope=st.sampled_from(Scope),
    target=small,
    name=text,
    value=st.none() | st.floats(),
    weight=st.floats(),
    verdict=st.sampled_from(Verdict),
    token=small,
    verifier=text,
    version=text,
    seconds=st.floats(),
    note=text,
    answer=text,
)
groups = st.builds(
    Group,
    key=st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 3),
    task=tasks,
    segments=st.lists(segments(), max_size=3).map(tuple),
    episodes=st.lists(episodes, max_size=2).map(tuple),
    rewards=st.lists(rewards, max_size=3).map(tuple),
    round=small,
    finished=st.booleans(),
    refused=st.booleans(),
    template_hash=text,
    tokenizer_hash=text,
)


@settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(st.lists(groups, max_size=3))
def test_a_round_trip_loses_nothing(tmp_path, stored):
    write_groups(tmp_path / "g.parquet", stored)
    assert difference(read_groups(tmp_path / "g.parquet"), stored) == ""


def small_group(**changes) -> Group:
    segment = Segment(
        ids=np.array([5, 6, 7], np.int32),
        action_mask=np.array([False, True, True]),
        rollout_logprobs=np.array([np.nan, -0.5, -0.25], np.float32),
        version=np.array([-1, 4, 4], np.int32),
        columns={"old": Column(np.array([np.nan, -1, -2], np.float32), "policy", 4, "v")},
        payloads={"pixels": np.arange(6, dtype=">u2").reshape(2, 3)},
    )
    group = Group(
        key=(0, 12, 3),
        task=Task(id="t", prompt=(Message("user", "2+3?"),), gold="5", columns={"level": 2}),
        segments=(segment, segment),
        episodes=(Episode(episode_id="e", segments=(0, 1)),),
        rewards=(RewardRow(Scope.EPISODE, 0, "math", 1.0), RewardRow(Scope.EPISODE, 0, "x", None)),
    )
    return replace(group, **changes)


def test_more_groups_than_a_row_group_come_back_in_order(tmp_path):
    stored = [small_group(key=(0, 1, i)) for i in range(131)]
    write_groups(tmp_path / "g.parquet", stored)
    assert groups_equal(read_groups(tmp_path / "g.parquet"), stored)


def test_arrays_read_back_are_independent_and_writeable(tmp_path):
    write_groups(tmp_path / "g.parquet", [small_group()])
    first, second = read_groups(tmp_path / "g.parquet")[0].segments
    first.ids[0] = 99
    assert second.ids[0] == 5


def test_a_reader_without_posttrain_finds_plain_columns(tmp_path):
    write_groups(tmp_path / "g.parquet", [small_group()])
    table = pq.read_table(tmp_path / "g.parquet")
    row = table.to_pylist()[0]
    assert row["group_id"] == "0-12-3"
    assert row["task"]["messages"][0]["content"] == "2+3?"
    assert row["task"]["gold"] == '"5"'
    assert row["task"]["columns"] == '{"level": 2}'
    assert row["segments"][0]["ids"] == [5, 6, 7]
    assert row["segments"][0]["columns"][0]["name"] == "old"
    assert [r["value"] for r in row["rewards"]] == [1.0, None]
    assert table.schema.metadata[b"posttrain.groups"] == b"1"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"task": Task(id="t", prompt="", columns={"bad": {1, 2}})},
            "columns['bad'] is of type set",
        ),
        ({"task": Task(id="t", prompt="", gold=object())}, "gold of task 't' is of type object"),
        ({"template_hash": "\ud800"}, "valid Unicode"),
        ({"round": 2**40}, "0-12-3"),
    ],
)
def test_what_cannot_be_stored_is_refused_and_the_old_file_stays(tmp_path, changes, words):
    path = tmp_path / "g.parquet"
    write_groups(path, [small_group()])
    with pytest.raises(DataError) as caught:
        write_groups(path, [small_group(**changes)])
    assert words in str(caught.value)
    assert groups_equal(read_groups(path), [small_group()])
    assert [p.name for p in tmp_path.iterdir()] == ["g.parquet"]


@pytest.mark.parametrize(
    ("field", "array", "words"),
    [
        ("ids", np.array([5, 6, 7]), "segment 0: ids must be a flat array of int32, got int64"),
        ("payloads", {"p": np.array([None])}, "payload 'p' is an array of dtype object"),
        ("columns", {"c": Column(np.zeros(3))}, "column 'c' must be an array of float32"),
    ],
)
def test_arrays_of_another_dtype_are_refused_by_name(tmp_path, field, array, words):
    segment = replace(small_group().segments[0], **{field: array})
    with pytest.raises(DataError) as caught:
        write_groups(tmp_path / "g.parquet", [small_group(segments=(segment,))])
    assert words in str(caught.value)


@pytest.mark.parametrize("keep", [0, 3, 100, 2000, -1])
def test_a_file_cut_short_raises(tmp_path, keep):
    path = tmp_path / "g.parquet"
    write_groups(path, [small_group()])
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(DataError, match="damaged"):
        read_groups(path)


@pytest.mark.parametrize("place", [0.1, 0.3, 0.5, 0.7])
def test_a_flipped_bit_raises(tmp_path, place):
    path = tmp_path / "g.parquet"
    write_groups(path, [small_group(key=(0, 1, i)) for i in range(3)])
    raw = bytearray(path.read_bytes())
    footer_bytes = int.from_bytes(raw[-8:-4], "little")
    raw[int(place * (len(raw) - footer_bytes))] ^= 4
    path.write_bytes(raw)
    with pytest.raises(DataError, match="damaged"):
        read_groups(path)


def test_missing_foreign_and_newer_files_raise(tmp_path):
    path = tmp_path / "g.parquet"
    with pytest.raises(DataError, match="no file"):
        read_groups(path)
    write_groups(path, [small_group()])
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({}), path)
    with pytest.raises(DataError, match="holds no groups"):
        read_groups(path)
    pq.write_table(table.replace_schema_metadata({"posttrain.groups": "7"}), path)
    with pytest.raises(DataError, match="schema 7"):
        read_groups(path)


@pytest.mark.parametrize(
    "changed",
    [
        small_group(key=(0, 12, 4)),
        small_group(rewards=small_group().rewards[:1]),
        small_group(task=replace(small_group().task, columns={"level": True})),
        small_group(
            segments=(
                replace(small_group().segments[0], payloads={"pixels": np.zeros((2, 3), ">u2")}),
                small_group().segments[1],
            )
        ),
    ],
)
def test_groups_equal_sees_a_difference(changed):
    assert groups_equal(small_group(), small_group())
    assert not groups_equal(small_group(), changed)
