from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from posttrain.objectives import advantages as adv

NAN = float("nan")
ESTIMATORS = {
    "center": adv.center_by_group,
    "standardise": adv.standardise_by_group,
    "leave_one_out": adv.leave_one_out,
    "leave_one_out_standardised": adv.leave_one_out_standardised,
    "best_minus_second": adv.best_minus_second,
    "center_over_mean": adv.center_over_mean,
    "center_by_length": lambda r, g: adv.center_by_length(r, g, torch.arange(1, len(r) + 1)),
}
GRID = [NAN, 0.1, 0.35, 1.0, -2.0]
every_estimator = pytest.mark.parametrize("estimate", ESTIMATORS.values(), ids=ESTIMATORS)


def one_group(rewards: list[float], dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    return torch.tensor(rewards, dtype=dtype), torch.zeros(len(rewards), dtype=torch.long)


def test_three_of_eight_correct():
    group = one_group([1, 1, 1, 0, 0, 0, 0, 0])
    # mean 3/8, squares 15/8; sample std sqrt(15/56), population std sqrt(15/64)
    sample = adv.standardise_by_group(*group)
    assert sample[[0, -1]].tolist() == pytest.approx([1.2076, -0.7246], abs=1e-4)
    population = adv.standardise_by_group(*group, ddof=0)
    assert population[[0, -1]].tolist() == pytest.approx([1.29099, -0.77460], abs=1e-4)
    loo = adv.leave_one_out(*group)
    assert loo[[0, -1]].tolist() == pytest.approx([5 / 7, -3 / 7])


def test_eps_is_added_to_the_std():
    got = adv.standardise_by_group(*one_group([1, 0, 0, 1]), ddof=0, eps=0.5)
    assert got.tolist() == pytest.approx([0.5, -0.5, -0.5, 0.5])  # 0.5 / (0.5 + 0.5)


@every_estimator
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("value", [0.35, 0.1, 1e6 / 3, -0.7])
def test_no_spread_gives_exact_zeros(estimate, dtype, value):
    for size in (1, 3, 7, 8):
        got = estimate(*one_group([value] * size, dtype))
        assert got.tolist() == [0.0] * size
    assert adv.standardise_by_group(*one_group([value] * 8), eps=0.0).tolist() == [0.0] * 8


@every_estimator
def test_unscored_rows_get_zero_and_change_nothing(estimate):
    rewards, ids = torch.tensor([2.0, NAN, 0.5, 1.0]), torch.tensor([4, 4, 4, 4])
    lengths = torch.tensor([0, 2, 3])
    if estimate is ESTIMATORS["center_by_length"]:
        scored = adv.center_by_length(rewards[[0, 2, 3]], ids[:3], torch.tensor([1, 3, 4]))
    else:
        scored = estimate(rewards[[0, 2, 3]], ids[lengths])
    got = estimate(rewards, ids)
    assert got[1] == 0.0
    torch.testing.assert_close(got[[0, 2, 3]], scored)
    assert estimate(torch.tensor([NAN, NAN, 1.0]), torch.tensor([0, 0, 1])).tolist() == [0.0] * 3


def test_unscored_member_worked_by_hand():
    group = one_group([1.0, NAN, 0.0, 1.0])  # mean 2/3; squares 2/3; std 0.57735 or 0.47140
    sample = adv.standardise_by_group(*group)
    assert sample.tolist() == pytest.approx([0.57735, 0, -1.15470, 0.57735], abs=1e-5)
    population = adv.standardise_by_group(*group, ddof=0)
    assert population.tolist() == pytest.approx([0.70711, 0, -1.41421, 0.70711], abs=1e-5)
    assert adv.leave_one_out(*group).tolist() == pytest.approx([0.5, 0, -1, 0.5])


def test_groups_are_taken_from_ids_in_any_order():
    got = adv.standardise_by_group(torch.tensor([1.0, 0, 0, 0]), torch.tensor([9, 2, 9, 2]))
    assert got.tolist() == pytest.approx([math.sqrt(0.5), 0, -math.sqrt(0.5), 0], abs=1e-5)


def test_a_tiny_spread_is_still_a_spread():
    rewards = torch.tensor([1.0, 1.00001, 2.0, 2.00001])
    ids = torch.tensor([0, 0, 1, 1])
    together = adv.standardise_by_group(rewards, ids)
    alone = torch.cat([adv.standardise_by_group(rewards[i : i + 2], ids[:2]) for i in (0, 2)])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-3)
    assert (together.sign() == torch.tensor([-1, 1, -1, 1])).all()
    torch.testing.assert_close(together[::2], -together[1::2], rtol=0, atol=1e-3)


