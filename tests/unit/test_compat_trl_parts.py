"""What TRL's options become: order of data, lengths, learning rates, normalisers."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
import torch
from tests.unit.group_fixture import group
from transformers import get_scheduler

from posttrain.compat.trl.config import GRPOConfig
from posttrain.compat.trl.credit import TRLCredit
from posttrain.compat.trl.data import Prompts, digest_of, tasks_of
from posttrain.compat.trl.method import grpo_method, minibatches, prompts
from posttrain.compat.trl.schedule import learning_rate_of, length_of
from posttrain.errors import ConfigError, DataError
from posttrain.parts.aggregation import TokenMean
from posttrain.parts.ratios import SequenceMeanRatio, TokenRatio
from posttrain.parts.terms import EntropyBonus, KLPenalty, PolicyGradient
from posttrain.parts.trust import CappedClip, ClippedRatio
from posttrain.types.episode import Stop

RNG = np.random.default_rng(0)


def source(rows: int, *, batch: int, shuffle: bool = True, seed: int = 3) -> Prompts:
    tasks = tasks_of([{"prompt": str(i)} for i in range(rows)])
    return Prompts(batch, shuffle, seed, digest_of(tasks), tasks, {})


def drawn(from_: Prompts, before: int, n: int) -> list[int]:
    state = {"draws": pa.table({"count": [before]})}
    return [int(task.prompt) for task in from_.draw(state, n, RNG)]


def test_a_pass_shows_every_prompt_of_whole_batches_once_in_an_order_of_its_own():
    made = source(7, batch=3)
    first, second = drawn(made, 0, 6), drawn(made, 6, 6)
    assert made.per_pass == 6
    assert len(set(first)) == len(set(second)) == 6
    assert first != second
    assert drawn(made, 4, 4) == first[4:] + second[:2]


def test_without_shuffling_every_pass_leaves_out_the_same_last_prompts():
    made = source(7, batch=3, shuffle=False)
    assert drawn(made, 0, 12) == [0, 1, 2, 3, 4, 5] * 2


def test_columns_become_plain_data_and_equal_rows_keep_apart():
    rows = [{"prompt": "a", "n": np.int64(3), "v": np.array([1.5, 2.0])}] * 2
    first, second = tasks_of(rows)
    assert first.columns == {"n": 3, "v": [1.5, 2.0]}
    assert first.id != second.id
    assert tasks_of(rows, prompt_only=True)[0].columns == {}


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompts": "a"}, "no column 'prompt'.* Did you mean 'prompts'"),
        ({"prompt": 3}, "must be a text or a list of messages, got 3"),
        ({"prompt": [{"role": "user", "content": [{"type": "image"}]}]}, "texts 'role' and 'con"),
        ({"prompt": "a", "image": b"png"}, "Images are not supported"),
        ({"prompt": "a", "x": object()}, "column 'x' of row 0 holds a object"),
        ("a", "no column 'prompt', only"),
    ],
)
def test_a_row_that_cannot_be_used_says_why(row: object, words: str):
    with pytest.raises(DataError, match=words):
        tasks_of([row])


def options(**fields: object) -> GRPOConfig:
    usual = {"per_device_train_batch_size": 4, "num_generations": 2}
    return GRPOConfig(**{**usual, **fields})


def test_sizes_by_hand():
    # 4 rows a micro-batch, 2 accumulated, 6 slices: 24 completions of 12 prompts, 3 updates a pass.
    config = options(gradient_accumulation_steps=2, steps_per_generation=6, num_iterations=5)
    assert prompts(config) == 12
    assert minibatches(config) == 3
    method = grpo_method(config)
    assert (method.updates.minibatches, method.updates.epochs) == (3, 5)
    assert method.plan.group_size == 2


@pytest.mark.parametrize(
    ("fields", "passes", "steps"),
    [
        ({"max_steps": 12}, None, 12),
        ({"max_steps": 12, "num_iterations": 3}, None, 4),
        ({"num_train_epochs": 2.0}, 5, 10),
        ({"num_train_epochs": 1.5}, 3, 5),  # 4.5 generations are 5
        ({"num_train_epochs": 0.5, "num_iterations": 2}, 4, 2),
    ],
)
def test_lengths(fields: dict[str, object], passes: int | None, steps: int):
    assert length_of(options(**fields), passes).steps == steps


def test_an_end_within_a_generation_and_a_run_without_an_end_are_refused():
    with pytest.raises(ConfigError, match=r"after 7 optimiser steps, .* makes 2 .*max_steps=8"):
        length_of(options(max_steps=7, num_iterations=2), 5)
    with pytest.raises(ConfigError, match="max_steps must be given for a source"):
        length_of(options(), None)


@pytest.mark.parametrize("kind", ["linear", "cosine", "constant", "constant_with_warmup"])
@pytest.mark.parametrize("warmup", [0, 3, 0.25])
def test_learning_rates_are_those_of_transformers(kind: str, warmup: float):
    config = options(max_steps=10, lr_scheduler_type=kind, warmup_steps=warmup)
    found = learning_rate_of(config, length_of(config, None))
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    steps = {0: 0, 3: 3, 0.25: 3}[warmup]
    schedule = get_scheduler(kind, optimiser, num_warmup_steps=steps, num_training_steps=10)
    for update in range(10):
        assert found(update) == pytest.approx(optimiser.param_groups[0]["lr"])
        optimiser.step()
        schedule.step()


def test_shares_of_each_loss_type_by_hand():
    # Answers of 1, 2, 3 tokens and of 1, 2: 9 tokens, 5 completions, two updates a pass.
    groups = [group([0.0, 1.0, 0.0]), group([1.0, 0.0], draw=1)]

    def shares(kind: str) -> list[float]:
        credit = TRLCredit(loss_type=kind, max_completion_length=10, minibatches=2)
        columns = credit(groups, {})["loss_share"]
        return [float(c[0]) for c in columns if np.isfinite(c).any()]

    np.testing.assert_allclose(shares("dapo"), [2 / 9] * 5, rtol=1e-6)
    np.testing.assert_allclose(shares("grpo"), [2 / 5, 2 / 10, 2 / 15, 2 / 5, 2 / 10], rtol=1e-6)
    np.testing.assert_allclose(shares("dr_grpo"), [2 / 50] * 5, rtol=1e-6)
    np.testing.assert_allclose(shares("luspo"), [2 / 5] * 5, rtol=1e-6)


def test_a_masked_truncated_completion_counts_as_a_completion_and_not_in_tokens():
    made = [group([0.0, 1.0, 0.0], stops=[Stop.COMPLETED, Stop.COMPLETED, Stop.MAX_TOKENS])]

    def columns(kind: str) -> tuple[list[float], list[float]]:
        credit = TRLCredit(loss_type=kind, max_completion_length=10, mask_truncated=True)
        found = credit(made, {})
        return tuple([float(c[0]) for c in found[n][1:]] for n in ("loss_share", "advantages"))

    shares, advantages = columns("dapo")
    np.testing.assert_allclose(shares, [1 / 3, 1 / 3, np.nan])
    # Its reward 0 still counts in the mean 1/3 and the deviation sqrt(1/3).
    deviation = (1 / 3) ** 0.5 + 1e-4
    np.testing.assert_allclose(
        advantages, [-1 / 3 / deviation, 2 / 3 / deviation, np.nan], rtol=1e-6
    )
    np.testing.assert_allclose(columns("grpo")[0], [1 / 3, 1 / 6, np.nan])


def test_the_terms_of_a_method_follow_the_options():
    plain = grpo_method(options()).terms["policy"]
    assert [type(term) for term in plain] == [PolicyGradient]
    assert plain[0].ratio == TokenRatio()
    assert plain[0].trust == ClippedRatio(low=0.2, high=0.2)

    full = grpo_method(
        options(
            loss_type="bnpo",
            beta=0.04,
            entropy_coef=0.01,
            epsilon_high=0.28,
            delta=4.0,
        )
    ).terms["policy"]
    assert [type(term) for term in full] == [PolicyGradient, KLPenalty, EntropyBonus]
    assert full[0].trust == CappedClip(low=0.2, high=0.28, cap=4.0)
    assert full[0].aggregation == full[1].aggregation == TokenMean()

    sequence = options(importance_sampling_level="sequence", loss_type="grpo")
    assert grpo_method(sequence).terms["policy"][0].ratio == SequenceMeanRatio()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"beta": 0.1, "importance_sampling_level": "sequence"}, "use_bias_correction_kl=False"),
        ({"entropy_coef": 0.1, "gradient_accumulation_steps": 2}, "within each micro-batch"),
        ({"epsilon": 1.5}, "low must be in"),
    ],
)
def test_a_loss_that_is_not_composed_is_refused(fields: dict[str, object], words: str):
    with pytest.raises(ConfigError, match=words):
        grpo_method(options(**fields))
