"""TRL callbacks on posttrain's events: the state they read, the calls they expect.

A step of posttrain samples once and may make several updates; ``state.global_step`` counts updates,
and the calls for them follow one another when the step is done. Callbacks get no model, optimiser
or data loader: those arguments are None.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
from rich.console import Console as Terminal
from rich.table import Table
from transformers.trainer_callback import TrainerCallback, TrainerControl, TrainerState

from posttrain.compat.trl.config import GRPOConfig
from posttrain.compat.trl.rewards import Notes
from posttrain.compat.trl.schedule import Length
from posttrain.data.store import read_groups
from posttrain.errors import ConfigError
from posttrain.types import events
from posttrain.types.episode import Group
from posttrain.types.events import Event

When: TypeAlias = Literal[
    "on_train_begin",
    "on_train_end",
    "on_epoch_begin",
    "on_epoch_end",
    "on_step_begin",
    "on_step_end",
    "on_evaluate",
    "on_save",
    "on_log",
]


@dataclass(slots=True)
class Callbacks:
    """Calls the callbacks of a trainer; what they raise stops the run and is raised after it."""

    args: GRPOConfig
    length: Length
    notes: Notes
    processing_class: Any
    callbacks: list[TrainerCallback]
    control: TrainerControl = field(default_factory=TrainerControl)
    state: TrainerState = field(init=False)
    failure: Exception | None = None
    _window: list[Mapping[str, float]] = field(default_factory=list)
    _logged_at: int = 0
    _folder: Path = field(default_factory=Path)

    def __post_init__(self) -> None:
        self.state = TrainerState()

    def on(self, event: Event) -> None:
        """Take one event of the run."""
        if self.failure is not None:
            return
        try:
            self._take(event)
        except Exception as error:  # noqa: BLE001 (the boundary: a callback may raise anything)
            self.failure = error
            self.control.should_training_stop = True

    def close(self) -> None:
        """Nothing is held open."""

    def _take(self, event: Event) -> None:
        match event:
            case events.RunStarted():
                self._begin(event)
            case events.StepFinished():
                self._step(event)
            case events.Evaluated():
                self.evaluated(event.metrics)
            case events.CheckpointSaved():
                self._call("on_save")
            case events.RunFinished():
                if self._window:
                    self._log(event.step)
                self._call("on_train_end")
            case events.Progress() | events.Warned():
                pass

    def _begin(self, event: events.RunStarted) -> None:
        self._folder = Path(event.folder)
        state, length = self.state, self.length
        state.global_step = (event.resumed_from or 0) * length.updates_a_step
        state.max_steps = length.updates
        state.num_train_epochs = math.ceil(length.epoch(length.steps) or 1)
        state.epoch = length.epoch(event.resumed_from or 0) or 0.0
        state.logging_steps = length.updates_for(self.args.logging_steps)
        state.save_steps = length.updates_for(self.args.save_steps)
        state.train_batch_size = self.args.per_device_train_batch_size
        self._logged_at = state.global_step
        self.notes.trainer_state = state
        self._call("on_train_begin")
        self._call("on_epoch_begin")

    def _step(self, event: events.StepFinished) -> None:
        for _ in range(self.length.updates_a_step):
            self._call("on_step_begin")
            self.state.global_step += 1
            self.state.epoch = self.length.epoch(event.step) or 0.0
            self._call("on_step_end")
        self.state.num_input_tokens_seen = int(event.metrics.get("num_tokens", 0.0))
        self._window.append({**event.metrics, **self.notes.take_metrics()})
        if self._due():
            self._log(event.step)
        pass_size = self.length.steps_a_pass
        if pass_size is not None and event.step % pass_size == 0:
            self._call("on_epoch_end")
            if self.args.logging_strategy == "epoch":
                self._log(event.step)
            if event.step < self.length.steps:
                self._call("on_epoch_begin")

    def _due(self) -> bool:
        asked, self.control.should_log = self.control.should_log, False
        first = self.args.logging_first_step and self._logged_at == 0
        if asked or first:
            return True
        if self.args.logging_strategy != "steps":
            return False
        every = self.length.updates_for(self.args.logging_steps)
        return self.state.global_step // every > self._logged_at // every

    def _log(self, step: int) -> None:
        """Means over the steps since the last call."""
        window, self._window = self._window, []
        self._logged_at = self.state.global_step
        if not window:
            return
        names = {name for metrics in window for name in metrics}
        logs = {n: _mean([m[n] for m in window if n in m]) for n in sorted(names)}
        self._record(logs)
        if self.args.log_completions:
            self._print(step)

    def evaluated(self, metrics: Mapping[str, float]) -> None:
        """Log an evaluation under TRL's names and tell the callbacks."""
        named = {name.replace("eval/", "eval_", 1): value for name, value in metrics.items()}
        named.pop("eval_step", None)
        self._record(named)
        self._call("on_evaluate", metrics=named)

    def _record(self, logs: dict[str, float]) -> None:
        logs["epoch"] = self.state.epoch
        self._call("on_log", logs=logs)
        self.state.log_history.append({**logs, "step": self.state.global_step})

    def _call(self, when: When, **more: Any) -> None:
        for callback in self.callbacks:
            answer = getattr(callback, when)(
                self.args,
                self.state,
                self.control,
                model=None,
                processing_class=self.processing_class,
                optimizer=None,
                lr_scheduler=None,
                train_dataloader=None,
                eval_dataloader=None,
                **more,
            )
            if answer is not None:
                self.control = answer
        for wish in ("should_save", "should_evaluate"):
            if getattr(self.control, wish):
                raise ConfigError(
                    f"a callback set control.{wish}, which is not honoured between steps. Set "
                    "save_steps or eval_steps."
                )

    def _print(self, step: int) -> None:
        """The completions of the step, as TRL prints them with ``log_completions``."""
        path = self._folder / "episodes" / f"step_{step:06d}.parquet"
        table = completions_table(
            read_groups(path),
            self.notes,
            most=self.args.num_completions_to_print,
            unique=self.args.log_unique_prompts,
        )
        table.title = f"Step {self.state.global_step}"
        Terminal().print(table)
        self.notes.extra.clear()


