"""Hints on failure: where the bare prompt fails, sample under a hint and train the bare prompt.

The whole method is the plan and the view below. The segments that were drawn under the hint are
scored without it, so what drew them is another distribution than what is trained: the policy term
refuses to be built without a behaviour correction.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

from posttrain.errors import ConfigError
from posttrain.parts.correction import TruncatedWeight
from posttrain.parts.terms import PolicyGradient
from posttrain.rollout.runner import Job, Runner
from posttrain.rollout.scripted import ScriptedEngine
from posttrain.testing.byte_chat import END, VOCABULARY, ByteChat
from posttrain.trainers.batch import build_rows
from posttrain.trainers.stages import credit_stage, probe_stage
from posttrain.types.ask import Ask, Decode
from posttrain.types.episode import Group, Piece, RewardRow, Said, Scope, Span
from posttrain.types.message import Message, Task
from posttrain.types.method import Credit, Plan, Source, Verifier
from posttrain.types.models import Seat
from posttrain.types.probe import Probe, View
from posttrain.types.run import Limits


@dataclass(frozen=True)
class HintsOnFailure(Plan):
    """``n`` under the bare prompt; if none is right, ``n`` more under the task's hint."""

    n: int = 3
    reads: ClassVar[frozenset[str]] = frozenset({"*"})

    def __call__(self, task, group, state):
        if group.round == 0:
            return (Ask(n=self.n),)
        if group.round == 1 and not (group.totals() > 0).any():
            hint = Said("system", str(task.columns["hint"]))
            return (Ask(n=self.n, context=(hint, Said("user", group.text(0))), tag="hint"),)
        return ()


@dataclass(frozen=True)
class WithoutHint(View):
    """The bare prompt for segments that were drawn under a hint."""

    def __call__(self, task: Task, group: Group, segment: int) -> tuple[Piece, ...] | None:
        own = group.segments[segment]
        return (Span(0, group.segments[0].num_tokens),) if own.tag == "hint" else own.context


class IsY(Verifier):
    """1 for the answer y."""

    def grade(self, task, group, episodes):
        return [
            RewardRow(Scope.EPISODE, e, "is_y", float(group.episode_text(e) == "y"))
            for e in episodes
        ]


@dataclass(frozen=True)
class Minus(Credit):
    """The reward, less the group's mean over the episodes that trained together."""

    def __call__(self, groups, state):
        columns = []
        for group in groups:
            totals = group.totals()
            by_segment = {e.segments[-1]: t for e, t in zip(group.episodes, totals, strict=True)}
            for s, segment in enumerate(group.segments):
                value = by_segment.get(s, np.nan) - totals.mean()
                columns.append(np.full(segment.num_tokens, value, np.float32))
        return {"advantages": columns}


class Puzzles(Source):
    """One task that the bare policy solves, and one that it never solves."""

    @property
    def verifiers(self) -> Mapping[str, Verifier]:
        return {"is_y": IsY()}

    def draw(self, state, n, rng) -> Sequence[Task]:
        return [
            Task(id=name, prompt=(Message("user", name),), columns={"hint": "say y"})
            for name in ("easy", "hard")
        ][:n]


P_HINTED, P_BARE = 0.75, 0.001


def policy(ids: tuple[int, ...]) -> np.ndarray:
    """Says y with a probability that depends on task and hint, else n; then ends."""
    probs = np.zeros(VOCABULARY)
    if ids[-1] in (ord("y"), ord("n")):
        probs[END] = 1.0
        return probs
    text = bytes(i for i in ids if i < END)
    right = P_HINTED if b"say y" in text else 1.0 if b"easy" in text else P_BARE
    probs[ord("y")], probs[ord("n")] = right, 1 - right
    return probs


@dataclass
class Scorer:
    """The part of a learner that probes use."""

    engine: ScriptedEngine

    def score(self, items):
        return self.engine.score(items)

    def version(self, model):
        return 0


@pytest.fixture(scope="module")
def sampled() -> tuple[Runner, ScriptedEngine, list[Group]]:
    engine = ScriptedEngine(next_token=policy)
    runner = Runner(
        engine=engine, renderers={"policy": ByteChat()}, seats={"policy": Seat()},
        decode=Decode(max_tokens=4), limits=Limits(), seed=3, exact=True,
    )  # fmt: skip
    job = Job(phase=0, step=0, num_groups=2, source=Puzzles(), plan=HintsOnFailure(), state={})
    return runner, engine, runner.rollout(job)


def test_only_the_failed_group_gets_a_hint(sampled):
    easy, hard = sampled[2]
    assert [e.tag for e in easy.episodes] == [""] * 3
    assert [e.tag for e in hard.episodes] == [""] * 3 + ["hint"] * 3
    assert list(hard.totals()[:3]) == [0.0] * 3
    assert hard.totals()[3:].sum() >= 1
    hinted = hard.segments[hard.episodes[3].segments[-1]]
    assert hard.text(hinted.context[0].segment) == "say yhard"


def test_the_term_and_its_old_log_probs_are_told_the_bare_context(sampled):
    runner, engine, (_, hard) = sampled
    probe = Probe("old_logprobs", view=WithoutHint())
    (hard,) = probe_stage([hard], [probe], Scorer(engine), render=runner.seating.render)
    (hard,) = credit_stage([hard], Minus(), {})
    term = PolicyGradient(under=WithoutHint(), correction=TruncatedWeight())
    rows = build_rows([hard], (term,), model="policy", render=runner.seating.render)
    assert len(rows) == 6
    for row in rows:
        bare = hard.segments[0].ids
        np.testing.assert_array_equal(row.ids[: len(bare)], bare)
        assert len(row.ids) == len(bare) + 2
    winner = next(e for e in range(3, 6) if hard.total(e) == 1.0)
    said = hard.segments[hard.episodes[winner].segments[-1]]
    old = said.columns["old_logprobs"].values
    np.testing.assert_allclose(said.rollout_logprobs, np.log([P_HINTED, 1.0]), atol=1e-6)
    np.testing.assert_allclose(old, np.log([P_BARE, 1.0]), atol=1e-5)
    # what a correction sees: the token was 750 times likelier where it was drawn
    assert np.exp(said.rollout_logprobs - old)[0] == pytest.approx(750, rel=1e-3)


def test_without_a_correction_the_term_is_refused():
    with pytest.raises(ConfigError, match="WithoutHint"):
        PolicyGradient(under=WithoutHint())
