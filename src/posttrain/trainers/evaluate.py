"""Accuracy of groups, with intervals over problems; and held-out evaluation while training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from posttrain.errors import DataError
from posttrain.objectives.estimators import (
    Interval,
    bootstrap_interval,
    majority_of_k,
    pass_at_k,
    wilson_interval,
)
from posttrain.parts.plans import FixedGroup
from posttrain.rollout.runner import Job, Runner
from posttrain.trainers.checkpoint import empty_state
from posttrain.types.ask import Decode
from posttrain.types.episode import Group, Scope
from posttrain.types.method import State
from posttrain.types.run import Evaluation

EVALUATION_PHASE = 1 << 20
"""Phase in the keys of evaluation groups, apart from every phase that trains."""

RIGHT = "\0right"
"""Stands for every answer that was graded right, however it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """What a model scored on a set of problems."""

    accuracy: Interval
    """Share of samples solved, averaged over problems."""
    pass_at: Mapping[int, Interval]
    majority_at: Mapping[int, Interval]
    reward: float
    """Mean total reward of the scored samples."""
    num_problems: int
    num_samples: int
    """Samples a problem (of the problem that has fewest)."""
    unscored: int
    """Samples left out because nothing could be graded."""
    mean_length: float
    """Sampled tokens an episode."""
    truncated: float
    """Share of episodes a limit ended."""
    rewards: Mapping[str, float] = field(default_factory=dict)
    """Mean of each named reward."""

    def metrics(self) -> dict[str, float]:
        """As logged under ``eval/``."""
        found = {
            "eval/accuracy": self.accuracy.estimate,
            "eval/accuracy_low": self.accuracy.low,
            "eval/accuracy_high": self.accuracy.high,
            "eval/reward": self.reward,
            "eval/problems": float(self.num_problems),
            "eval/unscored": float(self.unscored),
            "eval/mean_length": self.mean_length,
            "eval/truncated": self.truncated,
        }
        found |= {f"eval/pass_at_{k}": v.estimate for k, v in self.pass_at.items()}
        found |= {f"eval/majority_at_{k}": v.estimate for k, v in self.majority_at.items()}
        return found


def scores_of(
    groups: Sequence[Group], *, threshold: float = 0.5, ks: Sequence[int] | None = None
) -> Scores:
    """Accuracy, pass@k and maj@k of graded groups.

    Intervals are over problems: Wilson's where each has one sample, a bootstrap of problems
    otherwise. Unscored samples are left out; problems without a scored sample are too.

    Args:
        groups: One group a problem; equal task ids are one problem.
        threshold: A sample is solved when its total reward is above this.
        ks: Values of k; None takes 1, 2, 4, ... up to the samples a problem has.

    Raises:
        DataError: nothing was scored, or a k exceeds the samples a problem has.
    """
    solved, answers, totals, lengths, cut, unscored = _collect(groups, threshold)
    if not solved:
        raise DataError(
            f"none of the samples of {len(groups)} problems could be scored, so there is no "
            "accuracy. Look at the notes of their reward rows."
        )
    samples = min(len(s) for s in solved.values())
    if ks is None:
        ks = [2**i for i in range(samples.bit_length()) if 2**i <= samples]
    if any(k < 1 or k > samples for k in ks):
        raise DataError(f"k must be in 1..{samples} (samples a problem has), got {list(ks)}.")
    one_each = all(len(s) == 1 for s in solved.values())
    accuracy = (
        wilson_interval(sum(s[0] for s in solved.values()), len(solved))
        if one_each
        else _interval([float(np.mean(s)) for s in solved.values()])
    )
    named: dict[str, list[float]] = {}
    for group in groups:
        for row in group.rewards:
            if row.scope is Scope.EPISODE and row.value is not None:
                named.setdefault(row.name, []).append(row.value)
    pass_at = {
        k: _interval([pass_at_k(len(s), sum(s), k) for s in solved.values()]) for k in ks if k > 1
    }
    return Scores(
        accuracy=accuracy,
        pass_at=({1: accuracy} if 1 in ks else {}) | pass_at,
        majority_at={
            k: _interval([majority_of_k(a, RIGHT, k) for a in answers.values()])
            for k in ks
            if k > 1
        },
        reward=float(np.mean(totals)),
        num_problems=len(solved),
        num_samples=samples,
        unscored=unscored,
        mean_length=float(np.mean(lengths)) if lengths else 0.0,
        truncated=cut / max(1, len(lengths)),
        rewards={name: float(np.mean(values)) for name, values in sorted(named.items())},
    )


def _interval(values: Sequence[float]) -> Interval:
    return bootstrap_interval(values, rng=np.random.default_rng(0), num_resamples=4000)


def _collect(groups: Sequence[Group], threshold: float) -> tuple[
    dict[str, list[bool]], dict[str, list[str | None]], list[float], list[int], int, int
]:  # fmt: skip
    solved: dict[str, list[bool]] = {}
    answers: dict[str, list[str | None]] = {}
    totals: list[float] = []
    lengths: list[int] = []
    cut = unscored = 0
    for group in groups:
        for e, episode in enumerate(group.episodes):
            lengths.append(sum(int(group.segments[s].action_mask.sum()) for s in episode.segments))
            cut += episode.stop.truncated
            total = group.total(e)
            if total is None:
                unscored += 1
                continue
            right = total > threshold
            said = next((r.answer for r in group.rewards_for(e) if r.answer), None)
            solved.setdefault(group.task.id, []).append(right)
            answers.setdefault(group.task.id, []).append(RIGHT if right else said)
            totals.append(total)
    return solved, answers, totals, lengths, cut, unscored


def evaluation_groups(
    runner: Runner, plan: Evaluation, *, decode: Decode, state: State
) -> list[Group]:
    """Sampled and graded groups of the evaluation's tasks; the same seeds every time."""
    job = Job(
        phase=EVALUATION_PHASE,
        step=0,
        num_groups=plan.num_tasks,
        source=plan.source,
        plan=FixedGroup(size=plan.samples, decode=plan.decode or decode),
        state={**state, **empty_state()},
    )
    return runner.grade(runner.rollout(job), source=plan.source)


def evaluate_run(
    runner: Runner, plan: Evaluation, *, decode: Decode, state: State
) -> dict[str, float]:
    """Metrics of one evaluation while training."""
    groups = evaluation_groups(runner, plan, decode=decode, state=state)
    return scores_of(groups, threshold=plan.threshold).metrics()
