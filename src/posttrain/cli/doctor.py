"""``posttrain doctor``: what would go wrong in a run, before it is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
import tyro

if TYPE_CHECKING:
    from posttrain.api.build import Loaded
    from posttrain.trainers.loop import Machinery
    from posttrain.types.episode import Group
    from posttrain.types.run import Run

PARITY = 0.05
"""Nats of mean difference between sampler and trainer that are worth a warning."""


@dataclass(frozen=True, kw_only=True)
class Doctor:
    """Check a run before it is started: templates, end tokens, what trains, rewards, parity."""

    takes_overrides: ClassVar[bool] = True

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")]
    """A built-in name, module:function, a Python file, or a saved run.yaml."""
    tasks: int = 4
    """Tasks to sample and grade."""
    samples: int = 4
    """Samples of each."""

    def run(self, overrides: Sequence[str]) -> None:
        """Check one thing after the other; the first that cannot work is an error."""
        from posttrain.cli import show
        from posttrain.recipes.load import load_recipe

        run, _ = load_recipe(self.recipe, overrides)
        with show.following() as emit:
            machinery, loaded = _built(run, emit)
        try:
            _memory(run, machinery)
            _templates(run, loaded)
            groups = _sampled(run, machinery, tasks=self.tasks, samples=self.samples)
            _trained(groups, loaded)
            _rewards(groups)
            _parity(groups, machinery)
        finally:
            machinery.engine.close()


def dry_run(run: Run) -> None:
    """Load and check everything a run needs, print the run and its memory."""
    import yaml

    from posttrain.cli import show
    from posttrain.types.describe import describe, tree_hash

    with show.following() as emit:
        machinery, _ = _built(run, emit)
    machinery.engine.close()
    print(yaml.safe_dump(describe(run), sort_keys=False), end="")
    show.say(f"hash {tree_hash(run)}")
    _memory(run, machinery)


def _built(run: Run, emit: object) -> tuple[Machinery, Loaded]:
    from posttrain.api.build import build
    from posttrain.api.check import check_run
    from posttrain.types.events import Warned

    def passed(event: object) -> None:
        if isinstance(event, Warned) and callable(emit):
            emit(event)

    machinery, loaded = build(run, emit=passed)
    check_run(run, machinery, loaded)
    return machinery, loaded


def _memory(run: Run, machinery: Machinery) -> None:
    """Weights, gradients and optimiser; activations depend on the batch and come on top."""
    from posttrain.cli import show

    rows, total = [], 0
    speaking = {seat.model for seat in run.seats.values()}
    for name, held in machinery.learner.models.items():
        weights = list(held.module.parameters())
        number = sum(p.numel() for p in weights)
        module = sum(p.numel() * p.element_size() for p in weights)
        master = sum(p.numel() * p.element_size() for p in held.master.values())
        # a gradient and AdamW's two averages, as wide as the master weights
        cells = (module + master, 3 * master, module if name in speaking else 0)
        total += sum(cells)
        rows.append((name, f"{number:,}", *(f"{b / 2**20:,.1f}" for b in cells)))
    show.table(
        ("model", "weights", "MiB held", "MiB to learn", "MiB to sample"),
        rows,
        numbers=(1, 2, 3, 4),
        title=f"memory, roughly {total / 2**20:,.1f} MiB before activations and caches",
    )


def _templates(run: Run, loaded: Loaded) -> None:
    from posttrain.api.check import first_tasks
    from posttrain.cli import show

    chat = any(not isinstance(t.prompt, str) for p in run.phases for t in first_tasks(p, seed=0))
    for seat in run.seats:
        renderer = loaded.renderers[seat]
        report = renderer.check(run.decode, chat=chat)
        ends = ", ".join(f"{i} {renderer.tokenizer.convert_ids_to_tokens(i)!r}"
                         for i in report.end_ids)  # fmt: skip
        show.say(f"seat {seat}: a turn ends with token {ends}")
        show.say(f"  trained tokens in brackets: {report.shown}")
        for note in report.notes:
            show.say(f"  note: {note}")


def _sampled(run: Run, machinery: Machinery, *, tasks: int, samples: int) -> list[Group]:
    """A few groups of the first phase that samples, graded."""
    from posttrain.parts.plans import FixedGroup
    from posttrain.rollout.runner import Job
    from posttrain.trainers.checkpoint import empty_state

    phase = next((p for p in run.phases if p.method.credit is not None), run.phases[-1])
    given = phase.method.credit is None
    job = Job(
        phase=run.phases.index(phase),
        step=0,
        num_groups=tasks,
        source=phase.source,
        plan=phase.method.plan if given else FixedGroup(size=samples),
        verifiers=phase.method.verifiers,
        state=empty_state(),
    )
    groups = machinery.runner.rollout(job)
    return machinery.runner.grade(groups, source=phase.source, verifiers=phase.method.verifiers)


def _trained(groups: Sequence[Group], loaded: Loaded) -> None:
    """The first episode as tokens, those that train in brackets."""
    from posttrain.cli import show

    group = next((g for g in groups if g.episodes), None)
    if group is None:
        show.say("nothing was sampled.")
        return
    segments = [group.segments[s] for s in group.episodes[0].segments]
    seat = next((s.seat for s in segments if s.trains), "")
    renderer = loaded.renderers.get(seat) or next(iter(loaded.renderers.values()))
    ids = np.concatenate([s.ids for s in segments])
    mask = np.concatenate([s.action_mask & s.trains for s in segments])
    show.say(f"first episode, {int(mask.sum())} of {len(ids)} tokens train, in brackets:")
    show.say(f"  {renderer.show(ids, mask)}")


def _rewards(groups: Sequence[Group]) -> None:
    """Values, spread and verdicts of each reward; notes of what could not be graded."""
    from posttrain.cli import show

    rows = [r for g in groups for r in g.rewards]
    if not rows:
        show.say("no rewards: this method learns from given answers.")
        return
    table = []
    for name in dict.fromkeys(r.name for r in rows):
        values = [r.value for r in rows if r.name == name and r.value is not None]
        verdicts = Counter(str(r.verdict) for r in rows if r.name == name)
        spread = f"{np.min(values):g} to {np.max(values):g}" if values else "-"
        mean = f"{np.mean(values):.3f}" if values else "-"
        seconds = sum(r.seconds for r in rows if r.name == name)
        told = ", ".join(f"{n} {verdict}" for verdict, n in verdicts.items())
        table.append((name, mean, spread, told, f"{seconds:.2f}"))
    show.table(("reward", "mean", "values", "graded", "s"), table, numbers=(1, 2, 4))
    for note in list(dict.fromkeys(r.note for r in rows if r.value is None and r.note))[:3]:
        show.say(f"  note: {note}")
    spread_groups = sum(np.nanstd(g.totals()) > 0 for g in groups if np.isfinite(g.totals()).any())
    show.say(f"{spread_groups} of {len(groups)} groups have answers of different reward, and so "
             "something to learn from.")  # fmt: skip


def _parity(groups: Sequence[Group], machinery: Machinery) -> None:
    from posttrain.cli import show
    from posttrain.parts.probes import old_logprobs
    from posttrain.trainers.metrics import mismatch
    from posttrain.trainers.stages import probe_stage

    names = {s.model for g in groups for s in g.segments if s.trains and s.drawn.any()}
    for model in sorted(names):
        scored = probe_stage(
            groups, [old_logprobs(model)], machinery.learner, render=machinery.render
        )
        found = mismatch(scored)
        if not found:
            continue
        mean, most = (found[f"sampling/sampling_logp_difference/{k}"] for k in ("mean", "max"))
        told = "WARNING: sampler and trainer disagree" if mean > PARITY else "ok"
        show.say(f"log-probs of {model}, sampler against trainer: mean difference {mean:.2g}, "
                 f"largest {most:.2g} nats: {told}")  # fmt: skip
