"""``posttrain rollout``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """Sample and grade episodes on a recipe's held-out tasks, and write them to a Parquet file.

    Any field of the run can be set, e.g. --decode.max_tokens 64.
    """

    takes_overrides: ClassVar[bool] = True

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")]
    """A recipe (its first model samples), or a run's folder (its newest checkpoint does)."""
    out: Path = Path("episodes.parquet")
    """The file to write."""
    model: str = ""
    """Another model: a checkpoint, a folder, a GGUF file or a Hugging Face id."""
    tasks: int | None = None
    """Problems; the recipe's number if not given."""
    samples: int | None = None
    """Samples a problem; the recipe's number if not given."""
    show: int = 3
    """Episodes to print."""

    def run(self, overrides: Sequence[str]) -> None:
        """Sample, grade, write."""
        from posttrain.api import rollout
        from posttrain.cli import show
        from posttrain.cli.recipe import evaluation_of, model_to_score
        from posttrain.recipes.load import load_recipe
        from posttrain.trainers.metrics import rollout_metrics

        run, origin = load_recipe(self.recipe, overrides)
        plan = evaluation_of(run, tasks=self.tasks, samples=self.samples)
        run, name = model_to_score(run, origin, self.model, seat=plan.seat)
        with show.following() as emit:
            groups = rollout(run, plan, emit=emit, path=self.out)
        show.episodes(groups, most=self.show)
        show.metrics(rollout_metrics(groups), title=f"{name}: {len(groups)} groups")
        show.say(f"written to {self.out}")
