"""Grading: rows that can be trusted, failures that are not zeros, deadlines that hold."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

from posttrain.errors import ConfigError, DataError, VerifierError
from posttrain.rollout.grading import grade
from posttrain.types.episode import (
    Episode,
    Fault,
    Group,
    Origin,
    RewardRow,
    Scope,
    Segment,
    Stop,
    Verdict,
)
from posttrain.types.message import Task
from posttrain.types.method import Verifier


@dataclass(frozen=True)
class Does(Verifier):
    """Grades with a function of the episodes."""

    rows: Callable[[Sequence[int]], Any]
    version = "3"

    def grade(self, task: Task, group: Group, episodes: Sequence[int]) -> Any:
        return self.rows(episodes)


def values(*given: Any) -> Does:
    return Does(lambda episodes: [row(e, v) for e, v in zip(episodes, given, strict=False)])


def row(target: int, value: Any, scope: Scope = Scope.EPISODE, **more: Any) -> RewardRow:
    return RewardRow(scope, target, "r", value, **more)


def group_of(num: int, *, failed: Sequence[int] = (), verifiers: Any = None) -> Group:
    segment = Segment(
        ids=np.array([5], np.int32),
        action_mask=np.array([True]),
        rollout_logprobs=np.zeros(1, np.float32),
        version=np.zeros(1, np.int32),
        origin=Origin.SAMPLED,
    )
    episodes = tuple(
        Episode(
            episode_id=f"e{e}",
            segments=(e,),
            fault=Fault.ENVIRONMENT if e in failed else Fault.NONE,
            stop=Stop.FAILED if e in failed else Stop.COMPLETED,
        )
        for e in range(num)
    )
    task = Task(id="t", prompt="p", verifiers=verifiers)
    return Group(key=(0, 0, 0), task=task, segments=(segment,) * num, episodes=episodes)


def test_rows_carry_who_graded_and_how_long():
    (graded,) = grade([group_of(2)], {"v": values(0.25, 1.0)}, verifier_s=5)
    assert [(r.target, r.value, r.verifier, r.version) for r in graded.rewards] == [
        (0, 0.25, "v", "3"),
        (1, 1.0, "v", "3"),
    ]
    assert all(0 < r.seconds < 5 for r in graded.rewards)


def test_bool_and_numpy_numbers_are_taken_and_none_is_unscored():
    given = (True, np.float32(0.5), None, np.int64(2), np.bool_(False), np.array(0.25))
    (graded,) = grade([group_of(6)], {"v": values(*given)}, verifier_s=5)
    assert [r.value for r in graded.rewards] == [1.0, 0.5, None, 2.0, 0.0, 0.25]
    assert all(type(r.value) in (float, type(None)) for r in graded.rewards)
    assert graded.rewards[2].verdict is Verdict.UNSCORABLE
    np.testing.assert_array_equal(graded.totals(), [1.0, 0.5, np.nan, 2.0, 0.0, 0.25])


@pytest.mark.parametrize("bad", ["1.0", float("nan"), float("inf"), [1.0], np.ones(2), 1j])
def test_values_that_are_no_finite_numbers_are_refused(bad):
    with pytest.raises(DataError, match="finite number"):
        grade([group_of(1)], {"v": values(bad)}, verifier_s=5)


def test_the_wrong_number_of_rows_is_refused_with_both_numbers():
    with pytest.raises(DataError, match=r"3 rows 'r' for 4 episodes"):
        grade([group_of(4)], {"v": values(1, 0, 1)}, verifier_s=5)
    with pytest.raises(DataError, match=r"0 rows for 4 episodes"):
        grade([group_of(4)], {"v": values()}, verifier_s=5)


@pytest.mark.parametrize(
    "rows",
    [
        [row(0, 1.0), row(0, 1.0)],
        [row(0, 1.0), row(2, 1.0)],
        [row(0, 1.0), row(1, 1.0), row(2, 1.0, Scope.TURN)],
        [row(0, 1.0), row(1, 1.0, verdict=Verdict.TIMEOUT)],
        [row(0, 1.0), "row"],
    ],
)
def test_rows_for_the_wrong_target_are_refused(rows):
    with pytest.raises(DataError):
        grade([group_of(2)], {"v": Does(lambda _: rows)}, verifier_s=5)


def test_what_cannot_be_graded_is_unscored_with_a_note():
    def ungradable(_):
        raise VerifierError("the gold answer is a drawing")

    def broken(_):
        raise KeyError("gold")

    (graded,) = grade([group_of(2)], {"a": Does(ungradable), "b": Does(broken)}, verifier_s=5)
    assert [r.value for r in graded.rewards] == [None] * 4
    assert {r.verdict for r in graded.rewards} == {Verdict.UNSCORABLE}
    assert graded.rewards[0].note == "the gold answer is a drawing"
    assert graded.rewards[2].note == "KeyError: 'gold'"
    assert np.isnan(graded.totals()).all()


def test_a_verifier_that_hangs_is_left_behind():
    release = threading.Event()
    began = time.perf_counter()
    (graded,) = grade(
        [group_of(2)],
        {"slow": Does(lambda _: release.wait(20)), "quick": values(1.0, 0.0)},
        verifier_s=0.1,
    )
    assert time.perf_counter() - began < 5
    release.set()
    assert [(r.verifier, r.value) for r in graded.rewards[2:]] == [("quick", 1.0), ("quick", 0.0)]
    assert {r.verdict for r in graded.rewards[:2]} == {Verdict.TIMEOUT}
    assert "'slow'" in graded.rewards[0].note


def test_async_verifiers_share_the_loop_and_the_deadline():
    @dataclass(frozen=True)
    class Waits(Verifier):
        seconds: float

        async def grade(self, task, group, episodes):
            await asyncio.sleep(self.seconds)
            return [row(e, 1.0) for e in episodes]

    began = time.perf_counter()
    graded = grade([group_of(1)] * 6, {"v": Waits(0.3)}, verifier_s=5)
    assert time.perf_counter() - began < 1.5  # in a row they would take 1.8
    assert [g.rewards[0].value for g in graded] == [1.0] * 6
    (late,) = grade([group_of(1)], {"v": Waits(9.0)}, verifier_s=0.05)
    assert late.rewards[0].verdict is Verdict.TIMEOUT


def test_failed_episodes_are_not_given_to_verifiers():
    asked = []
    (graded,) = grade(
        [group_of(3, failed=[1])],
        {"v": Does(lambda es: asked.append(list(es)) or [row(e, 1.0) for e in es])},
        verifier_s=5,
    )
    assert asked == [[0, 2]]
    np.testing.assert_array_equal(graded.totals(), [1.0, np.nan, 1.0])


def test_grading_again_adds_only_what_is_missing():
    asked = []

    def ones(episodes):
        asked.append(list(episodes))
        return [row(e, 1.0) for e in episodes]

    verifiers = {"v": Does(ones)}
    (once,) = grade([group_of(2)], verifiers, verifier_s=5)
    (twice,) = grade([once], verifiers, verifier_s=5)
    assert twice == once
    more = replace(twice, episodes=(*twice.episodes, *group_of(3).episodes[2:]),
                   segments=group_of(3).segments)  # fmt: skip
    (thrice,) = grade([more], verifiers, verifier_s=5)
    assert asked == [[0, 1], [2]]
    assert [r.target for r in thrice.rewards] == [0, 1, 2]


@pytest.mark.parametrize("scope", [Scope.TURN, Scope.STEP, Scope.GROUP])
def test_rows_of_other_scopes_are_not_asked_for_twice(scope):
    calls = []

    def once(episodes):
        calls.append(list(episodes))
        return [row(0 if scope is Scope.GROUP else e, 0.5, scope) for e in episodes[:2]]

    (graded,) = grade([group_of(2)], {"v": Does(once)}, verifier_s=5)
    grade([graded], {"v": Does(once)}, verifier_s=5)
    assert calls == [[0, 1]]


def test_a_task_names_its_verifiers_and_the_method_adds_its_own_last():
    seen = []

    @dataclass(frozen=True)
    class Reads(Verifier):
        def grade(self, task, group, episodes):
            seen.extend(r.verifier for r in group.rewards)
            return [row(e, 0.0) for e in episodes]

    source = {"v": values(1.0), "w": values(0.5)}
    (graded,) = grade(
        [group_of(1, verifiers=("w",))], source, verifier_s=5, always={"length": Reads()}
    )
    assert [r.verifier for r in graded.rewards] == ["w", "length"]
    assert seen == ["w"]
    with pytest.raises(DataError, match="'x'"):
        grade([group_of(1, verifiers=("x",))], source, verifier_s=5)
    with pytest.raises(ConfigError, match="'v'"):
        grade([group_of(1)], source, verifier_s=5, always={"v": values(1.0)})
