"""How tokens are averaged: a weight for each, so that loss = sum(weight * token loss).

Shapes: B completions, T tokens. Denominators are counts over the *whole optimiser step*, all
micro-batches and ranks: pass them in, and the losses of the parts add up to the loss of the whole.
Left out, they are counted from this mask, which is right only when it is the whole step. A row
without trained tokens counts nowhere; a mask without any gives weights of 0. One tensor of weights
serves the policy, KL and entropy terms alike.
Sources: GRPO, arXiv:2402.03300 eq. (3); DAPO, 2503.14476 sec. 3.3; Dr. GRPO, 2503.20783 sec. 3.1;
Delta-L, 2509.07558.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posttrain.errors import ConfigError

__all__ = [
    "Count",
    "constant_length",
    "delta_l",
    "delta_l_total",
    "per_rollout",
    "sequence_mean",
    "sequence_sum",
    "token_mean",
    "token_sum",
    "trained_rows",
    "weighted_sum",
]

Count = int | float | Tensor
"""A count of the whole step: a number, or a scalar tensor as it comes from an all-reduce."""


def weighted_sum(
    token_losses: Float[Tensor, "B T"], weights: Float[Tensor, "B T"]
) -> Float[Tensor, ""]:
    """The loss. A NaN under weight 0 is not read; one on a weighted token makes the loss NaN."""
    return (weights * torch.where(weights != 0, token_losses, 0.0)).sum()


def trained_rows(loss_mask: Bool[Tensor, "B T"]) -> Int[Tensor, ""]:
    """Number of rows with at least one trained token: this part's share of `num_rows`."""
    return loss_mask.any(dim=-1).sum()


def token_sum(loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, "B T"]:
    """Weight 1 for every trained token."""
    return loss_mask.float()


def token_mean(
    loss_mask: Bool[Tensor, "B T"], *, num_tokens: Count | None = None
) -> Float[Tensor, "B T"]:
    """Every trained token of the step counts the same."""
    return _over(loss_mask.float(), loss_mask.sum() if num_tokens is None else num_tokens)


def sequence_mean(
    loss_mask: Bool[Tensor, "B T"], *, num_rows: Count | None = None
) -> Float[Tensor, "B T"]:
    """Mean over rows of each row's token mean: a token of a long row counts for less."""
    within = _over(loss_mask.float(), loss_mask.sum(dim=-1, keepdim=True))
    return _over(within, trained_rows(loss_mask) if num_rows is None else num_rows)


def sequence_sum(
    loss_mask: Bool[Tensor, "B T"], *, num_rows: Count | None = None
) -> Float[Tensor, "B T"]:
    """Mean over rows of each row's token sum."""
    return _over(loss_mask.float(), trained_rows(loss_mask) if num_rows is None else num_rows)


def constant_length(
    loss_mask: Bool[Tensor, "B T"], *, length: int, num_rows: Count | None = None
) -> Float[Tensor, "B T"]:
    """Sum over (rows * `length`): a constant of the run, its token budget, never a batch width.

    Raises:
        ConfigError: `length` is not positive.
    """
    if length <= 0:
        raise ConfigError(
            f"length must be a positive number of tokens, got {length}. "
            "Take the largest number of tokens a completion may have in this run."
        )
    return sequence_sum(loss_mask, num_rows=num_rows) / length


def delta_l(
    loss_mask: Bool[Tensor, "B T"], *, alpha: float = 0.75, total: Count | None = None
) -> Float[Tensor, "B T"]:
    """Row weights L^-alpha / sum_j L_j^-alpha on every token of the row.

    Args:
        loss_mask: Trained tokens.
        alpha: 0 weighs all tokens alike, 1 all rows. Source: arXiv:2509.07558.
        total: The sum over all rows of the step: add up `delta_l_total` of its parts.
    """
    lengths = loss_mask.sum(dim=-1, keepdim=True).clamp(min=1).float()
    denominator = delta_l_total(loss_mask, alpha=alpha) if total is None else total
    return _over(loss_mask * lengths**-alpha, denominator)


def delta_l_total(loss_mask: Bool[Tensor, "B T"], *, alpha: float = 0.75) -> Float[Tensor, ""]:
    """Sum of L^-alpha over the rows with trained tokens: this part's share of `total`."""
    lengths = loss_mask.sum(dim=-1)
    return torch.where(lengths > 0, lengths.clamp(min=1).float() ** -alpha, 0.0).sum()


def per_rollout(
    loss_mask: Bool[Tensor, "B T"],
    rollout_ids: Int[Tensor, " B"],
    *,
    rollout_tokens: Int[Tensor, " B"] | None = None,
    num_rollouts: Count | None = None,
) -> Float[Tensor, "B T"]:
    """Each rollout counts the same, however many rows (turns, segments) it was cut into.

    With group ids in place of rollout ids: the token mean of each group, averaged over groups.

    Args:
        loss_mask: Trained tokens.
        rollout_ids: The rollout each row is a part of.
        rollout_tokens: For each row, the trained tokens of its *whole* rollout, rows of other
            micro-batches included. Needed with `num_rollouts` as soon as a rollout may be split.
        num_rollouts: Rollouts of the step with at least one trained token.
    """
    _, rollout = torch.unique(rollout_ids, return_inverse=True)
    row_tokens = loss_mask.sum(dim=-1)
    tokens_R = torch.zeros_like(row_tokens).index_add(0, rollout, row_tokens)  # by rollout
    if rollout_tokens is None:
        rollout_tokens = tokens_R[rollout]
    if num_rollouts is None:
        num_rollouts = (tokens_R > 0).sum()
    return _over(_over(loss_mask.float(), rollout_tokens.unsqueeze(-1)), num_rollouts)


def _over(shares: Float[Tensor, "B T"], count: Count) -> Float[Tensor, "B T"]:
    """Shares over a count that is 0 only where there is nothing to share."""
    denominator = torch.as_tensor(count, dtype=shares.dtype, device=shares.device)
    return torch.where(denominator > 0, shares / denominator, 0.0)
