from __future__ import annotations

import pytest
import torch

from posttrain.objectives import returns

NAN = float("nan")


def test_one_discount_per_trained_token():
    rewards = torch.tensor([[0.0, NAN, 5.0, 1.0], [1.0, 2.0, 4.0, NAN]])
    mask = torch.tensor([[True, False, False, True], [True, True, True, False]])
    got = returns.reward_to_go(rewards, mask, gamma=0.9)
    # row 0: 0.9 * 1, 1 (the 5 on a masked token is not read); row 1: 1 + .9 * 5.6, 2 + .9 * 4, 4
    expected = torch.tensor([[0.9, 0, 0, 1.0], [6.04, 5.6, 4.0, 0]])
    torch.testing.assert_close(got, expected)


def test_reward_to_go_against_a_plain_loop():
    torch.manual_seed(0)
    rewards, mask = torch.randn(3, 300, dtype=torch.float64), torch.rand(3, 300) < 0.6
    expected = torch.zeros_like(rewards)
    for row in range(3):
        running = 0.0
        for t in reversed(range(300)):
            if mask[row, t]:
                running = rewards[row, t] + 0.8 * running
                expected[row, t] = running
    torch.testing.assert_close(returns.reward_to_go(rewards, mask, gamma=0.8), expected)


def test_the_outcome_goes_to_the_last_trained_token():
    mask = torch.tensor([[1, 1, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()
    got = returns.place_on_last(torch.tensor([2.0, -1.0, 7.0]), mask)
    assert got.tolist() == [[0, 0, 0, 2.0, 0], [0, -1.0, 0, 0, 0], [0] * 5]


def test_kl_penalties():
    mask = torch.tensor([[True, False, True]])
    token_kl, token_rewards = torch.tensor([[0.5, NAN, -0.25]]), torch.tensor([[0.0, NAN, 1.0]])
    tokens = returns.penalise_tokens(token_rewards, token_kl, mask, coefficient=0.2)
    torch.testing.assert_close(tokens, torch.tensor([[-0.1, 0.0, 1.05]]))
    row = returns.penalise_row(torch.tensor([1.0]), token_kl, mask, coefficient=0.2)
    assert row.item() == pytest.approx(0.95)


def test_huge_value_on_a_masked_token_is_not_read():
    rewards = torch.tensor([[0.0, 1.0, 0.0]])
    values = torch.tensor([[0.2, 0.4, 100.0]])
    mask = torch.tensor([[True, True, False]])
    how = {"gamma": 1.0, "lam": 0.95}
    got = returns.gae_advantages(rewards, values, mask, **how)
    torch.testing.assert_close(got, torch.tensor([[0.77, 0.6, 0.0]]))
    target = returns.gae_returns(rewards, values, mask, **how)
    torch.testing.assert_close(target, torch.tensor([[0.97, 1.0, 0.0]]))


def test_gae_with_discount_and_a_final_value_worked_by_hand():
    # V .5 1 | 2 after the end, r 0 1, gamma .5, lam .8
    # delta_1 = 1 + .5*2 - 1 = 1; delta_0 = 0 + .5*1 - .5 = 0; A_0 = 0 + .4*1
    rewards = torch.tensor([[0.0, NAN, 1.0], [3.0, NAN, NAN]])
    values = torch.tensor([[0.5, NAN, 1.0], [1.0, NAN, NAN]])
    mask = torch.tensor([[True, False, True], [True, False, False]])
    got = returns.gae_advantages(
        rewards, values, mask, gamma=0.5, lam=0.8, final_values=torch.tensor([2.0, 0.0])
    )
    torch.testing.assert_close(got, torch.tensor([[0.4, 0.0, 1.0], [2.0, 0.0, 0.0]]))


def test_one_lambda_a_row():
    rewards = torch.tensor([[0.0, 1.0], [0.0, 1.0]])
    values, mask = torch.tensor([[0.25, 0.5]] * 2), torch.ones(2, 2, dtype=torch.bool)
    got = returns.gae_advantages(rewards, values, mask, gamma=1.0, lam=torch.tensor([0.0, 1.0]))
    torch.testing.assert_close(got, torch.tensor([[0.25, 0.5], [0.75, 0.5]]))


def test_decoupled_returns_keep_the_critic_unbiased():
    rewards, values = torch.tensor([[0.0, 0, 1]]), torch.tensor([[0.2, 0.4, 0.7]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    policy = returns.gae_advantages(rewards, values, mask, gamma=1.0, lam=0.95)
    target = returns.gae_returns(rewards, values, mask, gamma=1.0, lam=1.0)
    torch.testing.assert_close(policy, torch.tensor([[0.75575, 0.585, 0.3]]))
    torch.testing.assert_close(target, torch.ones(1, 3))


def test_results_are_detached():
    values = torch.zeros(1, 2, requires_grad=True)
    mask = torch.ones(1, 2, dtype=torch.bool)
    how = {"gamma": 1.0, "lam": 1.0}
    assert not returns.gae_advantages(torch.ones(1, 2), values, mask, **how).requires_grad
    assert not returns.gae_returns(torch.ones(1, 2), values, mask, **how).requires_grad


def test_length_adaptive_lambda_on_both_sides_of_one_over_alpha():
    got = returns.length_adaptive_lambda(torch.tensor([10, 20, 40]), alpha=0.05)
    assert got.tolist() == [0.0, 0.0, 0.5]
