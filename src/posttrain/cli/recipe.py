"""What verbs share that start from a recipe: its evaluation, and another model in its place."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from posttrain.errors import ConfigError
from posttrain.recipes.origin import Origin
from posttrain.trainers import checkpoint
from posttrain.types.models import Frozen, Trained
from posttrain.types.run import Evaluation, Run


def evaluation_of(run: Run, *, tasks: int | None, samples: int | None) -> Evaluation:
    """The last evaluation among the run's phases, or one on the last phase's own tasks."""
    plans = [phase.evaluation for phase in run.phases if phase.evaluation is not None]
    plan = plans[-1] if plans else Evaluation(source=run.phases[-1].source)
    return replace(
        plan,
        num_tasks=plan.num_tasks if tasks is None else tasks,
        samples=plan.samples if samples is None else samples,
    )


def with_model(run: Run, path: str, *, seat: str) -> Run:
    """The run with a seat's model read from another path, adapters already merged into it.

    Raises:
        ConfigError: the run has no such seat.
    """
    if seat not in run.seats:
        raise ConfigError(f"the run has no seat {seat!r}; it has {sorted(run.seats)}.")
    name = run.seats[seat].model
    spec = run.models[name]
    if isinstance(spec, Trained):
        placed = replace(spec, path=path, lora=None)
    elif isinstance(spec, Frozen):
        placed = replace(spec, path=path)
    else:
        placed = Frozen(path=path)
    return replace(run, models={**run.models, name: placed})


def model_to_score(run: Run, origin: Origin, model: str, *, seat: str) -> tuple[Run, str]:
    """The run with the model to look at, and that model's name.

    ``model`` wins; else a saved run's newest checkpoint; else what the recipe begins with.
    """
    if model:
        return with_model(run, model, seat=seat), model
    if origin.folder is not None:
        warnings: list[str] = []
        found = checkpoint.latest(origin.folder / "checkpoints", warn=warnings.append)
        if found is not None:
            return with_model(run, str(found), seat=seat), str(found)
    spec = run.models[run.seats[seat].model]
    return run, str(getattr(spec, "path", None) or seat)


def stored(path: Path) -> list[Path]:
    """The Parquet files that a path names: itself, or those of a folder, in order.

    Raises:
        ConfigError: there are none.
    """
    found = sorted(path.glob("*.parquet")) if path.is_dir() else [path] if path.is_file() else []
    if not found:
        raise ConfigError(
            f"{path} holds no stored episodes. Give a .parquet file, or a folder of them such as "
            "RUN/episodes."
        )
    return found
