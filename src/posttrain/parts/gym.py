"""Reasoning-gym's tasks together with the verifier that scores them."""

from __future__ import annotations

from collections.abc import Mapping

from posttrain.data.reasoning_gym import ReasoningGym
from posttrain.rewards.reasoning_gym import GymAnswer
from posttrain.types.message import JSON


def gym_tasks(
    *names: str,
    options: Mapping[str, Mapping[str, JSON]] | None = None,
    grader: GymAnswer | None = None,
    num_examples: int = 0,
    num_held_out: int = 200,
    seed: int = 0,
) -> tuple[ReasoningGym, ReasoningGym]:
    """(training tasks, held-out tasks) of data sets of reasoning-gym, scored by their own rules.

    Args:
        names: Data sets, by their names in the package.
        options: Options of a data set's configuration, by data set.
        grader: How answers are found and scored; ``GymAnswer()`` if not given.
        num_examples: Solved problems shown before each task.
        num_held_out: Held-out tasks, none of which is trained on.
        seed: Seed of the training tasks.
    """
    grader = grader or GymAnswer()
    made = {
        split: ReasoningGym(
            names=names,
            options=options or {},
            split=split,
            num_examples=num_examples,
            num_held_out=num_held_out,
            verifiers={grader.name: grader},
            seed=seed,
        )
        for split in ("train", "held_out")
    }
    return made["train"], made["held_out"]
