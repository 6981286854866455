"""What one step samples, and the tasks it draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import pyarrow as pa

from posttrain.envs.single import SingleTurn
from posttrain.errors import CheckpointError, ConfigError, DataError, nearest
from posttrain.rollout.grading import chosen_verifiers
from posttrain.rollout.prompts import Seating
from posttrain.rollout.seeds import draw_generator
from posttrain.types.env import EnvFactory
from posttrain.types.episode import Group, Key
from posttrain.types.message import Task
from posttrain.types.method import Keep, Plan, Source, SourceRule, State, Verifier
from posttrain.types.probe import Probe


@dataclass(frozen=True, kw_only=True)
class Job:
    """The groups of one step: where tasks come from, and the method's parts that sample."""

    phase: int
    step: int
    num_groups: int
    """Places; a place may need several draws where ``keep`` refuses groups."""
    source: Source
    plan: Plan
    state: State
    """``state['draws']`` (column ``count``) says how many tasks were drawn before."""
    keep: Keep | None = None
    rule: SourceRule | None = None
    verifiers: Mapping[str, Verifier] = field(default_factory=dict)
    """The method's own, beside the source's."""
    probes: Sequence[Probe] = ()
    """Those that ``plan.reads`` may name."""

    @cached_property
    def envs(self) -> dict[str, EnvFactory]:
        """Environments by name; the empty name is the one of a single turn."""
        return {"": SingleTurn(), **self.source.envs}

    @cached_property
    def source_verifiers(self) -> dict[str, Verifier]:
        """Verifiers that tasks may name."""
        return dict(self.source.verifiers)

    def graders(self, task: Task) -> dict[str, Verifier]:
        """The verifiers of a task."""
        return chosen_verifiers(task, self.source_verifiers, self.verifiers)

    def check_reads(self, *, can_probe: bool) -> None:
        """Refuse a plan that reads between rounds what nobody writes.

        Raises:
            ConfigError: naming the plan and what it reads.
        """
        probes = {p.name for p in self.probes}
        known = {*self.source_verifiers, *self.verifiers, *probes}
        plan = type(self.plan).__name__
        for name in sorted(self.plan.reads - {"*"}):
            if name not in known:
                raise ConfigError(
                    f"plan {plan} reads {name!r} between rounds, which is neither a verifier nor a "
                    f"probe; there are {sorted(known)}.{nearest(name, known)}"
                )
            if name in probes and not can_probe:
                raise ConfigError(
                    f"plan {plan} reads the probe {name!r} between rounds, but this runner was "
                    "given no way to score: pass probe= to Runner."
                )


def draw_tasks(job: Job, num: int, *, seed: int, drawn: int, attempt: int) -> list[Task]:
    """The next tasks of a step.

    Args:
        job: The step.
        num: Tasks to draw.
        seed: The run's.
        drawn: Tasks the step drew before.
        attempt: Redraws of the step before.

    Raises:
        DataError: the source gave another number of tasks, or a task names what is not there.
        ConfigError: the source gives other tasks when it is asked again.
    """
    before = job.state["draws"]["count"][0].as_py() if "draws" in job.state else 0
    table = pa.table({"count": pa.array([before + drawn], pa.int64())})
    state = {**job.state, "draws": table}

    def draw() -> list[Task]:
        rng = draw_generator(seed, phase=job.phase, step=job.step, attempt=attempt)
        if job.rule is not None:
            return list(job.rule.draw(job.source, state, num, rng))
        return list(job.source.draw(state, num, rng))

    tasks = draw()
    source = type(job.rule or job.source).__name__
    if len(tasks) != num:
        raise DataError(
            f"{source} gave {len(tasks)} tasks where {num} were asked. Lower groups_per_step, or "
            "let the source begin again when it is used up."
        )
    if job.step == 0 and [t.id for t in draw()] != [t.id for t in tasks]:
        raise ConfigError(
            f"{source}.draw gives other tasks when it is asked again with the same state and "
            "generator. Its answer must depend on its arguments alone: use the generator it is "
            "given, and keep no count of its own."
        )
    for task in tasks:
        _check(task, job)
    return tasks


def _check(task: Task, job: Job) -> None:
    job.graders(task)
    if task.env not in job.envs:
        known = sorted(set(job.envs) - {""})
        raise DataError(
            f"task {task.id!r} names the environment {task.env!r}; its source has {known}."
            f"{nearest(task.env, known)}"
        )


def begin(key: Key, task: Task, seating: Seating, stored: Group | None) -> Group:
    """A group with the task's prompt, or what was stored of it.

    Raises:
        CheckpointError: the stored group is of another task.
    """
    if stored is None:
        chat = seating.chat(seating.first)
        return Group(
            key=key,
            task=task,
            segments=(seating.task_prompt(task, seating.first),),
            template_hash=chat.template_hash,
            tokenizer_hash=chat.tokenizer_hash,
        )
    if stored.task.id != task.id:
        raise CheckpointError(
            f"the unfinished group {stored.group_id} is of task {stored.task.id!r}, but the source "
            f"now draws {task.id!r} in its place. The source has changed since; start the step "
            "afresh by deleting the unfinished groups."
        )
    return stored
