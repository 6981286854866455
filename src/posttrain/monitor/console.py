"""Progress on a terminal: a bar while something runs, a line a step; lines only into a pipe."""

from __future__ import annotations

import time

from rich.console import Console as Terminal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.progress import Task as Bar

from posttrain.types import events
from posttrain.types.events import Event

SHOWN = (
    ("loss", "loss", "{:.4f}"),
    ("reward", "reward", "{:.3f}"),
    ("completions/mean_length", "length", "{:.0f}"),
    ("entropy", "entropy", "{:.3f}"),
    ("grad_norm", "grad", "{:.2g}"),
    ("step_time", "s", "{:.2f}"),
)
PIPE_EVERY_S = 5.0
"""Seconds between two step lines where nobody sees a bar."""


class Console:
    """Shows a run as it goes."""

    def __init__(self, terminal: Terminal | None = None, *, every_s: float | None = None) -> None:
        self._terminal = terminal or Terminal(stderr=True)
        live = self._terminal.is_terminal
        self._every_s = (0.5 if live else PIPE_EVERY_S) if every_s is None else every_s
        self._last = 0.0
        self._progress: Progress | None = None
        self._steps: Bar | None = None
        self._stage: Bar | None = None
        self._live = live
        self._total = 0

    def on(self, event: Event) -> None:
        """Show one event."""
        match event:
            case events.RunStarted():
                self._begin(event)
            case events.Progress():
                self._show_stage(event)
            case events.StepFinished():
                self._show_step(event)
            case events.Evaluated():
                low, high = (event.metrics.get(f"eval/accuracy_{e}", 0.0) for e in ("low", "high"))
                accuracy = event.metrics.get("eval/accuracy", 0.0)
                self._print(
                    f"step {event.step}: held-out accuracy {accuracy:.3f} [{low:.3f}, {high:.3f}]"
                )
            case events.CheckpointSaved():
                pass
            case events.Warned():
                self._print(f"warning: {event.text}")
            case events.RunFinished():
                self._print(f"finished after {event.step} steps ({event.reason})")

    def close(self) -> None:
        """Take the bars down."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None

    def _begin(self, event: events.RunStarted) -> None:
        self._total = event.total_steps
        start = event.resumed_from or 0
        if event.resumed_from is not None:
            self._print(f"going on after step {start} in {event.folder}")
        if not self._live:
            return
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=self._terminal,
            transient=True,
        )
        self._progress.start()
        number = self._progress.add_task("steps", total=event.total_steps, completed=start)
        stage = self._progress.add_task("", total=None)
        self._steps, self._stage = self._progress.tasks[number], self._progress.tasks[stage]

    def _show_stage(self, event: events.Progress) -> None:
        if self._progress is not None and self._stage is not None:
            tokens = f" {event.sampled_tokens:,} tokens" if event.sampled_tokens else ""
            self._progress.update(
                self._stage.id,
                description=event.stage + tokens,
                completed=event.done,
                total=event.total,
            )

    def _show_step(self, event: events.StepFinished) -> None:
        if self._progress is not None and self._steps is not None:
            self._progress.update(self._steps.id, completed=event.step)
        now = time.monotonic()
        if now - self._last < self._every_s and event.step < self._total:
            return
        self._last = now
        shown = [
            f"{label} {form.format(event.metrics[name])}"
            for name, label, form in SHOWN
            if name in event.metrics
        ]
        self._print(f"step {event.step}/{self._total} {event.phase}: " + ", ".join(shown))

    def _print(self, text: str) -> None:
        self._terminal.print(text, markup=False, highlight=False, soft_wrap=True)
