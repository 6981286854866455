"""``posttrain eval``."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import tyro


@dataclass(frozen=True, kw_only=True)
class Evaluate:
    """Score a model on a recipe's held-out tasks: accuracy, pass@k and maj@k, with intervals.

    Any field of the run can be set, e.g. --decode.temperature 0.
    """

    takes_overrides: ClassVar[bool] = True

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")]
    """A recipe (its first model is scored), or a run's folder (its newest checkpoint is)."""
    model: str = ""
    """Another model to score: a checkpoint, a folder, a GGUF file or a Hugging Face id."""
    tasks: int | None = None
    """Problems; the recipe's number if not given."""
    samples: int | None = None
    """Samples a problem; the recipe's number if not given."""
    k: tuple[int, ...] = ()
    """Values of k for pass@k and maj@k; 1, 2, 4, ... if not given."""
    json: bool = False
    """Print JSON."""

    def run(self, overrides: Sequence[str]) -> None:
        """Sample, grade and print."""
        from posttrain.api import evaluate
        from posttrain.cli import show
        from posttrain.cli.recipe import evaluation_of, model_to_score
        from posttrain.recipes.load import load_recipe

        run, origin = load_recipe(self.recipe, overrides)
        plan = evaluation_of(run, tasks=self.tasks, samples=self.samples)
        run, name = model_to_score(run, origin, self.model, seat=plan.seat)
        with show.following() as emit:
            found = evaluate(run, plan, emit=emit, ks=self.k or None)
        if self.json:
            print(json.dumps({"model": name, **show.scores_json(found)}))
        else:
            show.scores(found, of=name)
