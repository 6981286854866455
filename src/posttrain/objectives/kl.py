"""How far the policy is from another model: estimates from the sampled token, and exact ones.

Shapes: B completions, T tokens, V vocabulary; ``*rows`` any leading axes, so that logits may come
in chunks of tokens. Estimators are of KL(policy, other) on tokens drawn from the policy, with
d = log pi - log pi_ref: k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d. The other model is detached,
masked positions give 0. All are non-negative but k1, and are *added* to the loss.
Which to use: k1 in the reward, or k2 as a loss, or the ratio times k3 as a loss have the gradient
of the KL; k1 as a loss has none in expectation; k3 as a loss has that of KL(other, policy).
Sources: Schulman 2020, "Approximating KL divergence"; arXiv:2510.01555; DeepSeek-V3.2, 2512.02556.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posttrain.objectives.entropy import widened
from posttrain.objectives.ratios import token_log_ratio

__all__ = [
    "generalised_jsd",
    "kl_beyond_bound",
    "kl_from_logits",
    "kl_k1",
    "kl_k2",
    "kl_k3",
    "kl_k3_straight_through",
    "kl_k3_weighted",
]


def kl_k1(
    policy_logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """d: unbiased, high variance; for the reward and for metrics, never as a loss."""
    return token_log_ratio(policy_logprobs, ref_logprobs, loss_mask)


def kl_k2(
    policy_logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """d^2 / 2: biased value, on policy the exact KL gradient."""
    return 0.5 * token_log_ratio(policy_logprobs, ref_logprobs, loss_mask).square()


def kl_k3(
    policy_logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    bound: float = 20.0,
) -> Float[Tensor, "B T"]:
    """exp(-d) - 1 + d: unbiased value, gradient of the other direction.

    d is held above -`bound`, so that exp stays finite when the policy has all but ruled out a token
    the reference likes. There the loss is constant; `kl_beyond_bound` counts how often.
    """
    log_ratio = token_log_ratio(policy_logprobs, ref_logprobs, loss_mask).clamp(min=-bound)
    return torch.expm1(-log_ratio) + log_ratio


def kl_k3_weighted(
    ratio: Float[Tensor, "B T"],
    policy_logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    bound: float = 20.0,
) -> Float[Tensor, "B T"]:
    """Ratio * k3 with a differentiable token ratio r: value and gradient (r d) both unbiased.

    Source: DeepSeek-V3.2, arXiv:2512.02556 (unbiased KL estimate).
    """
    safe_ratio = torch.where(loss_mask, ratio, 1.0)
    return safe_ratio * kl_k3(policy_logprobs, ref_logprobs, loss_mask, bound=bound)


def kl_k3_straight_through(
    policy_logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    bound: float = 20.0,
) -> Float[Tensor, "B T"]:
    """The value of k3 with the gradient of k2."""
    value = kl_k3(policy_logprobs, ref_logprobs, loss_mask, bound=bound).detach()
    carrier = kl_k2(policy_logprobs, ref_logprobs, loss_mask)
    return value + carrier - carrier.detach()


def kl_beyond_bound(
    policy_logprobs: Float[Tensor, "B T"],
    ref_logprobs: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    bound: float = 20.0,
) -> Bool[Tensor, "B T"]:
    """Trained tokens where `kl_k3` was held; its sum is the count to log."""
    return token_log_ratio(policy_logprobs, ref_logprobs, loss_mask).detach() < -bound


def kl_from_logits(
    logits_p: Float[Tensor, "*rows V"], logits_q: Float[Tensor, "*rows V"]
) -> Float[Tensor, "*rows"]:
    """KL(p, q) = sum_v p (log p - log q) over the whole vocabulary; gradient through both.

    Detach the teacher or reference. A token with p = 0 (a logit of -inf) adds 0; p > 0 where q = 0
    is infinite, as it should be.
    """
    log_p, log_q = widened(logits_p).log_softmax(dim=-1), widened(logits_q).log_softmax(dim=-1)
    return _kl(log_p, log_q)


def generalised_jsd(
    teacher_logits: Float[Tensor, "*rows V"],
    student_logits: Float[Tensor, "*rows V"],
    *,
    beta: float,
) -> Float[Tensor, "*rows"]:
    """Return beta KL(T, M) + (1 - beta) KL(S, M), M = beta T + (1 - beta) S, for 0 < beta < 1.

    It tends to 0 at both ends; there use `kl_from_logits(teacher, student)` (forward) or
    `kl_from_logits(student, teacher)` (reverse), which are other losses.

    Source: GKD, arXiv:2306.13649 eq. (4).
    """
    log_t = widened(teacher_logits).log_softmax(dim=-1)
    log_s = widened(student_logits).log_softmax(dim=-1)
    weights = log_t.new_tensor([beta, 1.0 - beta]).log()
    possible = torch.maximum(log_t, log_s) > -torch.inf  # logaddexp(-inf, -inf) has NaN gradients
    log_m = torch.logaddexp(
        torch.where(possible, log_t, 0.0) + weights[0],
        torch.where(possible, log_s, 0.0) + weights[1],
    )
    return beta * _kl(log_t, log_m) + (1.0 - beta) * _kl(log_s, log_m)


def _kl(log_p: Float[Tensor, "*rows V"], log_q: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows"]:
    possible = log_p > -torch.inf
    safe_p = torch.where(possible, log_p, 0.0)
    safe_q = torch.where(possible, log_q, 0.0)
    return torch.where(possible, safe_p.exp() * (safe_p - safe_q), 0.0).sum(dim=-1)