def completions_table(
    groups: Sequence[Group], notes: Notes, *, most: int | None, unique: bool
) -> Table:
    """Prompts, completions, rewards, logged extras and advantages, one row a completion."""
    rewards = sorted({row.name for group in groups for row in group.rewards})
    extras = sorted({name for values in notes.extra.values() for name in values})
    table = Table("Prompt", "Completion", *rewards, *extras, "Advantage", show_lines=True)
    rows = [(g, e) for g in groups for e in range(len(g.episodes)) if not (unique and e)]
    for group, episode in rows[:most]:
        scored = {row.name: row.value for row in group.rewards_for(episode)}
        extra = notes.extra.get((group.group_id, episode), {})
        table.add_row(
            _prompt_text(group),
            group.episode_text(episode),
            *(_shown(scored.get(name)) for name in rewards),
            *(str(extra.get(name, "")) for name in extras),
            _shown(_advantage(group, episode)),
        )
    return table


def _prompt_text(group: Group) -> str:
    prompt = group.task.prompt
    return (
        prompt if isinstance(prompt, str) else "\n".join(f"{m.role}: {m.content}" for m in prompt)
    )


def _advantage(group: Group, episode: int) -> float | None:
    for s in reversed(group.episodes[episode].segments):
        column = group.segments[s].columns.get("advantages")
        values = [] if column is None else column.values[np.isfinite(column.values)]
        if len(values):
            return float(values[0])
    return None


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def _mean(values: Sequence[float]) -> float:
    finite = [v for v in values if not math.isnan(v)]
    return sum(finite) / len(finite) if finite else float("nan")
