from __future__ import annotations

import pytest
import torch

from posttrain.errors import ConfigError
from posttrain.objectives import weights as w

NAN = float("nan")
LOSS = torch.tensor([[1.0, 1, NAN, NAN], [3, 3, 3, 3], [NAN] * 4])
MASK = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]]).bool()
IDS = torch.tensor([5, 6, 6])
MODES = {
    "token_sum": w.token_sum,
    "token_mean": w.token_mean,
    "sequence_mean": w.sequence_mean,
    "sequence_sum": w.sequence_sum,
    "constant_length": lambda m: w.constant_length(m, length=8),
    "delta_l": w.delta_l,
    "per_rollout": lambda m: w.per_rollout(m, IDS[: len(m)]),
}


@pytest.mark.parametrize(
    ("mode", "loss"),
    [
        ("token_sum", 14.0),
        ("token_mean", 14 / 6),
        ("sequence_mean", 2.0),
        ("sequence_sum", 7.0),
        ("constant_length", 14 / 16),
        # row sums 2 and 12, lengths 2 and 4, each to the power -0.75
        ("delta_l", (2 * 2**-0.75 + 12 * 4**-0.75) / (2**-0.75 + 4**-0.75)),
        ("per_rollout", 2.0),
    ],
)
def test_each_mode_has_its_own_value(mode, loss):
    assert w.weighted_sum(LOSS, MODES[mode](MASK)).item() == pytest.approx(loss)


@pytest.mark.parametrize("mode", MODES)
def test_nothing_trained_gives_zero_loss_and_zero_gradient(mode):
    loss = torch.tensor([[1.0, 2.0], [3.0, NAN]], requires_grad=True)
    weights = MODES[mode](torch.zeros(2, 2, dtype=torch.bool))
    total = w.weighted_sum(loss, weights)
    total.backward()
    assert total.item() == 0.0
    assert not loss.grad.any()


def test_gradient_is_the_weight():
    loss = torch.tensor([[2.0, 50.0], [4.0, -30.0]], requires_grad=True)
    total = w.weighted_sum(loss, w.token_mean(torch.tensor([[True, False], [True, False]])))
    total.backward()
    assert total.item() == 3.0
    assert loss.grad.tolist() == [[0.5, 0.0], [0.5, 0.0]]


def test_a_nan_on_a_trained_token_is_not_hidden():
    assert w.weighted_sum(LOSS, w.token_mean(~MASK)).isnan()


def test_ranks_add_up_with_the_count_of_all():
    first = w.weighted_sum(torch.ones(1, 2), w.token_mean(MASK[:1, :2], num_tokens=6))
    second = w.weighted_sum(torch.full((1, 4), 3.0), w.token_mean(MASK[1:2], num_tokens=6))
    assert (first + second).item() == pytest.approx(14 / 6)


PARTS = {
    "token_mean": lambda m, _: w.token_mean(m, num_tokens=MASK.sum()),
    "sequence_mean": lambda m, _: w.sequence_mean(m, num_rows=w.trained_rows(MASK)),
    "sequence_sum": lambda m, _: w.sequence_sum(m, num_rows=2),
    "constant_length": lambda m, _: w.constant_length(m, length=8, num_rows=2),
    "delta_l": lambda m, _: w.delta_l(m, total=w.delta_l_total(MASK)),
    "per_rollout": lambda m, i: w.per_rollout(
        m, IDS[i : i + 1], rollout_tokens=torch.tensor([2, 4, 4])[i : i + 1], num_rollouts=2.0
    ),
}


@pytest.mark.parametrize("mode", PARTS)
def test_micro_batches_of_one_row_add_up(mode):
    whole = MODES[mode](MASK)
    parts = torch.cat([PARTS[mode](MASK[i : i + 1], i) for i in range(3)])
    torch.testing.assert_close(parts, whole)


def test_rollouts_weigh_the_same_however_they_are_cut():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1], [0, 0, 0]]).bool()
    got = w.per_rollout(mask, torch.tensor([4, 9, 4, 7]))  # rollout 4: 5 tokens, 9: 1, 7: none
    expected = torch.tensor([[0.1, 0.1, 0], [0.5, 0, 0], [0.1, 0.1, 0.1], [0, 0, 0]])
    torch.testing.assert_close(got, expected)


def test_delta_l_between_token_and_row_weighting():
    lengths = torch.tensor([2, 4, 4, 2])
    mask = torch.arange(4) < lengths.unsqueeze(-1)
    row = w.delta_l(mask)[:, 0]
    assert row.tolist() == pytest.approx([0.313558, 0.186442, 0.186442, 0.313558], abs=1e-6)
    assert w.delta_l(mask, alpha=0.0)[:, 0].tolist() == [0.25] * 4


def test_a_length_that_is_no_length_is_refused():
    with pytest.raises(ConfigError, match="positive number of tokens, got 0"):
        w.constant_length(MASK, length=0)


def test_a_rollout_split_over_micro_batches_keeps_its_weight():
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
    ids, tokens = torch.tensor([4, 9, 4]), torch.tensor([5, 1, 5])
    parts = [
        w.per_rollout(mask[s], ids[s], rollout_tokens=tokens[s], num_rollouts=2)
        for s in (slice(0, 1), slice(1, 3))
    ]
    torch.testing.assert_close(torch.cat(parts), w.per_rollout(mask, ids))
