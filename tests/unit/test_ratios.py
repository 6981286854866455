from __future__ import annotations

import math

import pytest
import torch

from posttrain.objectives import ratios

NAN = float("nan")
MASK = torch.tensor([[True, False, True, True], [False, True, False, False]])
POLICY = [[-1.0, NAN, -0.5, -2.0], [NAN, -0.25, NAN, NAN]]
OLD = [[-1.5, NAN, -0.25, -1.0], [NAN, -0.5, NAN, NAN]]
# log ratio: 0.5 . -0.25 -1.0 | . 0.25 . .


def both() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    policy = torch.tensor(POLICY, dtype=torch.float64, requires_grad=True)
    return policy, torch.tensor(OLD, dtype=torch.float64, requires_grad=True), MASK


def close(got: torch.Tensor, expected: list) -> None:
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64))


def test_token_level_value_and_gradient():
    policy, old, mask = both()
    got = ratios.token_log_ratio(policy, old, mask)
    close(got, [[0.5, 0, -0.25, -1.0], [0, 0.25, 0, 0]])
    got.exp().sum().backward()
    expected = [[math.exp(0.5), 0, math.exp(-0.25), math.exp(-1)], [0, math.exp(0.25), 0, 0]]
    close(policy.grad, expected)
    assert old.grad is None


def test_sequence_levels_count_trained_tokens_only():
    policy, old, mask = both()
    close(ratios.sequence_log_ratio(policy, old, mask), [-0.75, 0.25])
    got = ratios.sequence_mean_log_ratio(policy, old, mask)
    close(got, [-0.25, 0.25])
    got.sum().backward()
    close(policy.grad, [[1 / 3, 0, 1 / 3, 1 / 3], [0, 1, 0, 0]])
    nothing = ratios.sequence_mean_log_ratio(policy, old, mask & ~mask)
    close(nothing, [0, 0])


def test_sequence_ratio_with_token_gradient():
    policy, old, mask = both()
    got = ratios.sequence_token_log_ratio(policy, old, mask)
    close(got, [[-0.25, 0, -0.25, -0.25], [0, 0.25, 0, 0]])
    (got * torch.arange(8.0).view(2, 4)).sum().backward()
    close(policy.grad, [[0, 0, 2, 3], [0, 5, 0, 0]])


def test_prefix_steps_over_masked_tokens_and_keeps_the_gradient_local():
    policy, old, mask = both()
    got = ratios.prefix_log_ratio(policy, old, mask)
    close(got, [[0.5, 0, 0.25, -0.75], [0, 0.25, 0, 0]])
    got.sum().backward()
    close(policy.grad, [[1, 0, 1, 1], [0, 1, 0, 0]])


def test_prefix_minimum_times_the_token():
    policy, old, mask = both()
    got = ratios.prefix_min_log_ratio(policy, old, mask)
    # smallest before: none, ., 0.5, min(0.5, -0.25)
    close(got, [[0.5, 0, 0.25, -1.25], [0, 0.25, 0, 0]])
    got.sum().backward()
    close(policy.grad, [[1, 0, 1, 1], [0, 1, 0, 0]])


def test_behaviour_ratio_has_no_gradient():
    policy, old, mask = both()
    got = ratios.behaviour_log_ratio(policy, old, mask)
    close(got, [[0.5, 0, -0.25, -1.0], [0, 0.25, 0, 0]])
    assert not got.requires_grad


def test_group_expectation_is_within_the_group_and_leaves_empty_rows_out():
    policy = torch.tensor([0.5, 0.3, 0.9, 0.2]).double().log().unsqueeze(-1)
    old = torch.tensor([0.4, 0.2, 0.7, 0.1]).double().log().unsqueeze(-1)
    mask = torch.tensor([[True], [True], [False], [True]])
    ids = torch.tensor([3, 3, 3, 8])
    got = ratios.group_expectation_log_ratio(policy, old, mask, ids).exp()
    expected = (0.16 + 0.04) / (0.4 + 0.2)  # 1/3
    close(got, [0.5 / expected, 0.3 / expected, 1.0, 2.0])


def test_group_expectation_has_the_gradient_of_its_own_row_mean():
    policy, old, mask = both()
    got = ratios.group_expectation_log_ratio(policy, old, mask, torch.tensor([0, 0]))
    got.sum().backward()
    close(policy.grad, [[1 / 3, 0, 1 / 3, 1 / 3], [0, 1, 0, 0]])
    assert old.grad is None


def test_bound_keeps_float32_finite_and_is_counted():
    log_ratio = torch.tensor([-199.0, -20.0, 0.0, 20.0, 199.0], requires_grad=True)
    ratio = ratios.bounded_exp(log_ratio)
    assert torch.isfinite(ratio).all()
    torch.testing.assert_close(ratio[[0, 4]], torch.tensor([-20.0, 20.0]).exp(), rtol=1e-6, atol=0)
    assert ratios.beyond_bound(log_ratio).tolist() == [True, False, False, False, True]
    ratio.sum().backward()
    assert log_ratio.grad[[0, 2, 4]].tolist() == [0.0, 1.0, 0.0]
    assert ratios.bounded_exp(torch.tensor(3.0), bound=1.0).item() == pytest.approx(math.e)
    assert ratios.beyond_bound(torch.tensor(3.0), bound=1.0)
