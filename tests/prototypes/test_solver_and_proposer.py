"""Two seats on one model: one writes a problem, the other tries it, and both are paid.

The solver is paid for right answers, the proposer for problems that are solved half of the time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pytest

from posttrain.rollout.runner import Job, Runner
from posttrain.rollout.scripted import ScriptedEngine
from posttrain.testing.byte_chat import ByteChat
from posttrain.types.ask import Ask, Decode
from posttrain.types.episode import Group, Origin, RewardRow, Said, Scope, Verdict
from posttrain.types.message import Message, Task
from posttrain.types.method import Credit, Plan, Source, Verifier
from posttrain.types.models import Seat
from posttrain.types.run import Limits


@dataclass(frozen=True)
class ProposeThenSolve(Plan):
    """A problem, then ``n`` attempts at it."""

    n: int = 4

    def __call__(self, task, group, state):
        if group.round == 0:
            return (Ask(seat="proposer"),)
        problem = Said("user", group.episode_text(0))
        return (Ask(seat="solver", context=(problem,), n=self.n),) if group.round == 1 else ()


def seat_of(group: Group, episode: int) -> str:
    return group.segments[group.episodes[episode].segments[-1]].seat


class Solved(Verifier):
    """Is the answer the sum that was proposed? Not asked of the proposer."""

    def grade(self, task, group, episodes):
        left, right = (int(n) for n in group.episode_text(0).split("+"))
        return [
            RewardRow(Scope.EPISODE, e, "solved", float(group.episode_text(e) == str(left + right)))
            if seat_of(group, e) == "solver"
            else RewardRow(Scope.EPISODE, e, "solved", None, verdict=Verdict.NOT_APPLICABLE)
            for e in episodes
        ]


class Learnable(Verifier):
    """1 for a problem that half of the attempts solve, 0 for one that all or none solve."""

    def grade(self, task, group, episodes):
        solved = [r.value for r in group.rewards if r.name == "solved" and r.value is not None]
        worth = 1 - abs(2 * float(np.mean(solved)) - 1)
        return [
            RewardRow(Scope.EPISODE, e, "learnable", worth)
            if seat_of(group, e) == "proposer"
            else RewardRow(Scope.EPISODE, e, "learnable", None, verdict=Verdict.NOT_APPLICABLE)
            for e in episodes
        ]


@dataclass(frozen=True)
class CentredBySeat(Credit):
    """The reward less the mean of the same seat over the step."""

    def __call__(self, groups, state):
        earned = [
            (seat_of(g, e), float(g.totals()[e])) for g in groups for e in range(len(g.episodes))
        ]
        mean = {s: np.mean([v for seat, v in earned if seat == s]) for s, _ in earned}
        columns = []
        for group in groups:
            last = {ep.segments[-1]: e for e, ep in enumerate(group.episodes)}
            for s, segment in enumerate(group.segments):
                spoke = s in last and segment.origin is Origin.SAMPLED
                value = group.totals()[last[s]] - mean[segment.seat] if spoke else np.nan
                columns.append(np.full(segment.num_tokens, value, np.float32))
        return {"advantages": columns}


class Themes(Source):
    """What the proposer is asked for."""

    @property
    def verifiers(self) -> Mapping[str, Verifier]:
        return {"solved": Solved(), "learnable": Learnable()}

    def draw(self, state, n, rng):
        return [Task(id=t, prompt=(Message("user", f"Write {t} sum."),))
                for t in ("an easy", "a hard")][:n]  # fmt: skip


@pytest.fixture(scope="module")
def groups() -> list[Group]:
    attempts = {"1+1": 0, "17+25": 0}

    def reply(request):
        text = bytes(i for i in request.ids if i < 256).decode()
        if text.startswith("Solve."):
            problem = text.removeprefix("Solve.")
            attempts[problem] += 1
            return "2" if problem == "1+1" else ("42", "32")[attempts[problem] % 2]
        return "1+1" if "easy" in text else "17+25"

    engine = ScriptedEngine(reply=reply, encode=lambda text: [*text.encode()])
    chat = ByteChat()
    runner = Runner(
        engine=engine, renderers={"proposer": chat, "solver": chat},
        seats={"proposer": Seat(system="Invent."), "solver": Seat(system="Solve.")},
        decode=Decode(max_tokens=12), limits=Limits(), seed=5, exact=True,
    )  # fmt: skip
    job = Job(phase=0, step=0, num_groups=2, source=Themes(), plan=ProposeThenSolve(), state={})
    return runner.rollout(job)


def test_each_seat_saw_its_own_words_and_both_are_paid(groups):
    easy, hard = groups
    assert [seat_of(easy, e) for e in range(5)] == ["proposer"] + ["solver"] * 4
    assert easy.text(0) == "Invent.Write an easy sum."
    assert easy.text(easy.episodes[1].segments[0]) == "Solve.1+1"
    assert list(easy.totals()) == [0.0, 1.0, 1.0, 1.0, 1.0]
    assert list(hard.totals()) == [1.0, 0.0, 1.0, 0.0, 1.0]
    assert all(s.model == "policy" for g in groups for s in g.segments if s.trains)


def test_the_problem_is_stored_once_for_all_attempts(groups):
    for group in groups:
        prompts = {e.segments[0] for e in group.episodes[1:]}
        assert len(prompts) == 1
        assert len(group.segments) == 1 + 1 + 1 + 4


def test_credit_compares_within_a_seat(groups):
    columns = CentredBySeat()(groups, {})["advantages"]
    heads = [float(c[0]) for c in columns]
    proposers, solvers = [heads[1], heads[8]], [*heads[3:7], *heads[10:14]]
    assert proposers == pytest.approx([-0.5, 0.5])
    assert solvers == pytest.approx([0.25] * 4 + [-0.75, 0.25, -0.75, 0.25])
    assert np.isnan([heads[0], heads[2], heads[7], heads[9]]).all()
