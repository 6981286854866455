from __future__ import annotations

import torch

from posttrain.objectives.imitation import cross_entropy


def test_cross_entropy_value_and_gradient():
    logprobs = torch.tensor([[-0.5, float("nan"), -2.0]], requires_grad=True)
    loss = cross_entropy(logprobs, torch.tensor([[True, False, True]]))
    assert loss.tolist() == [[0.5, 0.0, 2.0]]
    loss.sum().backward()
    assert logprobs.grad.tolist() == [[-1.0, 0.0, -1.0]]
