"""Plain functions as verifiers: what they are called with, and what becomes of what they give."""

from __future__ import annotations

import asyncio
import pickle
from functools import partial

import numpy as np
import pytest
import torch

from posttrain.errors import ConfigError, DataError, VerifierError
from posttrain.rewards.functions import RewardFunction, SampleFunction
from posttrain.types.describe import describe
from posttrain.types.episode import Episode, Group, Origin, Segment, Verdict
from posttrain.types.message import Message, Task, ToolCall

SEEN: dict[str, object] = {}


def piece(ids, text, *, turn=0, origin=Origin.SAMPLED, role="assistant") -> Segment:
    n = len(ids)
    return Segment(
        ids=np.array(ids, np.int32),
        action_mask=np.full(n, origin is Origin.SAMPLED),
        rollout_logprobs=np.zeros(n, np.float32),
        version=np.zeros(n, np.int32),
        text=text,
        turn=turn,
        origin=origin,
        role=role,
    )


def group_of(task: Task) -> Group:
    """Three episodes after one prompt; the last has two turns, the first of them in two pieces."""
    segments = (
        piece([1, 2], "prompt", origin=Origin.OBSERVED, role="user"),
        piece([3, 4, 5], "four"),
        piece([6], "five"),
        piece([7], "let me ", origin=Origin.FORCED),
        piece([8, 9], "look"),
        piece([10, 11], "result", origin=Origin.OBSERVED, role="tool", turn=1),
        piece([12], "nine", turn=1),
    )
    paths = ((0, 1), (0, 2), (0, 3, 4, 5, 6))
    episodes = tuple(Episode(episode_id=str(i), segments=p) for i, p in enumerate(paths))
    return Group(key=(0, 0, 0), task=task, segments=segments, episodes=episodes)


CHAT = Task(id="t", prompt=(Message("user", "2+2?"),), gold="4", columns={"level": 3})
TEXT = Task(id="t", prompt="2+2=", gold="4", columns={"level": 3})


def remember(prompts, completions, completion_ids, **kwargs):
    SEEN.update(prompts=prompts, completions=completions, completion_ids=completion_ids, **kwargs)
    return [0.0] * len(prompts)


def narrow(completions, level):
    return [float(len(c) * n) for c, n in zip(completions, level, strict=True)]


async def later(completions, **kwargs):
    await asyncio.sleep(0)
    return [len(c) for c in completions]


def too_few(completions, **kwargs):
    return [1.0, 0.0]


def mixed(completions, **kwargs):
    return [True, np.float32(0.5), None]


def tensor(completions, **kwargs):
    return torch.tensor([1.0, float("nan"), float("inf")])


def as_text(completions, **kwargs):
    return ["1.0", "0", "0"]


def one_number(completions, **kwargs):
    return 0.5


def broken(completions, **kwargs):
    raise KeyError("oops")


def wants_difficulty(completions, difficulty):
    return [0.0] * len(completions)


def grade(verifier, task=CHAT, episodes=(0, 1, 2)):
    found = verifier.grade(task, group_of(task), episodes)
    return asyncio.run(found) if asyncio.iscoroutine(found) else found


def test_a_chat_task_gives_messages():
    grade(RewardFunction(remember), episodes=(1, 2))
    assert SEEN["prompts"] == [[{"role": "user", "content": "2+2?"}]] * 2
    assert SEEN["completions"] == [
        [{"role": "assistant", "content": "five"}],
        [
            {"role": "assistant", "content": "let me look"},
            {"role": "assistant", "content": "nine"},
        ],
    ]
    assert SEEN["completion_ids"] == [[6], [8, 9, 12]]
    assert SEEN["gold"] == ["4", "4"]
    assert SEEN["level"] == [3, 3]


def test_a_text_task_gives_texts():
    grade(RewardFunction(remember), TEXT)
    assert SEEN["prompts"] == ["2+2="] * 3
    assert SEEN["completions"] == ["four", "five", "let me looknine"]


