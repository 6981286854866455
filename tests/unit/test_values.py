from __future__ import annotations

import pytest
import torch

from posttrain.objectives.values import clipped_value_loss, explained_variance, value_loss

NAN = float("nan")
MASK = torch.tensor([[True, True, True, False]])


def test_squared_loss_and_slope():
    values = torch.tensor([[0.9, 2.0, 1.0, NAN]], requires_grad=True)
    returns = torch.tensor([[1.3, 1.0, 1.0, NAN]], requires_grad=True)
    loss = value_loss(values, returns, MASK)
    torch.testing.assert_close(loss, torch.tensor([[0.08, 0.5, 0.0, 0.0]]))
    loss.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[-0.4, 1.0, 0.0, 0.0]]))
    assert returns.grad is None


def test_the_larger_of_free_and_held():
    # old .5, clip .2: .9 is held at .7 (loss .18 > .08), .1 at .3 (free .72 > .5), .6 is free
    values = torch.tensor([[0.9, 0.1, 0.6, NAN]], requires_grad=True)
    old = torch.tensor([[0.5, 0.5, 0.5, NAN]])
    returns = torch.tensor([[1.3, 1.3, 1.0, NAN]])
    loss = clipped_value_loss(values, old, returns, MASK, clip=0.2)
    torch.testing.assert_close(loss, torch.tensor([[0.18, 0.72, 0.08, 0.0]]))
    loss.sum().backward()
    torch.testing.assert_close(values.grad, torch.tensor([[0.0, -1.2, -0.4, 0.0]]))


def test_explained_variance():
    returns = torch.tensor([[1.0, 2.0, 3.0, NAN]])
    assert explained_variance(returns + 5.0, returns, MASK).item() == pytest.approx(1.0)
    assert explained_variance(torch.zeros(1, 4), returns, MASK).item() == pytest.approx(0.0)
    off = torch.tensor([[2.0, 2.0, 2.5, NAN]])  # left -1 0 .5: variance 7/18; of returns 2/3
    assert explained_variance(off, returns, MASK).item() == pytest.approx(1 - 7 / 12)
    assert explained_variance(off, torch.ones(1, 4), MASK).isnan()
