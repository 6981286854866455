"""The recipe of SmolLM2: its problems, its splits, its run as data."""

from __future__ import annotations

import numpy as np
import pytest

from posttrain.data.baselines import best_constant
from posttrain.errors import DataError
from posttrain.recipes.smollm2 import SOLVED, Sums, numbers, smollm2_sums, sum_task
from posttrain.types.describe import describe
from posttrain.types.message import Message
from posttrain.types.models import Trained


def test_a_task_asks_after_the_solved_one() -> None:
    task = sum_task(499)
    assert task.prompt == (
        Message("system", "Calculate."),
        Message("user", "146 + 1 ="),
        Message("assistant", "147"),
        Message("user", "499 + 1 ="),
    )
    assert task.gold == "500"


def test_splits_share_nothing_and_leave_the_shown_out() -> None:
    train, held_out = set(numbers("train")), set(numbers("heldout"))
    assert len(held_out) == 200
    assert len(train) == 890 - 200 - 1
    assert not train & held_out
    assert SOLVED not in train | held_out


def test_held_out_problems_are_the_same_every_time_and_training_ones_are_not() -> None:
    ids = [
        [t.id for t in Sums(split=split).draw({}, 6, np.random.default_rng(seed))]
        for split in ("train", "heldout")
        for seed in (1, 2)
    ]
    assert ids[0] != ids[1]
    assert ids[2] == ids[3]
    assert all(len(set(found)) == 6 for found in ids)


def test_too_many_problems_are_refused() -> None:
    with pytest.raises(DataError, match="200 problems"):
        Sums(split="heldout").draw({}, 201, np.random.default_rng(0))


def test_no_constant_answer_is_worth_much() -> None:
    assert best_constant([sum_task(a) for a in numbers("heldout")])[1] < 0.05


@pytest.mark.parametrize(
    ("text", "right"),
    [("55", True), (" 55", True), ("55.", True), ("155", False), ("55 = 55", False)],
)
def test_only_the_exact_sum_counts(text: str, right: bool) -> None:
    (check,) = Sums().verifiers.values()
    assert (check.extract(text) == "55") is right  # pyright: ignore[reportAttributeAccessIssue]


def test_the_run_is_data_and_takes_the_models_path() -> None:
    run = smollm2_sums("some/model", steps=3)
    policy = run.models["policy"]
    assert isinstance(policy, Trained)
    assert policy.path == "some/model"
    assert run.phases[0].until.steps == 3
    assert isinstance(describe(run), dict)
