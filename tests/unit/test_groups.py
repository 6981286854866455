from __future__ import annotations

import pytest
import torch

from posttrain.objectives.groups import (
    group_mean,
    group_spread,
    joint_ids,
    outcomes_differ,
    weighted_rewards,
)

NAN = float("nan")


def test_mean_size_and_std_of_ragged_interleaved_groups():
    # group 7: 1, 3, 8 -> mean 4, deviations -3 -1 4, squares 26; group -2: 5, 6 -> mean 5.5
    rewards = torch.tensor([1.0, 5.0, 3.0, 6.0, 8.0])
    ids = torch.tensor([7, -2, 7, -2, 7])
    spread = group_spread(rewards, ids)
    assert spread.size.tolist() == [3, 2, 3, 2, 3]
    assert spread.mean.tolist() == [4, 5.5, 4, 5.5, 4]
    assert spread.centered.tolist() == [-3, -0.5, -1, 0.5, 4]
    sample, population = spread.std(ddof=1), spread.std(ddof=0)
    assert sample[:2].tolist() == pytest.approx([13**0.5, 0.5**0.5])
    assert population[:2].tolist() == pytest.approx([(26 / 3) ** 0.5, 0.5])


def test_unscored_rows_enter_no_statistic():
    spread = group_spread(torch.tensor([1.0, NAN, 0.0, 1.0]), torch.zeros(4, dtype=torch.long))
    assert spread.scored.tolist() == [True, False, True, True]
    assert spread.size.tolist() == [3] * 4
    assert spread.mean.tolist() == pytest.approx([2 / 3] * 4)
    assert spread.centered.tolist() == pytest.approx([1 / 3, 0, -2 / 3, 1 / 3])


def test_a_group_without_any_score_has_no_mean():
    means = group_mean(torch.tensor([NAN, 2.0, NAN]), torch.tensor([0, 1, 0]))
    assert means.isnan().tolist() == [True, False, True]
    assert means[1] == 2.0


def test_keep_follows_the_raw_outcome_and_the_whole_group():
    one_group = torch.zeros(4, dtype=torch.long)
    raw, shaped = torch.zeros(4), torch.tensor([-1.0, -1.0, -1.6, -2.0])
    assert not outcomes_differ(raw, one_group).any()
    assert outcomes_differ(shaped, one_group).all()
    eight = torch.tensor([0.0] + [0.95] * 7)
    assert int(outcomes_differ(eight, torch.full((8,), 3)).sum()) == 8
    mixed = outcomes_differ(torch.tensor([1.0, 1.0, 0.0, 1.0, NAN]), torch.tensor([5, 2, 5, 2, 2]))
    assert mixed.tolist() == [True, False, True, False, False]


def test_joint_ids_tell_combinations_apart():
    joint = joint_ids(torch.tensor([0, 0, 1, 1, 0]), torch.tensor([0, 1, 0, 1, 0]))
    assert joint[0] == joint[4]
    assert len(joint.unique()) == 4


def test_weighted_reward_ignores_what_has_no_weight_and_keeps_what_is_missing():
    rewards = torch.tensor([[1.0, 0.0, NAN], [0.5, NAN, 9.0]])
    total = weighted_rewards(rewards, torch.tensor([0.7, 0.3, 0.0]))
    assert total[0].item() == pytest.approx(0.7)
    assert total[1].isnan()
