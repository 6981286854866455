"""``metrics.jsonl``: one JSON object a step, whole lines only, cut back on resume."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

from posttrain.types.events import Evaluated, Event, RunStarted, StepFinished

NAME = "metrics.jsonl"


class MetricsFile:
    """Appends every step and evaluation; a resumed run rewrites what it repeats."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / NAME

    def on(self, event: Event) -> None:
        """Write a line for a step or an evaluation."""
        if isinstance(event, RunStarted):
            self._cut(event.resumed_from)
        elif isinstance(event, StepFinished):
            self._append({"step": event.step, "phase": event.phase, **_plain(event.metrics)})
        elif isinstance(event, Evaluated):
            self._append({"step": event.step, **_plain(event.metrics)})

    def close(self) -> None:
        """Nothing is held open."""

    def _append(self, row: Mapping[str, object]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")

    def _cut(self, resumed_from: int | None) -> None:
        """Keep the lines up to the step a run goes on from; a new run keeps none."""
        if not self.path.exists():
            return
        last = -1 if resumed_from is None else resumed_from
        kept = [row for row in read_metrics(self.path) if int(row.get("step", 0)) <= last]
        aside = self.path.with_suffix(".writing")
        aside.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
        aside.rename(self.path)


def _plain(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """JSON has no NaN: a value that is not finite is null."""
    return {k: v if math.isfinite(v) else None for k, v in sorted(metrics.items())}


def read_metrics(path: Path) -> Iterator[dict[str, float]]:
    """Rows of a metrics file; a last line that a kill cut short is left out."""
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            yield json.loads(line)
        except ValueError:
            return
