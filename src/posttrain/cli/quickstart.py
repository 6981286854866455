"""``posttrain quickstart``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar


@dataclass(frozen=True, kw_only=True)
class Quickstart:
    """Warm-start a tiny model, train it with rewards on generated problems, write a report."""

    takes_overrides: ClassVar[bool] = False

    folder: Path = Path("runs/quickstart")
    """Where model, metrics and report go."""
    seed: int = 0
    """Of weights, problems and samples."""

    def run(self, overrides: Sequence[str]) -> None:  # noqa: ARG002
        """Train and report."""
        from posttrain.cli.show import say
        from posttrain.recipes.quickstart import quickstart, summary_lines

        summary = quickstart(self.folder, seed=self.seed)
        for line in (*summary_lines(summary), f"report   {self.folder / 'report.html'}"):
            say(line)
