"""How much likelier the policy makes what was sampled: log-ratios at every level.

Shapes: B completions, T tokens, P groups. All functions return *log*-ratios; `bounded_exp` turns
them into ratios and `beyond_bound` says where its bound bites. Token-level results are 0 (ratio 1)
on masked positions, which may hold NaN. The policy carries the gradient; every other log-prob is
detached. A sequence-level log-ratio is one number a row: `masking.spread_over_tokens` puts it on
the tokens.
Sources: PPO, arXiv:1707.06347; GSPO, 2507.18071; CTPO, 2605.07331; MinPRO, 2601.22718; GEPO,
2508.17850.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posttrain.objectives.groups import group_mean
from posttrain.objectives.masking import row_sum, select_trained

__all__ = [
    "behaviour_log_ratio",
    "beyond_bound",
    "bounded_exp",
    "group_expectation_log_ratio",
    "prefix_log_ratio",
    "prefix_min_log_ratio",
    "sequence_log_ratio",
    "sequence_mean_log_ratio",
    "sequence_token_log_ratio",
    "token_log_ratio",
]


def token_log_ratio(
    policy_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Log pi(y_t) - log pi_old(y_t)."""
    policy = select_trained(policy_logprobs, loss_mask)
    return policy - select_trained(old_logprobs.detach(), loss_mask)


def behaviour_log_ratio(
    old_logprobs: Float[Tensor, "B T"],
    rollout_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Log pi_old(y_t) - log mu(y_t): the trainer's forward against the engine that sampled."""
    return token_log_ratio(old_logprobs, rollout_logprobs, loss_mask).detach()


def sequence_log_ratio(
    policy_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, " B"]:
    """Log of the product of the row's token ratios; 0 for a row without trained tokens."""
    return token_log_ratio(policy_logprobs, old_logprobs, loss_mask).sum(dim=-1)


def sequence_mean_log_ratio(
    policy_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, " B"]:
    """Log of the geometric mean of the row's token ratios.

    Source: GSPO, arXiv:2507.18071 eq. (7).
    """
    total = sequence_log_ratio(policy_logprobs, old_logprobs, loss_mask)
    return total / loss_mask.sum(dim=-1).clamp(min=1)


def sequence_token_log_ratio(
    policy_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """The value of `sequence_mean_log_ratio` on each token, with that token's own gradient.

    Source: GSPO-token, arXiv:2507.18071 eq. (14).
    """
    mean = sequence_mean_log_ratio(policy_logprobs, old_logprobs, loss_mask).detach()
    policy = select_trained(policy_logprobs, loss_mask)
    return select_trained(mean.unsqueeze(-1) + policy - policy.detach(), loss_mask)


def prefix_log_ratio(
    policy_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Log of the product of the token ratios up to and including t; gradient of token t alone.

    The part before t is detached: with it, token j would collect a gradient from every later token.

    Source: CTPO, arXiv:2605.07331.
    """
    log_ratio = token_log_ratio(policy_logprobs, old_logprobs, loss_mask)
    before = log_ratio.detach().cumsum(dim=-1) - log_ratio.detach()
    return select_trained(before + log_ratio, loss_mask)


def prefix_min_log_ratio(
    policy_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """Log of (smallest token ratio before t, detached) * (ratio at t); the first has no factor.

    Source: MinPRO, arXiv:2601.22718; what is detached is this library's choice.
    """
    log_ratio = token_log_ratio(policy_logprobs, old_logprobs, loss_mask)
    seen = select_trained(log_ratio.detach(), loss_mask, fill=torch.inf)
    before = torch.nn.functional.pad(seen, (1, 0), value=torch.inf)[:, :-1]
    lowest = before.cummin(dim=-1).values
    return log_ratio + torch.where(loss_mask & torch.isfinite(lowest), lowest, 0.0)


def group_expectation_log_ratio(
    policy_logprobs: Float[Tensor, "B T"],
    old_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    group_ids: Int[Tensor, " B"],
) -> Float[Tensor, " B"]:
    """Log of p_i / E with E = sum(q^2) / sum(q) over the group, p and q geometric mean token probs.

    Rows without trained tokens enter no E and get 0. A group must not be split between calls.

    Source: GEPO, arXiv:2508.17850.
    """
    num_tokens = loss_mask.sum(dim=-1)
    p = row_sum(policy_logprobs, loss_mask) / num_tokens.clamp(min=1)
    old = row_sum(old_logprobs.detach(), loss_mask) / num_tokens.clamp(min=1)
    q = torch.where(num_tokens > 0, old.exp(), torch.nan)
    expected = group_mean(q.square(), group_ids) / group_mean(q, group_ids)
    return torch.where(num_tokens > 0, p - torch.where(num_tokens > 0, expected, 1.0).log(), 0.0)


def bounded_exp(
    log_ratio: Float[Tensor, "*rows"], *, bound: float = 20.0
) -> Float[Tensor, "*rows"]:
    """Exponential of the log-ratio held in [-bound, bound]; no gradient where the bound holds.

    The bound keeps float32 finite and is far outside any trust region: count it (`beyond_bound`).
    """
    return log_ratio.clamp(-bound, bound).exp()


def beyond_bound(
    log_ratio: Float[Tensor, "*rows"], *, bound: float = 20.0
) -> Bool[Tensor, "*rows"]:
    """Where `bounded_exp` does not return the true ratio; its sum is the count to log."""
    return log_ratio.abs() > bound
