"""Mathematical answers: the shared cases, and a table of pairs."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

from posttrain.errors import ConfigError, VerifierError
from posttrain.rewards.extract import Accept
from posttrain.rewards.isolation import Outcome, Workers, shared_workers
from posttrain.rewards.math import VERSION, MathAnswer
from posttrain.rewards.numbers import parse_number
from posttrain.types.episode import Episode, Group, Origin, Segment, Verdict
from posttrain.types.message import Task

CASES = [
    case
    for line in (Path(__file__).parents[1] / "cases" / "cases.jsonl").read_text().splitlines()
    if (case := json.loads(line))["kind"] == "math_verifier" and "gold" in case["input"]
]
KNOWN = {"gold", "response", "answer_type", "choices", "extraction", "assume", "run_in"}


def verifier_for(given: dict[str, object]) -> MathAnswer:
    assert set(given) <= KNOWN, f"not yet: {set(given) - KNOWN}"
    accept = Accept.STATEMENT if "extraction" in given else Accept.MARKED
    choices = tuple(given.get("choices", "ABCD"))
    return MathAnswer(kind=given.get("answer_type", "auto"), choices=choices, accept=accept)


def verdict(verifier: MathAnswer, gold: str, response: str) -> bool | str | None:
    try:
        return verifier.judge(gold, response).correct
    except VerifierError:
        return "unscorable"


@pytest.fixture(scope="module", autouse=True)
def _warm():
    shared_workers().call("operator:neg", 1, deadline_s=60)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_case(case):
    given, expected = case["input"], case["expected"]
    verifier = verifier_for(given)
    wanted = expected.get("correct", expected.get("status"))
    found: list[object] = []
    thread = threading.Thread(
        target=lambda: found.append(verdict(verifier, given["gold"], given["response"]))
    )
    thread.start()
    thread.join(expected.get("max_seconds", 10))
    assert found == [wanted]
    if expected.get("symmetric"):
        swapped = verifier.extract(given["response"]), f"\\boxed{{{given['gold']}}}"
        assert verdict(verifier, *swapped) == wanted
    if "run_in" in given:
        assert verdict(verifier, given["gold"], given["response"]) == wanted


EQUAL = [
    ("1/3", r"\frac{2}{6}"),
    ("1/3", "0.3333333333333"),
    ("10%", "0.1"),
    ("9" * 5000, "0" + "9" * 5000),
    ("2^{100}", str(2**100)),
    ("10^{50}", "1" + "0" * 50),
    (r"\pi", "3.141593"),
    ("1<x<2", "(1,2)"),
    (r"[1,\infty)", r"x\ge 1"),
    (r"(-\infty,\frac{\sqrt{2}}{2}]", r"x\leq\frac{1}{\sqrt{2}}"),
    (r"(-\infty,\infty)", r"\mathbb{R}"),
    ("101", "a+2z=2z+a=101"),
    (r"\sqrt{x^2}", "|x|"),
    (r"\frac{\sqrt{3}}{2}", r"\sin 60^\circ"),
    (r"\log_2 8", "3"),
    (r"2 \pm \sqrt{3}", r"2-\sqrt{3}, 2+\sqrt{3}"),
    ("1, 2", r"x=1\text{ or }x=2"),
    (r"(-\infty,-1)\cup(1,\infty)", "x<-1 or x>1"),
    ("x+y<3", "-x-y>-3"),
    ("y=2x+1", "2x+1"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{bmatrix}1\\2\end{bmatrix}"),
    (r"\binom{10}{3}", "5!"),
    ("x^2+2x+1", "(x+1)**2"),
    ("i^2", "-1"),
    ("yes", "Yes"),
    ("50", "50 dollars"),
]
DIFFERENT = [
    ("1/3", "0.333333"),
    ("0.0000001", "0.0000004"),
    ("10", "10%"),
    ("9" * 5000, "9" * 4999 + "8"),
    ("10^{50}+1", "1" + "0" * 50),
    ("2^{100}", str(2**100 + 1)),
    ("1000000", "1000000.4"),
    (r"\pi", "3.14"),
    (r"\pi", r"\frac{22}{7}"),
    ("(1,2)", "[1,2]"),
    ("(1,2)", "1,2"),
    (r"\{1,2\}", "(1,2)"),
    ("12", "12 or 13"),
    ("5", "2x+y=5"),
    ("x=3", "y=3"),
    ("x", "|x|"),
    ("x+y<3", "x+y>3"),
    (r"-\infty", r"\infty"),
    ("5 apples", "5 oranges"),
    ("3 million", "3"),
    ("golden eagle", "eagle"),
    ("10", "(10^{9})!"),
    ("2", "2 and a bit"),
]


@pytest.mark.parametrize(
    ("gold", "answer", "same"),
    [(g, a, True) for g, a in EQUAL] + [(g, a, False) for g, a in DIFFERENT],
    ids=lambda value: str(value)[:30],
)
def test_pairs(gold, answer, same):
    verifier = MathAnswer()
    assert verifier.judge(gold, f"\\boxed{{{answer}}}").correct is same
    if gold != "3 million" and "!" not in answer:
        assert verifier.judge(answer, f"\\boxed{{{gold}}}").correct is same


@pytest.mark.parametrize(
    ("a", "b"), [("007", "7"), ("1/2", "0.5"), ("$5.00", "5 dollars"), ("2e3", "2,000")]
)
def test_equal_numbers_share_a_canonical_form(a, b):
    assert parse_number(a).canonical == parse_number(b).canonical


def group_of(*responses: str) -> Group:
    segments = tuple(
        Segment(
            ids=np.zeros(1, np.int32),
            action_mask=np.ones(1, bool),
            rollout_logprobs=np.zeros(1, np.float32),
            version=np.zeros(1, np.int32),
            origin=Origin.SAMPLED,
            text=text,
        )
        for text in responses
    )
    episodes = tuple(Episode(episode_id=str(i), segments=(i,)) for i in range(len(responses)))
    task = Task(id="t", prompt="p", gold=r"\sqrt{8}")
    return Group(key=(0, 0, 0), task=task, segments=segments, episodes=episodes)


def test_rows_say_what_was_extracted_and_how_it_was_compared():
    group = group_of(r"\boxed{2\sqrt2}", r"\boxed{3}", "nothing", r"\boxed{2 \sqrt{2}}")
    rows = MathAnswer(weight=0.5).grade(group.task, group, (3, 0, 1, 2))
    assert [(r.target, r.value) for r in rows] == [(3, 1.0), (0, 1.0), (1, 0.0), (2, 0.0)]
    assert [r.answer for r in rows] == [r"2\sqrt{2}", r"2\sqrt{2}", "3", ""]
    assert rows[3].verdict is Verdict.NO_ANSWER
    assert {r.weight for r in rows} == {0.5}
    assert rows[0].note == "compared as atom"
    assert MathAnswer().judge("1", r"\boxed{1}").version == VERSION == MathAnswer.version


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ("timeout", Verdict.TIMEOUT),
        ("crashed", Verdict.UNSCORABLE),
        ("raised", Verdict.UNSCORABLE),
    ],
)
def test_what_could_not_be_graded_has_no_value(monkeypatch, status, expected):
    monkeypatch.setattr(Workers, "call", lambda *_, **__: Outcome(status, note="why"))
    found = MathAnswer().judge("x", r"\boxed{x+1}")
    assert (found.verdict, found.correct, found.value) == (expected, None, None)
    assert found.how == f"{status}: why"


def test_gold_answers_that_cannot_be_read_raise():
    with pytest.raises(VerifierError, match="empty"):
        MathAnswer().judge(" ", r"\boxed{1}")
    with pytest.raises(VerifierError, match="no number or expression"):
        MathAnswer(kind="numeric").judge("see the diagram", "no answer at all")
    with pytest.raises(VerifierError, match="no expression"):
        MathAnswer().judge(r"\frac{1}{", r"\boxed{1+x}")


def test_a_deadline_must_be_positive():
    with pytest.raises(ConfigError, match="deadline_s must be > 0"):
        MathAnswer(deadline_s=0)
