"""Turns recorded elsewhere: history is compared by ids, and a break opens a new context."""

from __future__ import annotations

import numpy as np
import pytest

from posttrain.data.chat import Renderer
from posttrain.data.conversations import SeenTurn, record_turns
from posttrain.errors import DataError
from posttrain.testing.toy import byte_tokenizer
from posttrain.types.episode import Group, Origin, Span
from posttrain.types.message import Task


def seen(prompt, drawn, **options) -> SeenTurn:
    return SeenTurn(prompt=prompt, drawn=drawn, logprobs=[-0.5] * len(drawn), **options)


def test_a_history_that_goes_on_is_one_context():
    found = record_turns([seen([1, 2], [7, 8]), seen([1, 2, 7, 8, 9, 5], [3], version=4)])
    assert found.breaks == 0
    ids = [s.ids.tolist() for s in found.segments]
    assert ids == [[1, 2], [7, 8], [9, 5], [3]]
    assert found.segments[3].context == (Span(0, 2), Span(1, 2), Span(2, 2))
    assert [s.trains for s in found.segments] == [False, True, False, True]
    assert found.segments[3].version.tolist() == [4]
    assert found.segments[2].origin is Origin.OBSERVED
    group = Group(key=(0, 0, 0), task=Task(id="t", prompt="x"), segments=found.segments)
    assert group.context_ids(found.segments[3].context).tolist() == [1, 2, 7, 8, 9, 5]


@pytest.mark.parametrize(
    "prompt",
    [
        [1, 2, 9, 5],  # the turn was tokenised again
        [1, 2, 7],  # shorter than what was seen
        [1, 7, 8, 2, 9, 5],  # the order changed
    ],
)
def test_a_history_that_changed_is_a_new_context_and_counted(prompt):
    found = record_turns([seen([1, 2], [7, 8]), seen(prompt, [3])])
    assert found.breaks == 1
    assert found.segments[-1].context == (Span(2, len(prompt)),)
    assert found.segments[2].ids.tolist() == prompt


def test_a_history_that_goes_on_after_a_break():
    turns = [seen([1], [2]), seen([9], [3]), seen([9, 3, 4], [5])]
    found = record_turns(turns)
    assert found.breaks == 1
    assert found.segments[-1].context == (Span(2, 1), Span(3, 1), Span(4, 1))


def test_a_turn_straight_after_another_adds_no_segment():
    found = record_turns([seen([1], [2]), seen([1, 2], [3])])
    assert [s.ids.tolist() for s in found.segments] == [[1], [2], [3]]


def test_text_is_read_off_the_ids():
    renderer = Renderer(byte_tokenizer())
    ids = renderer.chat.encode("4<|im_end|>")
    found = record_turns([seen(renderer.chat.encode("2+2"), ids)], renderer=renderer)
    assert [s.text for s in found.segments] == ["2+2", "4"]
    assert found.segments[1].char_ends.tolist() == [1, 1]
    assert np.isnan(found.segments[0].rollout_logprobs).all()


def test_a_token_without_a_log_prob_is_refused():
    with pytest.raises(DataError, match="turn 0 has 3 tokens and 2 log-probs"):
        record_turns([SeenTurn(prompt=[1], drawn=[5, 1, 6], logprobs=[-1.0, -1.0])])
