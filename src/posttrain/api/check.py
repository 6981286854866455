"""What is looked at before anything is trained: refuse early, with the remedy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from posttrain.api.build import Loaded
from posttrain.errors import ConfigError, DataError
from posttrain.trainers.checkpoint import empty_state
from posttrain.trainers.loop import Machinery
from posttrain.types.events import Warned
from posttrain.types.message import Task
from posttrain.types.probe import Entropy, GradNorm, Hidden, Probe, TopK, Value
from posttrain.types.run import Phase, Run


def check_run(run: Run, machinery: Machinery, loaded: Loaded) -> None:
    """Refuse a run that could not work.

    Raises:
        ConfigError: a part needs what learner, engine or source cannot give.
        DataError: a source has no task.
        TemplateError: conversations would be rendered or ended wrongly.
    """
    for phase in run.phases:
        tasks = first_tasks(phase, seed=run.seed)
        check_templates(run, loaded, tasks)
        _capabilities(phase, machinery)
        _names(phase, tasks)
    if run.decode.temperature == 0.0:
        machinery.emit(
            Warned(
                text="decode.temperature is 0: every member of a group says the same, so group "
                "baselines leave nothing to learn. Use 1.0 for training."
            )
        )


def first_tasks(phase: Phase, *, seed: int, n: int = 1) -> list[Task]:
    """The first tasks of a phase, drawn as the loop draws them."""
    rng = np.random.default_rng([seed & 0xFFFFFFFF, 0])
    rule, source, state = phase.method.source, phase.source, empty_state()
    drawn = rule.draw(source, state, n, rng) if rule else source.draw(state, n, rng)
    tasks = list(drawn)
    if not tasks:
        raise DataError(
            f"the source {type(phase.source).__name__} of phase {phase.name or phase.method.name!r}"
            " gave no task; it is empty, or a filter takes everything out."
        )
    return tasks


def check_templates(run: Run, loaded: Loaded, tasks: Sequence[Task]) -> None:
    """Chat prompts need a template that opens, ends and shows turns; texts need an end token."""
    chat = any(not isinstance(t.prompt, str) for t in tasks)
    for seat in run.seats:
        loaded.renderers[seat].check(run.decode, chat=chat)


def _capabilities(phase: Phase, machinery: Machinery) -> None:
    method = phase.method
    can = machinery.learner.capabilities
    for probe in method.probes:
        need = _needed(probe)
        if need is not None and need not in can:
            raise ConfigError(
                f"probe {probe.name!r} wants {probe.want}, which this trainer cannot give; it can: "
                f"{sorted(can)}."
            )
    for terms in method.terms.values():
        for term in terms:
            missing = sorted(term.requires - can)
            if missing:
                raise ConfigError(
                    f"{type(term).__name__} needs {missing} of the trainer; it has {sorted(can)}."
                )


def _needed(probe: Probe) -> str | None:
    names = {TopK: "topk", Entropy: "entropy", Hidden: "hidden", Value: "value"}
    return "grad_norm" if isinstance(probe.want, GradNorm) else names.get(type(probe.want))


def _names(phase: Phase, tasks: Sequence[Task]) -> None:
    verifiers = {**phase.source.verifiers, **phase.method.verifiers}
    for task in tasks:
        unknown = sorted(set(task.verifiers or ()) - set(verifiers))
        if unknown:
            raise ConfigError(
                f"task {task.id!r} names the verifiers {unknown}; its source and method have "
                f"{sorted(verifiers)}."
            )
        if task.env and task.env not in phase.source.envs:
            raise ConfigError(
                f"task {task.id!r} names the environment {task.env!r}; its source has "
                f"{sorted(phase.source.envs)}."
            )
    if phase.method.credit is not None and not verifiers and not phase.source.envs:
        raise ConfigError(
            f"method {phase.method.name!r} learns from rewards, and neither its source nor the "
            "method has a verifier or an environment. Pass verifiers to the source."
        )
