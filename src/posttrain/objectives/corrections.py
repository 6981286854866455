"""Weights for tokens that another policy drew: stale weights, other kernels, lower precision.

Shapes: B completions, T tokens. ``log_ratio`` is `objectives.ratios.behaviour_log_ratio`: the
trainer's policy before the update over the one that sampled. Weights are detached, 0 on masked
positions, multiply the policy loss alone, and leave every denominator as it is. The exact weight is
the product of the ratios up to each token. A token's own ratio is biased with a low variance, the
product over the row unbiased with a high one; the geometric mean measures drift at any length.
Sources: truncation, Ionides 2008; double-sided masking, IcePop, arXiv:2510.18855.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from posttrain.objectives.masking import row_sum, select_trained, spread_over_tokens

__all__ = [
    "masked_weight",
    "outside",
    "row_mean_log_ratio",
    "row_sum_log_ratio",
    "truncated_weight",
]


def row_sum_log_ratio(
    log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """The row's summed log-ratio on each of its trained tokens: the log of the product."""
    return spread_over_tokens(row_sum(log_ratio.detach(), loss_mask), loss_mask)


def row_mean_log_ratio(
    log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """The row's mean log-ratio on each of its trained tokens: the log of the geometric mean."""
    num_tokens = loss_mask.sum(dim=-1).clamp(min=1)
    return spread_over_tokens(row_sum(log_ratio.detach(), loss_mask) / num_tokens, loss_mask)


def truncated_weight(
    ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], *, cap: float
) -> Float[Tensor, "B T"]:
    """min(ratio, `cap`). There is no floor: one would raise tokens the sampler liked too much."""
    return select_trained(ratio.detach(), loss_mask).clamp(max=cap)


def masked_weight(
    ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], *, low: float, high: float
) -> Float[Tensor, "B T"]:
    """The ratio if it lies in [`low`, `high`], both included, else 0.

    Source: IcePop, arXiv:2510.18855 (0.5 and 5, token by token).
    """
    dropped = outside(ratio, loss_mask, low=low, high=high)
    return select_trained(ratio.detach(), loss_mask).masked_fill(dropped, 0.0)


def outside(
    ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], *, low: float, high: float
) -> Bool[Tensor, "B T"]:
    """Trained tokens whose ratio is below `low` or above `high`; their share is to be logged."""
    return loss_mask & ((ratio < low) | (ratio > high))
