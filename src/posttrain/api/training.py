"""``fit`` and ``replay``: train a run; take one of its steps again from stored episodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.api.build import build
from posttrain.api.check import check_run
from posttrain.data.store import read_groups
from posttrain.errors import CheckpointError, ConfigError
from posttrain.monitor.console import Console
from posttrain.monitor.hub import Hub, Listener
from posttrain.monitor.metrics_file import MetricsFile
from posttrain.trainers import checkpoint
from posttrain.trainers.batch import Render
from posttrain.trainers.loop import Loop
from posttrain.trainers.stages import UpdateSettings, credit_stage, update_stage
from posttrain.types.describe import describe, tree_hash
from posttrain.types.engine import Engine
from posttrain.types.episode import Group
from posttrain.types.run import Local, Run


@dataclass(frozen=True, slots=True)
class Result:
    """What a finished run leaves."""

    folder: Path
    """Holds metrics.jsonl, episodes/ and checkpoints/."""
    model: Path
    """The trained model, in Hugging Face layout."""
    steps: int
    metrics: Mapping[str, float]
    """Newest value of every metric of the last phase."""


def fit(
    run: Run,
    folder: str | Path,
    *,
    resume: bool = False,
    engine: Engine | None = None,
    listeners: Sequence[Listener] | None = None,
) -> Result:
    """Train a run.

    Args:
        run: What to train.
        folder: Where everything is written; made if it is not there.
        resume: Go on from the newest whole checkpoint in the folder, exactly; start anew if there
            is none.
        engine: An engine to sample with instead of the one ``run.engine`` describes.
        listeners: Take events beside metrics.jsonl and the run's sinks; None shows progress on the
            console.

    Raises:
        ConfigError: the run cannot work; says why before anything is trained.
        CheckpointError: the folder holds another run, or checkpoints and ``resume`` is False.
        MissingExtraError: the package of one of the run's sinks is not installed.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if not resume and checkpoint.listed(folder / "checkpoints"):
        raise CheckpointError(
            f"{folder} already holds checkpoints. Go on with resume=True (--resume), or give the "
            "run a folder of its own."
        )
    shown = [Console()] if listeners is None else list(listeners)
    told = describe(run)
    with Hub(
        [MetricsFile(folder), *shown],
        sinks=run.sinks,
        folder=folder,
        description=told if isinstance(told, dict) else {},
    ) as hub:
        machinery, loaded = build(run, emit=hub, engine=engine)
        check_run(run, machinery, loaded)
        loop = Loop(run=run, folder=folder, on=machinery, run_hash=tree_hash(run))
        try:
            ended = loop.fit(resume=resume)
        finally:
            machinery.engine.close()
    return Result(
        folder=folder,
        model=folder / "checkpoints" / f"step_{ended.step:06d}",
        steps=ended.step,
        metrics=ended.ended,
    )


def replay(
    run: Run,
    groups: Sequence[Group] | str | Path,
    *,
    phase: int = 0,
    checkpoint_: Path | None = None,
) -> tuple[list[Group], dict[str, float]]:
    """Take the update of one step again from stored groups, without sampling.

    Args:
        run: The run the groups came from, or a variant: another method's credit and terms may be
            tried on the same episodes.
        groups: Groups, or a Parquet file of them.
        phase: Index of the phase whose method is used.
        checkpoint_: Weights to start from; the run's own initial ones if None.

    Returns:
        The groups with the columns the update wrote, and its metrics.
    """
    if not 0 <= phase < len(run.phases):
        raise ConfigError(f"phase must be in 0..{len(run.phases) - 1}, got {phase}.")
    stored = read_groups(groups) if isinstance(groups, str | Path) else list(groups)
    trainer = run.trainer
    if not isinstance(trainer, Local):
        raise ConfigError(f"replay needs a Local trainer, got {type(trainer).__name__}.")
    machinery, _ = build(run, emit=lambda _: None)
    state = checkpoint.empty_state()
    if checkpoint_ is not None:
        saved = checkpoint.read(checkpoint_, run_hash=tree_hash(run))
        machinery.learner.load_state(saved.learner)
        state = dict(saved.state)
    method = run.phases[phase].method
    settings = _settings(trainer, machinery.render)
    return update_stage(
        credit_stage(stored, method.credit, state), method, machinery.learner, settings
    )


def _settings(trainer: Local, render: Render) -> UpdateSettings:
    return UpdateSettings(microbatch_tokens=trainer.microbatch_tokens, render=render)
