"""``posttrain train``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro


@dataclass(frozen=True, kw_only=True)
class Train:
    """Train a run. Any field of it can be set: --models.policy.optimiser.lr 1e-5.

    A part is replaced by its class name: --phases.0.method.terms.policy.0.trust Unconstrained.
    """

    takes_overrides: ClassVar[bool] = True

    recipe: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RECIPE")]
    """A built-in name, module:function, a Python file, or a saved run.yaml."""
    folder: Path | None = None
    """Where everything is written; runs/NAME if not given."""
    resume: bool = False
    """Go on exactly from the newest checkpoint in the folder."""
    dry_run: bool = False
    """Load and check everything, print the run and its memory, and stop."""

    def run(self, overrides: Sequence[str]) -> None:
        """Train, and say where the model is."""
        from posttrain.api import fit
        from posttrain.cli.show import say
        from posttrain.recipes.load import load_recipe
        from posttrain.recipes.saved import SAVED, save_run
        from posttrain.trainers import checkpoint

        run, origin = load_recipe(self.recipe, overrides)
        if self.dry_run:
            from posttrain.cli.doctor import dry_run

            dry_run(run)
            return
        again = origin.folder if self.resume else None
        folder = self.folder or again or Path("runs") / origin.name
        if not checkpoint.listed(folder / "checkpoints"):
            save_run(folder, run, origin)
        try:
            result = fit(run, folder, resume=self.resume)
        except KeyboardInterrupt as stop:
            stop.add_note(f"Go on with: posttrain train {folder / SAVED} --resume")
            raise
        say(f"model    {result.model}")
        say(f"metrics  {folder / 'metrics.jsonl'}")
        say(f"evaluate posttrain eval {folder}")
