"""``evaluate``, ``rollout`` and ``rescore``: each stage of the loop alone."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posttrain.api.build import build
from posttrain.api.check import check_templates
from posttrain.data.store import read_groups, write_groups
from posttrain.errors import DataError
from posttrain.rollout.grading import grade
from posttrain.trainers.checkpoint import empty_state
from posttrain.trainers.evaluate import Scores, evaluation_groups, scores_of
from posttrain.types.engine import Engine
from posttrain.types.episode import Group
from posttrain.types.events import Emit
from posttrain.types.method import Verifier
from posttrain.types.run import Evaluation, Limits, Run


def rollout(
    run: Run,
    plan: Evaluation,
    *,
    engine: Engine | None = None,
    emit: Emit = lambda _: None,
    path: Path | None = None,
) -> list[Group]:
    """Sample and grade episodes of a run's model, without training.

    Args:
        run: Says model, seats, engine, decoding, limits and seed; its phases are not used.
        plan: Which tasks, and how many samples of each.
        engine: An engine to use instead of the run's.
        emit: Takes progress.
        path: A Parquet file to write the groups to.
    """
    machinery, loaded = build(run, emit=emit, engine=engine)
    try:
        groups = evaluation_groups(machinery.runner, plan, decode=run.decode, state=empty_state())
    finally:
        machinery.engine.close()
    check_templates(run, loaded, [g.task for g in groups[:1]])
    if path is not None:
        write_groups(path, groups)
    return groups


def evaluate(
    run: Run,
    plan: Evaluation,
    *,
    engine: Engine | None = None,
    emit: Emit = lambda _: None,
    ks: Sequence[int] | None = None,
) -> Scores:
    """Accuracy, pass@k and maj@k of a run's model, with intervals over problems.

    Raises:
        DataError: nothing could be scored.
    """
    groups = rollout(run, plan, engine=engine, emit=emit)
    return scores_of(groups, threshold=plan.threshold, ks=ks)


@dataclass(frozen=True, slots=True)
class Rescored:
    """Stored groups under another verifier, and what that changes."""

    groups: list[Group]
    before: Scores
    after: Scores
    changed: tuple[tuple[str, int, float | None, float | None], ...]
    """(group id, episode, total before, total after) where the total differs."""


def rescore(
    groups: Sequence[Group] | str | Path,
    verifiers: Mapping[str, Verifier],
    *,
    threshold: float = 0.5,
    limits: Limits | None = None,
) -> Rescored:
    """Grade stored episodes again; rewards of other names (an environment's) stay.

    Raises:
        DataError: there are no groups, or nothing could be scored.
    """
    stored = read_groups(groups) if isinstance(groups, str | Path) else list(groups)
    if not stored:
        raise DataError(f"no stored groups in {groups!s}: there is nothing to grade again.")
    kept = [replace(g, rewards=tuple(r for r in g.rewards if not r.verifier)) for g in stored]
    anew = grade(kept, {}, verifier_s=(limits or Limits()).verifier_s, always=verifiers)
    changed = tuple(
        (old.group_id, e, old.total(e), new.total(e))
        for old, new in zip(stored, anew, strict=True)
        for e in range(len(old.episodes))
        if old.total(e) != new.total(e)
    )
    before = scores_of(stored, threshold=threshold)
    return Rescored(anew, before, scores_of(anew, threshold=threshold), changed)
