"""Policy losses token by token: what is minimised so that good tokens become likelier.

Shapes: B completions, T tokens. ``ratio`` comes from `objectives.ratios` and carries the gradient;
``advantages`` are targets and are detached. Masked positions give exactly 0, whatever they hold;
their sum is for `objectives.weights`. Clipping never changes a denominator.
Sources: REINFORCE, Williams 1992; PPO, arXiv:1707.06347 eq. (7); dual clip, 1912.09729 eq. (5);
DAPO, 2503.14476 sec. 3.1 (two bounds); INTELLECT-2, 2505.07291 (cap on the free branch).
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posttrain.objectives.masking import select_trained

__all__ = [
    "capped_clipped_surrogate",
    "clipped_above",
    "clipped_below",
    "clipped_surrogate",
    "dual_capped",
    "dual_clipped_surrogate",
    "policy_gradient",
    "unclipped_surrogate",
]


def policy_gradient(
    policy_logprobs: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """-A log pi(y_t): REINFORCE, on policy. The value means nothing, only the gradient does."""
    advantage = select_trained(advantages.detach(), loss_mask)
    return -advantage * select_trained(policy_logprobs, loss_mask)


def unclipped_surrogate(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """-A r: importance weighting without a trust region."""
    advantage = select_trained(advantages.detach(), loss_mask)
    return -advantage * select_trained(ratio, loss_mask, fill=1.0)


def clipped_surrogate(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    clip_low: float,
    clip_high: float,
) -> Float[Tensor, "B T"]:
    """-min(A r, A clip(r, 1 - clip_low, 1 + clip_high)); slope exactly 0 where a bound holds."""
    advantage = select_trained(advantages.detach(), loss_mask)
    free = select_trained(ratio, loss_mask, fill=1.0)
    bounded = free.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(free * advantage, bounded * advantage)


def dual_clipped_surrogate(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    clip_low: float,
    clip_high: float,
    ceiling: float,
) -> Float[Tensor, "B T"]:
    """The clipped surrogate, and for A < 0 never more than -A * `ceiling` (> 1).

    Without it a token the policy has made much likelier, and that proved bad, has no bound.

    Source: arXiv:1912.09729 eq. (5).
    """
    loss = clipped_surrogate(ratio, advantages, loss_mask, clip_low=clip_low, clip_high=clip_high)
    highest = -select_trained(advantages.detach(), loss_mask) * ceiling
    return torch.where((highest > 0) & (loss > highest), highest, loss)


def capped_clipped_surrogate(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    clip_low: float,
    clip_high: float,
    cap: float,
) -> Float[Tensor, "B T"]:
    """-min(A min(r, cap), A clip(r)); `cap` above 1 + clip_high, or it moves the other side too.

    Source: INTELLECT-2, arXiv:2505.07291 (two-sided clipping, cap 4).
    """
    advantage = select_trained(advantages.detach(), loss_mask)
    free = select_trained(ratio, loss_mask, fill=1.0)
    bounded = free.clamp(1.0 - clip_low, 1.0 + clip_high)
    return -torch.minimum(free.clamp(max=cap) * advantage, bounded * advantage)


def clipped_above(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    clip_high: float,
) -> Bool[Tensor, "B T"]:
    """Trained tokens whose upper clipped branch is taken: A > 0 and r > 1 + clip_high."""
    return loss_mask & (advantages > 0) & (ratio > 1.0 + clip_high)


def clipped_below(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    clip_low: float,
) -> Bool[Tensor, "B T"]:
    """Trained tokens whose lower clipped branch is taken: A < 0 and r < 1 - clip_low."""
    return loss_mask & (advantages < 0) & (ratio < 1.0 - clip_low)


def dual_capped(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    ceiling: float,
) -> Bool[Tensor, "B T"]:
    """Trained tokens held by the ceiling of `dual_clipped_surrogate`: A < 0 and r > ceiling."""
    return loss_mask & (advantages < 0) & (ratio > ceiling)