def test_per_seat_scale_does_not_swamp():
    rewards = torch.tensor([100.0, 200.0, 0.0, -1.0])
    got = adv.standardise_by_group(rewards, torch.tensor([1, 1, 2, 2]))
    assert got.tolist() == pytest.approx([-0.70711, 0.70711, 0.70711, -0.70711], abs=1e-4)


def test_a_lone_success_stays_bounded_under_leave_one_out_with_std():
    got = adv.leave_one_out_standardised(*one_group([1, 0, 0, 0]))
    assert got.tolist() == pytest.approx([2.0, -2 / 3, -2 / 3, -2 / 3], abs=1e-4)  # loo / 0.5


def test_keys_split_groups():
    rewards = torch.tensor([1.0, 0.0, 4.0, 8.0, 5.0])
    got = adv.center_by_key(rewards, torch.tensor([0, 0, 0, 0, 1]), torch.tensor([0, 0, 1, 1, 1]))
    assert got.tolist() == [0.5, -0.5, -2.0, 2.0, 0.0]


def test_best_minus_second_on_two_groups_with_a_tie():
    rewards = torch.tensor([1.0, 3.0, 0.4, 3.0, 2.0])
    got = adv.best_minus_second(rewards, torch.tensor([0, 1, 0, 1, 1]))
    assert got.tolist() == pytest.approx([0.6, 0, 0, 0, 0])


def test_outside_baseline_for_each_row_or_all():
    rewards = torch.tensor([1.0, NAN, 0.25])
    assert adv.subtract_baseline(rewards, 0.5).tolist() == [0.5, 0.0, -0.25]
    greedy = torch.tensor([0.75, 0.5, 0.5])
    assert adv.subtract_baseline(rewards, greedy).tolist() == [0.25, 0.0, -0.25]


def test_log_mean_exp_lies_between_mean_and_best_and_does_not_overflow():
    rewards, ids = torch.tensor([0.0, 1.0, 500.0, NAN]), torch.tensor([0, 0, 1, 1])
    cold = adv.log_mean_exp_baseline(rewards, ids, tau=0.01)
    assert cold.tolist() == pytest.approx([1 - 0.01 * math.log(2)] * 2 + [500.0] * 2)
    hot = adv.log_mean_exp_baseline(rewards, ids, tau=1000.0)
    assert hot.tolist() == pytest.approx([0.5, 0.5, 500.0, 500.0], abs=1e-3)


def test_hard_groups_weigh_more():
    got = adv.difficulty_weighted(torch.tensor([2.0, -1.0]), torch.tensor([0.25, 0.25]))
    assert got.tolist() == pytest.approx([2 * 1.492638, -0.95], abs=1e-5)


@every_estimator
def test_advantages_are_detached(estimate):
    rewards = torch.tensor([1.0, 0.0, 2.0], requires_grad=True)
    assert not estimate(rewards, torch.tensor([0, 0, 0])).requires_grad


def test_length_weighted_baseline_worked_by_hand():
    rewards, lengths = torch.tensor([1.0, 0.0, 4.0]), torch.tensor([1, 3, 5])
    got = adv.center_by_length(rewards, torch.tensor([0, 0, 1]), lengths)  # b = 1 / 4
    assert got.tolist() == [0.75, -0.25, 0.0]
    none = adv.center_by_length(rewards, torch.tensor([0, 0, 1]), torch.zeros(3, dtype=torch.long))
    assert none.tolist() == [0.0, 0.0, 0.0]


def test_over_mean_worked_by_hand():
    rewards = torch.tensor([3.0, 1.0, -1.0, 1.0])
    got = adv.center_over_mean(rewards, torch.tensor([0, 0, 1, 1]))  # means 2 and 0
    assert got.tolist() == [0.5, -0.5, 0.0, 0.0]
