from __future__ import annotations

import pytest
import torch

from posttrain.errors import DataError
from posttrain.objectives import batch_advantages as batch

NAN = float("nan")


def test_batch_mean_and_std_leave_unscored_rows_out():
    rewards = torch.tensor([1.0, NAN, 4.0, 7.0])  # mean 4, sample std 3, population sqrt(6)
    assert batch.center_by_batch(rewards).tolist() == [-3, 0, 0, 3]
    assert batch.standardise_by_batch(rewards).tolist() == [-1, 0, 0, 1]
    population = batch.standardise_by_batch(rewards, ddof=0)
    assert population.tolist() == pytest.approx([-(1.5**0.5), 0, 0, 1.5**0.5])


def test_running_baseline():
    first = batch.exponential_mean(None, torch.tensor([1.0, NAN, 3.0]), decay=0.9)
    assert first == 2.0
    assert batch.exponential_mean(first, torch.tensor([4.0]), decay=0.75) == 2.5
    assert batch.exponential_mean(first, torch.tensor([NAN]), decay=0.75) == 2.0
    assert batch.exponential_mean(None, torch.tensor([NAN]), decay=0.75) is None


def test_group_centring_over_the_std_of_raw_rewards():
    rewards = torch.tensor([0.0, 2.0, 10.0, NAN, 12.0])  # raw mean 6, squares 104, std sqrt(104/3)
    got = batch.center_over_batch_std(rewards, torch.tensor([0, 0, 1, 1, 1]))
    unit = (3 / 104) ** 0.5
    assert got.tolist() == pytest.approx([-unit, unit, -unit, 0, unit])


def test_centred_advantages_are_standardised_over_scored_rows_only():
    rewards = torch.tensor([0.0, 2.0, 1.0, NAN, 5.0])  # centred -1 1 -2 . 2, squares 10
    got = batch.center_then_standardise(rewards, torch.tensor([0, 0, 1, 1, 1]))
    std = (10 / 3) ** 0.5
    assert got.tolist() == pytest.approx([-1 / std, 1 / std, -2 / std, 0, 2 / std])


def test_each_reward_has_its_own_scale():
    correct, shape = [1.0, 0, 0, 1], [0.0, 1, 0, 1]
    ids, weights = torch.zeros(4, dtype=torch.long), torch.tensor([1.0, 1.0])
    got = batch.standardise_per_reward(torch.tensor([correct, shape]).T, weights, ids)
    assert got.tolist() == pytest.approx([0, 0, -(1.5**0.5), 1.5**0.5], abs=1e-5)
    scaled = torch.tensor([correct, shape]).T * torch.tensor([1.0, 100.0])
    torch.testing.assert_close(
        batch.standardise_per_reward(scaled, weights, ids), got, rtol=0, atol=1e-5
    )


def test_a_row_that_misses_a_weighted_reward_is_out_of_all():
    ids, weights = torch.zeros(4, dtype=torch.long), torch.tensor([1.0, 0.5])
    rewards = torch.tensor([[1.0, 0.0], [0.0, 1.0], [5.0, NAN], [0.0, 0.0]])
    without = batch.standardise_per_reward(rewards[[0, 1, 3]], weights, ids[:3])
    got = batch.standardise_per_reward(rewards, weights, ids)
    assert got[2] == 0
    torch.testing.assert_close(got[[0, 1, 3]], without)
    unused = batch.standardise_per_reward(rewards, torch.tensor([1.0, 0.0]), ids)
    assert unused[2] > 0


def test_whitening_weighs_tokens_and_ignores_masked_ones():
    values = torch.tensor([[3.0, 3.0, NAN], [0.0, 99.0, NAN]])
    mask = torch.tensor([[True, True, False], [True, False, False]])
    # tokens 3 3 0: mean 2, squares 1 1 4 = 6; variance 2 (ddof 0) or 3 (ddof 1)
    got = batch.whiten_tokens(values, mask, ddof=0)
    assert got.flatten().tolist() == pytest.approx([0.5**0.5, 0.5**0.5, 0, -(2**0.5), 0, 0])
    sample = batch.whiten_tokens(values, mask, ddof=1)
    assert sample.flatten().tolist() == pytest.approx([3**-0.5, 3**-0.5, 0, -2 * 3**-0.5, 0, 0])


def test_whitening_without_spread_or_tokens_gives_exact_zeros():
    mask = torch.tensor([[True] * 7, [False] * 7])
    assert not batch.whiten_tokens(torch.full((2, 7), 0.35), mask, eps=0.0).any()
    assert not batch.whiten_tokens(torch.full((2, 7), 0.35), ~mask & mask).any()


def test_process_rewards_are_pooled_within_a_group_and_summed_from_the_end():
    # group 0: rows 0 and 2, steps 1 3 | 5 -> mean 3, std 2 -> z -1 0 1; group 1: one step -> 0
    got = batch.process_advantages(
        torch.tensor([1.0, 3.0, 5.0, 9.0]),
        torch.tensor([0, 0, 2, 1]),
        torch.tensor([1, 3, 0, 2]),
        torch.tensor([0, 1, 0]),
        num_positions=5,
    )
    assert got.tolist() == [[-1, -1, 0, 0, 0], [0] * 5, [1, 0, 0, 0, 0]]


def test_steps_that_end_on_one_token_add_up():
    got = batch.process_advantages(
        torch.tensor([1.0, 2.0, 3.0]),
        torch.tensor([0, 1, 1]),
        torch.tensor([0, 1, 1]),
        torch.tensor([4, 4]),
        num_positions=3,
    )
    assert got.tolist() == [[-1, 0, 0], [1, 1, 0]]


@pytest.mark.parametrize("end", [5, -1])
def test_a_step_outside_the_completion_is_refused(end):
    with pytest.raises(DataError, match=rf"5 positions 0..4, got \[{end}\]"):
        batch.process_advantages(
            torch.tensor([1.0, 2.0]),
            torch.tensor([0, 0]),
            torch.tensor([1, end]),
            torch.tensor([0]),
            num_positions=5,
        )
