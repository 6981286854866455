import pytest
import torch

from posttrain.objectives.corrections import (
    masked_weight,
    outside,
    row_mean_log_ratio,
    row_sum_log_ratio,
    truncated_weight,
)

NAN = float("nan")
RATIO = torch.tensor([[0.3, 0.8, 1.0, 1.9], [4.0, 6.0, NAN, NAN]])
MASK = torch.tensor([[True] * 4, [True, True, False, False]])


def test_weights_of_six_tokens():
    capped = truncated_weight(RATIO, MASK, cap=2.0)
    torch.testing.assert_close(capped, torch.tensor([[0.3, 0.8, 1.0, 1.9], [2.0, 2.0, 0.0, 0.0]]))
    both = masked_weight(RATIO, MASK, low=0.5, high=5.0)
    torch.testing.assert_close(both, torch.tensor([[0.0, 0.8, 1.0, 1.9], [4.0, 0.0, 0.0, 0.0]]))
    above = masked_weight(RATIO, MASK, low=0.0, high=2.0)
    torch.testing.assert_close(above, torch.tensor([[0.3, 0.8, 1.0, 1.9], [0.0, 0.0, 0.0, 0.0]]))


def test_asymmetric_bounds_hold_for_the_ratio_and_not_its_inverse():
    ratio = torch.tensor([[0.59, 0.61, 1.59, 1.61, 0.65, 1.55]])
    mask = torch.ones(1, 6, dtype=torch.bool)
    found = outside(ratio, mask, low=0.6, high=1.6)
    assert found.tolist() == [[True, False, False, True, False, False]]


def test_levels_of_a_row():
    log_ratio = torch.tensor([[0.1, -0.1, 0.0], [-0.1, 0.5, NAN]], requires_grad=True)
    mask = torch.tensor([[True, True, True], [True, True, False]])
    total, mean = row_sum_log_ratio(log_ratio, mask), row_mean_log_ratio(log_ratio, mask)
    assert total.exp()[1, 0].item() == pytest.approx(1.491825, abs=1e-6)
    assert mean.exp()[1, 1].item() == pytest.approx(1.221403, abs=1e-6)
    assert total[0].tolist() == pytest.approx([0.0] * 3, abs=1e-7)
    assert total[1, 2].item() == 0.0
    assert not total.requires_grad
    assert not mean.requires_grad
