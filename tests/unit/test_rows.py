"""Rows of chat data sets as tasks: which column becomes what, and what is refused."""

from __future__ import annotations

import datetime

import numpy as np
import pytest

from posttrain.data.rows import RowReader, read_messages
from posttrain.errors import DataError
from posttrain.types.message import Message, Task, ToolCall


def read(row: dict, **options) -> Task:
    return RowReader(label="toy.jsonl", columns=tuple(row), **options).task(row, 3)


ASK = [{"role": "user", "content": "2+2"}]
ANSWER = {"role": "assistant", "content": "4"}


def test_a_text_prompt_with_an_answer_and_other_columns():
    task = read({"prompt": "2+2=", "answer": "4", "level": 1})
    assert (task.prompt, task.gold) == ("2+2=", "4")
    assert task.columns == {"answer": "4", "level": 1}
    assert task.verifiers is None


def test_a_text_prompt_as_a_user_message():
    assert read({"prompt": "2+2="}, chat=True).prompt == (Message("user", "2+2="),)


def test_messages_and_a_named_answer_column():
    task = read({"question": ASK, "answer": "no", "final": 4}, prompt="question", answer="final")
    assert task.prompt == (Message("user", "2+2"),)
    assert task.gold == 4
    assert task.columns == {"answer": "no", "final": 4}


def test_a_conversation_is_cut_before_its_last_reply():
    task = read({"messages": [*ASK, ANSWER, *ASK, ANSWER]})
    assert [m.role for m in task.prompt] == ["user", "assistant", "user"]
    assert task.columns == {"completion": "4"}


def test_a_conversation_without_reply_is_a_prompt():
    assert read({"messages": ASK}).prompt == (Message("user", "2+2"),)
    with pytest.raises(DataError, match=r"row 3 of toy\.jsonl has no message before"):
        read({"messages": [ANSWER]})


def test_a_demonstration_as_messages_becomes_text():
    task = read({"prompt": ASK, "completion": [ANSWER]})
    assert task.columns["completion"] == "4"


def test_a_pair_shares_its_prompt():
    wrong = {"role": "assistant", "content": "5"}
    task = read({"chosen": [*ASK, ANSWER], "rejected": [*ASK, wrong]})
    assert task.prompt == (Message("user", "2+2"),)
    assert task.columns == {"chosen": "4", "rejected": "5"}
    given = read({"prompt": "2+2=", "chosen": "4", "rejected": "5"})
    assert given.prompt == "2+2="
    assert given.columns == {"chosen": "4", "rejected": "5"}
    with pytest.raises(DataError, match="share no message"):
        read({"chosen": [ANSWER], "rejected": [wrong]})


def test_a_row_prepared_for_verl():
    row = {
        "data_source": "gsm8k",
        "prompt": ASK,
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": "4"},
        "extra_info": {"index": 7, "split": "train", "answer": "2+2 is 4"},
    }
    task = read(row)
    assert (task.prompt, task.gold) == ((Message("user", "2+2"),), "4")
    assert task.columns["data_source"] == "gsm8k"
    assert task.columns["extra_info"] == row["extra_info"]


def test_ids_are_the_rows_own_or_a_hash_of_the_problem():
    assert read({"prompt": "2+2=", "id": 17}).id == "17"
    one, same = read({"prompt": "2+2=", "answer": "4"}), read({"prompt": "2+2=", "answer": "4"})
    other = read({"prompt": "2+2=", "answer": "5"})
    assert one.id == same.id != other.id


@pytest.mark.parametrize("empty", ["", " \n", [], [{"role": "user", "content": " "}], None, 5])
def test_a_row_without_a_prompt_is_named(empty):
    with pytest.raises(DataError, match=r"row 3 of toy\.jsonl has (an empty|no) prompt"):
        read({"prompt": empty})


def test_columns_that_are_not_there_are_named_with_the_nearest():
    with pytest.raises(DataError, match=r"no column 'qestion'.*Did you mean 'question'"):
        read({"question": "2+2="}, prompt="qestion")
    with pytest.raises(DataError, match=r"prompt='question'"):
        read({"question": "2+2="})


def test_values_become_plain_data_or_are_refused_by_name():
    row = {"prompt": "x", "when": datetime.date(2024, 5, 6), "n": np.int64(3), "v": np.eye(2)}
    assert read(row).columns == {"when": "2024-05-06", "n": 3, "v": [[1.0, 0.0], [0.0, 1.0]]}
    with pytest.raises(DataError, match=r"'image' holds a bytes.*drop=\('image',\)"):
        read({"prompt": "x", "image": b"png"})
    assert read({"prompt": "x", "image": b"png"}, drop=("image",)).columns == {}


def test_messages_with_parts_and_calls():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    call = {"id": "c1", "function": {"name": "add", "arguments": {"x": 1}}}
    cell = [
        {"role": "user", "content": parts},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "1", "tool_call_id": "c1", "name": "add"},
    ]
    assert read_messages(cell, "here") == (
        Message("user", "ab"),
        Message("assistant", "", tool_calls=(ToolCall("add", '{"x": 1}', "c1"),)),
        Message("tool", "1", name="add", tool_call_id="c1"),
    )
    with pytest.raises(DataError, match="something else than text"):
        read_messages([{"role": "user", "content": [{"type": "image"}]}], "here")
    with pytest.raises(DataError, match="a message must be"):
        read_messages(["hello"], "here")
