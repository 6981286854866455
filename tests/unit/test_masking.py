from __future__ import annotations

import pytest
import torch

from posttrain.errors import NumericsError
from posttrain.objectives.masking import (
    masked_mean,
    require_finite,
    row_sum,
    select_trained,
    spread_over_tokens,
    without_truncated,
)

NAN = float("nan")


def test_nan_behind_the_mask_reaches_neither_value_nor_gradient():
    values = torch.tensor([[1.0, NAN, 3.0], [NAN, 5.0, 7.0]], requires_grad=True)
    mask = torch.tensor([[True, False, True], [False, True, False]])
    torch.testing.assert_close(
        select_trained(values, mask, fill=-1.0),
        torch.tensor([[1.0, -1.0, 3.0], [-1.0, 5.0, -1.0]]),
    )
    assert row_sum(values, mask).tolist() == [4.0, 5.0]
    mean = masked_mean(values.square(), mask)  # (1 + 9 + 25) / 3
    assert mean.item() == pytest.approx(35 / 3)
    masked_mean(select_trained(values, mask).square(), mask).backward()
    torch.testing.assert_close(values.grad, torch.tensor([[2 / 3, 0.0, 2.0], [0.0, 10 / 3, 0.0]]))


def test_mean_of_nothing_is_zero():
    nothing = torch.zeros(2, 3, dtype=torch.bool)
    assert masked_mean(torch.full((2, 3), NAN), nothing).item() == 0.0


def test_each_step_spreads_the_number_over_its_own_tokens():
    masks = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 1]]).bool()
    spread = spread_over_tokens(torch.tensor([0.5, 0.5]), masks)
    assert spread.tolist() == [[0.5, 0.5, 0, 0], [0, 0, 0, 0.5]]
    differing = spread_over_tokens(torch.tensor([2.0, -3.0]), masks)
    assert differing.tolist() == [[2.0, 2.0, 0, 0], [0, 0, 0, -3.0]]


def test_truncated_rows_leave_the_loss():
    mask = torch.tensor([[True, True, False], [True, False, False]])
    kept = without_truncated(mask, torch.tensor([False, True]))
    assert kept.tolist() == [[True, True, False], [False, False, False]]


def test_a_trained_nan_is_reported_with_its_place():
    values = torch.tensor([[NAN, 1.0, 2.0], [0.0, float("inf"), NAN]])
    mask = torch.tensor([[False, True, True], [True, True, True]])
    with pytest.raises(NumericsError, match=r"policy_logprobs .* 2 of 5 .* inf at row 1, token 1"):
        require_finite(values, mask, name="policy_logprobs")


def test_a_masked_nan_is_not_reported():
    values = torch.tensor([[NAN, 1.0]])
    require_finite(values, torch.tensor([[False, True]]), name="advantages")
