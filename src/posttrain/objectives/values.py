"""Losses of a learned value.

Shapes: B completions, T tokens. ``values`` carries the gradient; ``returns`` come from
`objectives.returns.gae_returns` and are detached. Masked positions give 0.
Source: PPO as in InstructGPT, arXiv:2203.02155.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posttrain.objectives.masking import masked_mean, select_trained

__all__ = ["clipped_value_loss", "explained_variance", "value_loss"]


def value_loss(
    values: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """(V - G)^2 / 2."""
    target = select_trained(returns.detach(), loss_mask)
    return 0.5 * (select_trained(values, loss_mask) - target).square()


def clipped_value_loss(
    values: Float[Tensor, "B T"],
    old_values: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    clip: float,
) -> Float[Tensor, "B T"]:
    """The larger of the losses of V and of V held within `clip` of its value at rollout time."""
    old = select_trained(old_values.detach(), loss_mask)
    held = torch.clamp(select_trained(values, loss_mask), old - clip, old + clip)
    free = value_loss(values, returns, loss_mask)
    return torch.maximum(free, value_loss(held, returns, loss_mask))


def explained_variance(
    values: Float[Tensor, "B T"],
    returns: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, ""]:
    """1 - Var(G - V) / Var(G) over trained tokens: 1 is perfect, 0 no better than a constant.

    NaN when the returns do not vary: then there is nothing to explain.
    """

    def variance(x: Float[Tensor, "B T"]) -> Float[Tensor, ""]:
        return masked_mean((x - masked_mean(x, loss_mask)).square(), loss_mask)

    total = variance(returns.detach())
    left = variance((returns - values).detach())
    return torch.where(total > 0, 1.0 - left / total, torch.nan)
