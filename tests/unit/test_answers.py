"""Where the final answer of a response is, and exact comparison with it."""

from __future__ import annotations

import numpy as np
import pytest

from posttrain.errors import VerifierError
from posttrain.rewards.answers import ExactAnswer
from posttrain.rewards.choices import chosen_letter
from posttrain.rewards.extract import Accept, after_reasoning, final_answer
from posttrain.types.episode import Episode, Group, Origin, Segment, Verdict
from posttrain.types.message import Task

BOX, MARKED, STATEMENT = Accept


@pytest.mark.parametrize(
    ("response", "accept", "expected"),
    [
        (r"first \boxed{12}, no: \boxed{15}.", BOX, "15"),
        (r"\boxed{\frac{1}{\sqrt{2}}}", BOX, r"\frac{1}{\sqrt{2}}"),
        (r"\boxed{\{1,2\}}", BOX, r"\{1,2\}"),
        (r"\fbox{ 7 }", BOX, "7"),
        (r"so \boxed 5.", BOX, "5"),
        (r"roots \boxed{3} and \boxed{5}.", BOX, "3, 5"),
        (r"roots $\boxed{3}$, $\boxed{5}$", BOX, "3, 5"),
        (r"\boxed{3}, then \boxed{5}", BOX, "5"),
        ("\\boxed{3},\n\n\\boxed{5}", BOX, "5"),
        (r"\boxed{4} or \boxed{4}", BOX, "4"),
        (r"\boxed{12} and it is \boxed{18", STATEMENT, None),
        (r"\boxed{}", BOX, None),
        ("#### 7", BOX, None),
        ("#### 7", MARKED, "7"),
        ("#### 7\n and more text", MARKED, "7"),
        ("Answer: 8.", MARKED, "8"),
        ("**Answer:** 8", MARKED, "8"),
        ("Answer: 3\n#### 4", MARKED, "4"),
        ("<answer>a b</answer>", MARKED, "a b"),
        ("<answer>a</answer> <answer>b", STATEMENT, None),
        ("<answer></answer> 7", STATEMENT, None),
        ("My final answer is 12.", MARKED, "12"),
        ("It is 91.", MARKED, None),
        ("I had 3. So it is **91**.", STATEMENT, "91"),
        ("He spent $31,500 and earned $80,000, so $48,500.", STATEMENT, "$48,500"),
        ("It fell from 5 to -12.", STATEMENT, "-12"),
        ("no numbers here", STATEMENT, None),
        ("", STATEMENT, None),
    ],
)
def test_the_final_answer(response, accept, expected):
    found = final_answer(response, accept=accept)
    assert (found.text if found else None) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("<think>a</think>b", "b"),
        ("a</think>b", "b"),
        ("<think>a", ""),
        ("<think>a</think>b<think>c", ""),
        ("b", "b"),
    ],
)
def test_reasoning_is_left_out(response, expected):
    assert after_reasoning(response) == expected


@pytest.mark.parametrize(
    ("response", "expected"),
    [
        ("The answer is B. Note that A is a trap.", "B"),
        ("Answer: a longer wire", ""),
        ("I choose A longer one", ""),
        ("(answer: C)", "C"),
        (r"\boxed{\text{(D)}}", "D"),
        (r"\boxed{Don't know}", ""),
        ("Answer: None", ""),
        ("<think>Answer: A", ""),
    ],
)
def test_the_chosen_letter(response, expected):
    assert chosen_letter(response, "ABCD") == expected


def graded(verifier, gold, *responses):
    segments = tuple(
        Segment(
            ids=np.zeros(1, np.int32),
            action_mask=np.ones(1, bool),
            rollout_logprobs=np.zeros(1, np.float32),
            version=np.zeros(1, np.int32),
            origin=Origin.SAMPLED,
            text=r,
        )
        for r in responses
    )
    episodes = tuple(Episode(episode_id=str(i), segments=(i,)) for i in range(len(responses)))
    task = Task(id="t", prompt="p", gold=gold)
    group = Group(key=(0, 0, 0), task=task, segments=segments, episodes=episodes)
    return verifier.grade(task, group, range(len(responses)))


def test_exact_answer_after_a_mark_and_until_another():
    verifier = ExactAnswer(after="=", until=".", weight=0.5)
    rows = graded(verifier, "4", "3-5=9,9+6=4.", "3-5=4,9+6=5.", "3-5=9,9+6=4", "4.")
    assert [r.value for r in rows] == [1.0, 0.0, 0.0, 0.0]
    assert [r.answer for r in rows] == ["4", "5", "", ""]
    assert [r.verdict for r in rows] == [Verdict.GRADED] * 2 + [Verdict.NO_ANSWER] * 2
    assert {r.weight for r in rows} == {0.5}


def test_exact_answer_compares_whole_texts_without_case():
    rows = graded(ExactAnswer(), "golden eagle", "Answer: Golden  Eagle.", "Answer: eagle")
    assert [r.value for r in rows] == [1.0, 0.0]
    rows = graded(ExactAnswer(accept=None), 12, " 12\n", "12 or 13", "<think>x</think>12")
    assert [r.value for r in rows] == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("gold", [None, "", " . ", ["4"]])
def test_exact_answer_without_gold_text_is_unscorable(gold):
    with pytest.raises(VerifierError, match="gold answer"):
        graded(ExactAnswer(), gold, "4")
