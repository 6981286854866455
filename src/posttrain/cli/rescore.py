"""``posttrain rescore``."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

import tyro

from posttrain.errors import ConfigError

if TYPE_CHECKING:
    from posttrain.types.method import Verifier


@dataclass(frozen=True, kw_only=True)
class Rescore:
    """Grade stored episodes again, and show what that changes. Nothing is sampled."""

    takes_overrides: ClassVar[bool] = False

    episodes: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="EPISODES")]
    """A Parquet file of episodes, or a folder of them such as RUN/episodes."""
    recipe: str = ""
    """Grade with the rewards of this recipe or run."""
    reward: tuple[str, ...] = ()
    """Grade with these: module:Class or module:function, called with answer and gold."""
    out: Path | None = None
    """Where to write the episodes with their new rewards."""
    threshold: float = 0.5
    """An episode is solved when its total reward is above this."""
    show: int = 10
    """Changed episodes to print."""

    def run(self, overrides: Sequence[str]) -> None:  # noqa: ARG002
        """Grade and compare."""
        from posttrain.api import rescore
        from posttrain.cli import show
        from posttrain.cli.recipe import stored
        from posttrain.data.store import read_groups, write_groups

        groups = [group for path in stored(self.episodes) for group in read_groups(path)]
        found = rescore(groups, self._verifiers(), threshold=self.threshold)
        show.scores(found.before, of="as stored")
        show.scores(found.after, of="graded again")
        show.say(f"{len(found.changed)} episodes changed their total reward.")
        rows = [
            (group, episode, _number(before), _number(after))
            for group, episode, before, after in found.changed[: self.show]
        ]
        if rows:
            show.table(("group", "episode", "before", "after"), rows, numbers=(1, 2, 3))
        if self.out is not None:
            write_groups(self.out, found.groups)
            show.say(f"written to {self.out}")

    def _verifiers(self) -> Mapping[str, Verifier]:
        from posttrain.recipes.load import load_recipe

        if bool(self.recipe) == bool(self.reward):
            raise ConfigError("say what to grade with: either --recipe, or --reward once or more.")
        if self.reward:
            return {word.rpartition(":")[2]: _verifier(word) for word in self.reward}
        phase = load_recipe(self.recipe)[0].phases[-1]
        found = {**phase.source.verifiers, **phase.method.verifiers}
        if not found:
            raise ConfigError(f"the last phase of {self.recipe} has no rewards.")
        return found


def _verifier(word: str) -> Verifier:
    from posttrain.recipes.values import imported
    from posttrain.rewards.functions import SampleFunction
    from posttrain.types.method import Verifier

    found = imported(word, at="--reward")
    if isinstance(found, Verifier):
        return found
    if inspect.isclass(found) and issubclass(found, Verifier):
        return found()
    if inspect.isfunction(found):
        return SampleFunction(found)
    raise ConfigError(
        f"--reward {word}: a Verifier, its class, or a function of answer and gold is needed; "
        f"this is {type(found).__name__}."
    )


def _number(value: float | None) -> str:
    return "not scorable" if value is None else f"{value:g}"
