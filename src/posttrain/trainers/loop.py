"""The one loop: rollout, score, credit, update, observe; schedules, checkpoints, exact resume.

It knows no method's name and no engine's. Everything random is a hash of (run seed, key, ...), so
a step repeated from a checkpoint is the same step.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import pyarrow as pa

from posttrain.data.store import write_groups
from posttrain.errors import ConfigError, EngineError
from posttrain.rollout.runner import Job, Runner
from posttrain.trainers import checkpoint
from posttrain.trainers.batch import Render
from posttrain.trainers.checkpoint import Position
from posttrain.trainers.evaluate import evaluate_run
from posttrain.trainers.inflight import Inflight
from posttrain.trainers.learner import LocalLearner
from posttrain.trainers.metrics import mismatch, rollout_metrics, sampled_tokens
from posttrain.trainers.stages import (
    UpdateSettings,
    credit_stage,
    deferred_probes,
    probe_stage,
    update_stage,
)
from posttrain.types.engine import Engine
from posttrain.types.episode import Group
from posttrain.types.events import (
    CheckpointSaved,
    Emit,
    Evaluated,
    Progress,
    RunFinished,
    RunStarted,
    StepFinished,
    Warned,
)
from posttrain.types.method import State
from posttrain.types.models import Frozen
from posttrain.types.run import Local, Phase, Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Machinery:
    """What executes a run; built in one place (``api``)."""

    learner: LocalLearner
    engine: Engine
    runner: Runner
    render: Render
    save_model: Callable[[Path], None]
    """Writes the policy in Hugging Face layout."""
    emit: Emit


@dataclass(slots=True)
class Loop:
    """A run in progress."""

    run: Run
    folder: Path
    on: Machinery
    run_hash: str
    position: Position = field(default_factory=Position)
    state: State = field(default_factory=checkpoint.empty_state)
    pending: list[list[Group]] = field(default_factory=list)
    """Batches sampled and not yet trained, in order."""
    seconds: dict[str, float] = field(default_factory=dict)

    def fit(self, *, resume: bool) -> Position:
        """Train until the last phase ends; returns where it ended."""
        resumed = self._resume() if resume else None
        total = sum(p.until.steps for p in self.run.phases)
        self.on.emit(
            RunStarted(
                folder=str(self.folder),
                total_steps=total,
                resumed_from=resumed,
                description={"phases": [p.name or p.method.name for p in self.run.phases]},
            )
        )
        fresh = resumed is None
        while self.position.phase < len(self.run.phases):
            self._phase(begins=fresh)
            fresh = True
        self._save()
        self.on.emit(RunFinished(step=self.position.step, reason="all phases ended"))
        return self.position

    def _phase(self, *, begins: bool) -> None:
        phase = self.run.phases[self.position.phase]
        if begins:
            self._begin(phase)
        self._deliver()
        while not phase.until(self.position.phase_step, self.position.latest):
            self._step(phase)
        self._evaluate(phase, due=True)
        self.position = replace(
            self.position,
            phase=self.position.phase + 1,
            phase_step=0,
            sampled_steps=0,
            ended=self.position.latest,
            latest={},
        )
        self.pending.clear()

    def _begin(self, phase: Phase) -> None:
        """Fresh draws, fresh copies of the policy for frozen models, a fresh optimiser if asked."""
        self.state = {**self.state, **checkpoint.empty_state()}
        for name, spec in self.run.models.items():
            if isinstance(spec, Frozen) and spec.path is None:
                self.on.learner.copy_weights(spec.of, name)
        if phase.optimiser is not None:
            for model in phase.method.terms:
                self.on.learner.set_optimiser(model, phase.optimiser)

    # --- one step -----------------------------------------------------------------------------

    def _step(self, phase: Phase) -> None:
        began = time.perf_counter()
        self.seconds.clear()
        while len(self.pending) <= self.run.schedule.ahead and self._more(phase):
            with self._timed("rollout"):
                self.pending.append(self._sample(phase))
        groups = self.pending.pop(0)
        metrics = rollout_metrics(groups)
        groups, learned = self._learn(phase, groups)
        metrics |= learned | mismatch(groups)
        with self._timed("deliver"):
            self._deliver()
        for observe in phase.method.observe:
            self.state = observe(self.state, groups, metrics)
        self._store(groups)
        tokens = self.position.num_tokens + sampled_tokens(groups)
        metrics["num_tokens"] = float(tokens)
        metrics["step_time"] = time.perf_counter() - began
        metrics |= {f"time/{name}": s for name, s in self.seconds.items()}
        self.position = replace(
            self.position,
            step=self.position.step + 1,
            phase_step=self.position.phase_step + 1,
            num_tokens=tokens,
            latest={**self.position.latest, **metrics},
        )
        name = phase.name or phase.method.name
        self.on.emit(StepFinished(step=self.position.step, phase=name, metrics=metrics))
        self._evaluate(phase, due=False)
        every = self.run.checkpoints.every
        if every and self.position.step % every == 0:
            self._save()

    def _more(self, phase: Phase) -> bool:
        """Whether the phase can still use a batch that is not sampled yet."""
        return self.position.sampled_steps < phase.until.steps

    def _sample(self, phase: Phase) -> list[Group]:
        """The next batch, with the weights the engine holds now."""
        step = self.position.sampled_steps
        job = self._job(phase, step)
        held = self.on.engine.fingerprint(self._policy())
        inflight = Inflight(self.folder, key=(self.position.phase, step), weights=held)
        groups = self.on.runner.rollout(job, unfinished=inflight.read(), on_wave=inflight.write)
        inflight.clear()
        drawn = self.state["draws"]["count"][0].as_py() + len(groups)
        self.state = {**self.state, "draws": pa.table({"count": pa.array([drawn], pa.int64())})}
        self.position = replace(self.position, sampled_steps=step + 1)
        return groups

    def _job(self, phase: Phase, step: int) -> Job:
        trainer = self.run.trainer
        return Job(
            phase=self.position.phase,
            step=step,
            num_groups=phase.groups_per_step or trainer.groups_per_step,
            source=phase.source,
            plan=phase.method.plan,
            keep=phase.method.keep,
            rule=phase.method.source,
            verifiers=phase.method.verifiers,
            probes=phase.method.probes,
            state=self.state,
        )

    def _learn(self, phase: Phase, groups: list[Group]) -> tuple[list[Group], dict[str, float]]:
        method = phase.method
        with self._timed("score"):
            groups = self.on.runner.grade(groups, source=phase.source, verifiers=method.verifiers)
            deferred = deferred_probes(method)
            probes = [p for p in method.probes if p.name not in deferred]
            groups = probe_stage(groups, probes, self.on.learner, render=self.on.render)
            groups = credit_stage(groups, method.credit, self.state)
        with self._timed("update"):
            return update_stage(groups, method, self.on.learner, self._settings())

    def _settings(self) -> UpdateSettings:
        trainer = self.run.trainer
        if not isinstance(trainer, Local):
            raise ConfigError(f"this loop runs Local trainers, got {type(trainer).__name__}.")
        return UpdateSettings(
            microbatch_tokens=trainer.microbatch_tokens,
            render=self.on.render,
            progress=lambda done, total: self.on.emit(
                Progress(stage="update", done=done, total=total)
            ),
        )

    # --- weights, evaluation, checkpoints -----------------------------------------------------

    def _policy(self) -> str:
        return next(iter(self.run.seats.values())).model

    def _deliver(self) -> None:
        """Give the engine the newest weights of every model that speaks, and check they arrived.

        Raises:
            EngineError: the engine holds other weights than were sent.
        """
        for model in sorted({seat.model for seat in self.run.seats.values()}):
            version = self.on.learner.version(model)
            self.on.engine.load(model, version, self.on.learner.export(model))
            sent, held = self.on.learner.fingerprint(model), self.on.engine.fingerprint(model)
            if sent != held:
                raise EngineError(
                    f"version {version} of model {model!r} did not reach the engine: it holds "
                    f"weights {held}, {sent} were sent. Are engine and trainer set to one "
                    "precision (engine.compute, models.*.compute)?"
                )

    def _evaluate(self, phase: Phase, *, due: bool) -> None:
        plan = phase.evaluation
        if plan is None:
            return
        step = self.position.phase_step
        if not due and (plan.every == 0 or step % plan.every or step == phase.until.steps):
            return
        if due and self.position.latest.get("eval/step") == float(self.position.step):
            return
        with self._timed("evaluate"):
            metrics = evaluate_run(self.on.runner, plan, decode=self.run.decode, state=self.state)
        metrics["eval/step"] = float(self.position.step)
        self.position = replace(self.position, latest={**self.position.latest, **metrics})
        self.on.emit(Evaluated(step=self.position.step, metrics=metrics))

    def _store(self, groups: Sequence[Group]) -> None:
        if self.run.checkpoints.episodes:
            folder = self.folder / "episodes"
            folder.mkdir(parents=True, exist_ok=True)
            write_groups(folder / f"step_{self.position.step + 1:06d}.parquet", groups)

    def _save(self) -> None:
        with self._timed("checkpoint"):
            self._note_best()
            folder = self.folder / "checkpoints"
            folder.mkdir(parents=True, exist_ok=True)
            saved = checkpoint.write(
                folder,
                position=replace(self.position, run_hash=self.run_hash),
                state=self.state,
                learner=self.on.learner.state(),
                pending=[g for batch in self.pending for g in batch],
                save_model=self.on.save_model,
            )
        best = folder / f"step_{self.position.best_step:06d}"
        checkpoint.prune(folder, keep_last=self.run.checkpoints.keep_last, keep={best})
        self.on.emit(CheckpointSaved(step=self.position.step, folder=str(saved)))

    def _note_best(self) -> None:
        metric = self.run.checkpoints.keep_best
        value = self.position.latest.get(metric, float("-inf")) if metric else float("-inf")
        if value > self.position.best:
            self.position = replace(self.position, best=value, best_step=self.position.step)

    def _resume(self) -> int | None:
        """Become the newest whole checkpoint; None if there is none."""
        found = checkpoint.latest(
            self.folder / "checkpoints", warn=lambda text: self.on.emit(Warned(text=text))
        )
        if found is None:
            return None
        saved = checkpoint.read(found, run_hash=self.run_hash)
        self.position, self.state = saved.position, saved.state
        self.on.learner.load_state(saved.learner)
        by_step: dict[int, list[Group]] = {}
        for group in saved.pending:
            by_step.setdefault(group.key[1], []).append(group)
        self.pending = [by_step[step] for step in sorted(by_step)]
        return self.position.step

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        began = time.perf_counter()
        self.on.emit(Progress(stage=name, done=0, total=1))
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - began
