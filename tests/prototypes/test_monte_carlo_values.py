"""Values by continuation: restart an answer at several places and see how often it ends well.

The policy says a with probability P and b otherwise, three times, and is paid for aaa. So the value
after k letters is P ** (3 - k) if all were a, and 0 if one was b.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from posttrain.rollout.runner import Job, Runner
from posttrain.rollout.scripted import ScriptedEngine
from posttrain.testing.byte_chat import END, VOCABULARY, ByteChat
from posttrain.types.ask import Ask, Decode
from posttrain.types.episode import Group, Node, RewardRow, Scope
from posttrain.types.message import Message, Task
from posttrain.types.method import Credit, Plan, Source, Verifier
from posttrain.types.models import Seat
from posttrain.types.run import Limits

P = 0.7


@dataclass(frozen=True)
class MonteCarloValues(Plan):
    """One answer, then ``k`` continuations, not trained, from each of its places."""

    places: tuple[int, ...] = (0, 1, 2, 3)
    k: int = 150
    reads: ClassVar[frozenset[str]] = frozenset()

    def __call__(self, task, group, state):
        if group.round == 0:
            return (Ask(),)
        if group.round > 1:
            return ()
        answer = group.episodes[0].segments[-1]
        return [Ask(at=Node(0, answer, t), n=self.k, trains=False) for t in self.places]


def values(group: Group) -> dict[int, float]:
    """Mean reward of the continuations, by the place they began at."""
    totals = group.totals()
    begun: dict[int, list[float]] = {}
    for e, episode in enumerate(group.episodes):
        if episode.start is not None:
            begun.setdefault(episode.start.token, []).append(float(totals[e]))
    return {token: float(np.mean(found)) for token, found in begun.items()}


@dataclass(frozen=True)
class ValueSteps(Credit):
    """A token's advantage: the value after it less the value before it."""

    def __call__(self, groups, state):
        columns = []
        for group in groups:
            answer, value = group.episodes[0].segments[-1], values(group)
            for s, segment in enumerate(group.segments):
                steps = np.full(segment.num_tokens, np.nan, np.float32)
                if s == answer:
                    last = max(value)
                    steps[:last] = np.diff([value[t] for t in range(last + 1)])
                    steps[last:] = group.total(0) - value[last]
                columns.append(steps)
        return {"advantages": columns}


class AllA(Verifier):
    """1 for aaa."""

    def grade(self, task, group, episodes):
        return [
            RewardRow(Scope.EPISODE, e, "all_a", float(group.episode_text(e) == "aaa"))
            for e in episodes
        ]


class Once(Source):
    """The same task each time."""

    @property
    def verifiers(self) -> Mapping[str, Verifier]:
        return {"all_a": AllA()}

    def draw(self, state, n, rng):
        return [Task(id="t", prompt=(Message("user", "spell"),))] * n


def policy(ids: tuple[int, ...]) -> np.ndarray:
    """Three letters, then the end."""
    probs = np.zeros(VOCABULARY)
    said = ids[ids.index(259) + 1 :]
    if len(said) == 3:
        probs[END] = 1.0
    else:
        probs[ord("a")], probs[ord("b")] = P, 1 - P
    return probs


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    runner = Runner(
        engine=ScriptedEngine(next_token=policy), renderers={"policy": ByteChat()},
        seats={"policy": Seat()}, decode=Decode(max_tokens=6), limits=Limits(), seed=1, exact=True,
    )  # fmt: skip
    job = Job(phase=0, step=0, num_groups=4, source=Once(), plan=MonteCarloValues(), state={})
    return runner.rollout(job)


def test_the_values_are_those_of_the_policy(groups):
    spelt = [g.episode_text(0) for g in groups]
    assert len(set(spelt)) > 1
    for group, text in zip(groups, spelt, strict=True):
        for token, value in values(group).items():
            alive = set(text[:token]) <= {"a"}
            true = P ** (3 - token) if alive else 0.0
            error = np.sqrt(true * (1 - true) / 150)
            assert abs(value - true) <= 4 * error  # exact where the outcome is certain


def test_continuations_keep_the_prefix_and_are_not_trained(groups):
    for group in groups:
        answer = group.episodes[0].segments[-1]
        text = group.text(answer)
        for e, episode in enumerate(group.episodes[1:], start=1):
            start = episode.start
            assert start is not None
            assert group.episode_text(e)[: start.token] == text[: start.token]
            own = group.segments[episode.segments[-1]]
            assert not own.trains
            assert own.turn == 0
        assert group.segments[answer].trains


def test_the_advantages_add_up_to_what_the_answer_earned_beyond_its_start(groups):
    columns = ValueSteps()(groups, {})["advantages"]
    first = 0
    for group in groups:
        answer = first + group.episodes[0].segments[-1]
        total = np.nansum(columns[answer][:4])
        assert total == pytest.approx(group.total(0) - values(group)[0], abs=1e-6)
        first += len(group.segments)
