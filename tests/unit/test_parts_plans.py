from dataclasses import replace

import numpy as np
import pytest
from group_fixture import TASK, group

from posttrain.errors import ConfigError, DataError
from posttrain.parts.keeps import RewardsDiffer
from posttrain.parts.plans import Demonstrations, FixedGroup, GivenRows
from posttrain.parts.probes import entropy, old_logprobs, ref_logprobs, teacher_logprobs
from posttrain.parts.views import BarePrompt, WithColumn
from posttrain.types.ask import Decode
from posttrain.types.episode import Group, RewardRow, Said, Scope
from posttrain.types.message import Message, Task, ToolCall
from posttrain.types.probe import Entropy

EMPTY = Group(key=(0, 0, 0), task=TASK)
TALK = (
    Message("system", "Be brief."),
    Message("user", "2+3"),
    Message("assistant", "5"),
    Message("user", "twice that"),
    Message("assistant", "10"),
)


def test_a_fixed_group_asks_once():
    plan = FixedGroup(size=5, decode=Decode(temperature=0.7), tag="x")
    (ask,) = plan(TASK, EMPTY, {})
    assert (ask.n, ask.tag, ask.seat, ask.given) == (5, "x", "policy", None)
    assert ask.decode == Decode(temperature=0.7)
    assert plan.group_size == 5
    assert plan(TASK, replace(EMPTY, round=1), {}) == ()


@pytest.mark.parametrize(
    "completion",
    ["five", [{"role": "assistant", "content": "five"}], {"content": "five"}],
)
def test_a_demonstration_from_a_column(completion):
    task = replace(TASK, columns={"completion": completion})
    (ask,) = Demonstrations()(task, EMPTY, {})
    assert ask.given is not None
    assert (ask.given.text, ask.given.ends_turn, ask.context, ask.n) == ("five", True, None, 1)
    assert Demonstrations()(task, replace(EMPTY, round=1), {}) == ()


def test_demonstrations_from_the_conversation():
    task = Task(id="t", prompt=TALK)
    (last,) = Demonstrations()(task, EMPTY, {})
    assert last.given is not None
    assert last.given.text == "10"
    assert last.context == tuple(Said(m.role, m.content) for m in TALK[:4])
    first, second = Demonstrations(turns="all")(task, EMPTY, {})
    assert first.given is not None
    assert (first.given.text, first.context) == (
        "5",
        tuple(Said(m.role, m.content) for m in TALK[:2]),
    )
    assert second == last


def test_every_turn_before_a_completion_can_be_imitated_too():
    task = Task(id="t", prompt=TALK[:4], columns={"completion": "10"})
    asks = Demonstrations(turns="all")(task, EMPTY, {})
    assert [a.given.text for a in asks if a.given] == ["5", "10"]
    assert asks[1].context is None  # the task's own prompt
    assert len(Demonstrations()(task, EMPTY, {})) == 1


@pytest.mark.parametrize(
    ("task", "remedy"),
    [
        (TASK, "Demonstrations\\(column="),
        (Task(id="t", prompt="text"), "nothing to imitate"),
        (Task(id="t", prompt=TALK[:4]), "no assistant message at the end"),
        (replace(TASK, columns={"completion": 5}), "must be a text"),
        (
            replace(TASK, columns={"completion": [{"role": "user", "content": "x"}]}),
            "must be a text",
        ),
        (
            Task(
                id="t",
                prompt=(
                    Message("user", "q"),
                    Message("assistant", "", tool_calls=(ToolCall("f", "{}"),)),
                ),
            ),
            "Write the call out",
        ),
    ],
)
def test_demonstrations_that_cannot_be_given(task, remedy):
    with pytest.raises(DataError, match=remedy):
        Demonstrations()(task, EMPTY, {})


def test_given_rows_are_one_tagged_episode_a_column():
    task = replace(TASK, columns={"chosen": "5", "rejected": "6"})
    plan = GivenRows()
    asks = plan(task, EMPTY, {})
    assert [(a.tag, a.given.text) for a in asks if a.given] == [("chosen", "5"), ("rejected", "6")]
    assert plan.group_size == 2
    assert plan(task, replace(EMPTY, round=1), {}) == ()
    with pytest.raises(DataError, match=r"lacks the columns \['rejected'\]"):
        plan(replace(TASK, columns={"chosen": "5"}), EMPTY, {})
    with pytest.raises(ConfigError, match="different names"):
        GivenRows(columns=("a", "a"))


def test_a_group_needs_a_size():
    with pytest.raises(ConfigError, match=">= 1"):
        FixedGroup(size=0)


@pytest.mark.parametrize(
    ("rewards", "kept"),
    [
        ([1.0, 0.0], True),
        ([0.1, 0.1, 0.1], False),
        ([1.0], False),
        ([None, 1.0, 1.0], False),
        ([None, 1.0, 0.0], True),
        ([None, None], False),
    ],
)
def test_only_groups_that_differ_are_kept(rewards, kept):
    assert RewardsDiffer()(group(rewards), {}) is kept


def test_the_raw_outcome_is_what_counts():
    length = tuple(
        RewardRow(scope=Scope.EPISODE, target=i, name="length", value=0.1 * i) for i in range(2)
    )
    shaped = group([1.0, 1.0]).add(rewards=length)
    assert RewardsDiffer()(shaped, {}) is True
    assert RewardsDiffer(outcome="correct")(shaped, {}) is False
    assert RewardsDiffer(outcome="length")(shaped, {}) is True
    with pytest.raises(DataError, match="Did you mean 'correct'"):
        RewardsDiffer(outcome="corect")(shaped, {})
    with pytest.raises(ConfigError, match=">= 0"):
        RewardsDiffer(max_redraws=-1)


def test_probes_write_the_columns_that_terms_read():
    probes = (old_logprobs(), ref_logprobs(), teacher_logprobs(), entropy())
    assert [(p.name, p.model) for p in probes] == [
        ("old_logprobs", "policy"),
        ("ref_logprobs", "ref"),
        ("teacher_logprobs", "teacher"),
        ("entropy", "policy"),
    ]
    assert entropy().want == Entropy()
    assert teacher_logprobs(view=BarePrompt()).view == BarePrompt()


def test_views_of_the_first_turn():
    answered = group([1.0])
    assert BarePrompt()(TASK, answered, 1) == (Said("user", "2+3"),)
    task = replace(TASK, gold="5")
    shown = WithColumn(lead="Answer: ")(task, answered, 1)
    assert shown == (Said("user", "2+3"), Said("user", "Answer: 5"))
    later = replace(answered, segments=tuple(replace(s, turn=1) for s in answered.segments))
    assert BarePrompt()(TASK, later, 1) is None
    assert WithColumn()(task, later, 1) is None
    with pytest.raises(DataError, match="lacks"):
        WithColumn(column="hint")(task, answered, 1)
    with pytest.raises(DataError, match="messages"):
        BarePrompt()(Task(id="s", prompt="text"), answered, 1)


def test_plans_are_pure():
    task = replace(TASK, columns={"chosen": "5", "rejected": "6", "completion": "5"})
    for plan in (FixedGroup(), Demonstrations(), GivenRows()):
        assert plan(task, EMPTY, {}) == plan(task, EMPTY, {})
    assert np.isnan(group([None]).totals()).all()
