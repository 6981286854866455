"""Losses for tokens that are given rather than judged.

Shapes: B completions, T tokens. Masked positions give 0.
"""

from __future__ import annotations

from jaxtyping import Bool, Float
from torch import Tensor

from posttrain.objectives.masking import select_trained

__all__ = ["cross_entropy"]


def cross_entropy(
    policy_logprobs: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """-log pi(y_t), whoever wrote the token: warm starts, best-of-n, the positive-example term."""
    return -select_trained(policy_logprobs, loss_mask)
