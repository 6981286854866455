"""``posttrain replay``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro


@dataclass(frozen=True, kw_only=True)
class Replay:
    """Take a training step again from stored episodes, without sampling.

    Any field of the run can be set, so another method can be tried on the same episodes.
    """

    takes_overrides: ClassVar[bool] = True

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")]
    """The recipe, or the folder of the run that the episodes came from."""
    episodes: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="EPISODES")]
    """A Parquet file of episodes, e.g. RUN/episodes/step_000001.parquet."""
    phase: int = 0
    """Which phase's method is used."""
    checkpoint: Path | None = None
    """Weights to start from; the recipe's first ones if not given."""
    out: Path | None = None
    """Where to write the episodes with the columns of the update."""

    def run(self, overrides: Sequence[str]) -> None:
        """Update once and print the metrics."""
        from posttrain.api import replay
        from posttrain.cli import show
        from posttrain.data.store import write_groups
        from posttrain.recipes.load import load_recipe

        run, _ = load_recipe(self.recipe, overrides)
        groups, metrics = replay(run, self.episodes, phase=self.phase, checkpoint_=self.checkpoint)
        show.metrics(metrics, title=f"one update on {len(groups)} groups")
        if self.out is not None:
            write_groups(self.out, groups)
            show.say(f"written to {self.out}")