def test_tool_calls_of_a_prompt_are_kept():
    call = ToolCall("add", "{}", id="c")
    prompt = (
        Message("assistant", "", tool_calls=(call,)),
        Message("tool", "4", name="add", tool_call_id="c"),
    )
    grade(RewardFunction(remember), Task(id="t", prompt=prompt))
    said, answered = SEEN["prompts"][0]
    assert said["tool_calls"] == [
        {"type": "function", "function": {"name": "add", "arguments": "{}"}}
    ]
    assert answered == {"role": "tool", "content": "4", "name": "add", "tool_call_id": "c"}


def test_a_function_without_kwargs_gets_what_it_names():
    assert [r.value for r in grade(RewardFunction(narrow), TEXT)] == [12.0, 12.0, 45.0]


def test_rows_carry_name_weight_and_target():
    rows = grade(RewardFunction(narrow, "size", weight=0.5), TEXT, episodes=(2, 0))
    assert [(r.target, r.name, r.weight, r.value) for r in rows] == [
        (2, "size", 0.5, 45.0),
        (0, "size", 0.5, 12.0),
    ]
    assert RewardFunction(narrow).reward_name == "narrow"


def test_an_async_function_is_awaited():
    assert [r.value for r in grade(RewardFunction(later), TEXT)] == [4.0, 4.0, 15.0]


def test_bools_numpy_and_none():
    rows = grade(RewardFunction(mixed))
    assert [r.value for r in rows] == [1.0, 0.5, None]
    assert [r.verdict for r in rows] == [Verdict.GRADED, Verdict.GRADED, Verdict.NOT_APPLICABLE]


def test_nan_and_infinity_are_unscored_with_the_reason():
    rows = grade(RewardFunction(tensor))
    assert [r.value for r in rows] == [1.0, None, None]
    assert [r.verdict for r in rows[1:]] == [Verdict.UNSCORABLE] * 2
    assert [r.note for r in rows[1:]] == ["the function gave nan", "the function gave inf"]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (too_few, "gave 2 values for 3 completions"),
        (as_text, "'1.0' \\(str\\)"),
        (one_number, "0.5 \\(float\\) for 3 completions"),
        (wants_difficulty, "needs \\['difficulty'\\].*'level'"),
    ],
)
def test_what_cannot_be_a_reward_is_refused(function, words):
    with pytest.raises(DataError, match=words):
        grade(RewardFunction(function))


def test_an_exception_leaves_the_episodes_unscored():
    with pytest.raises(VerifierError, match="'broken' raised KeyError: 'oops'"):
        grade(RewardFunction(broken))


def equals(answer, gold):
    if answer == "five":
        raise ValueError("no fives")
    return answer == gold if answer != "nine" else None


def test_a_sample_function_sees_the_last_turn_and_fails_alone():
    rows = grade(SampleFunction(equals, weight=2.0), Task(id="t", prompt=(), gold="four"))
    assert [r.value for r in rows] == [1.0, None, None]
    assert [r.verdict for r in rows] == [
        Verdict.GRADED,
        Verdict.UNSCORABLE,
        Verdict.NOT_APPLICABLE,
    ]
    assert rows[1].note == "the function raised ValueError: no fives"
    assert rows[0].weight == 2.0


class Judge:
    def score(self, completions, **kwargs):
        return []


def test_functions_that_a_saved_run_could_not_name_are_refused():
    def nested(completions):
        return []

    for bad in (lambda c: c, nested, partial(later), Judge().score, Judge.score, len, "fn"):
        with pytest.raises(ConfigError, match="with def at the top of a module"):
            RewardFunction(bad)
        with pytest.raises(ConfigError, match="with def at the top of a module"):
            SampleFunction(bad)


def test_a_reward_function_is_described_and_pickled_by_name(monkeypatch):
    verifier = RewardFunction(narrow, weight=0.25)
    assert describe(verifier)["function"] == f"{__name__}:narrow"
    assert pickle.loads(pickle.dumps(verifier)) == verifier
    assert verifier.saved_by_name
    monkeypatch.setattr(narrow, "__module__", "__main__")
    assert not RewardFunction(narrow).saved_by_name
