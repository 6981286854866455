"""Log-probability of chosen tokens and entropy, from logits.

Shapes: V vocabulary, ``*rows`` any leading axes (B completions and T tokens, or a chunk of them).
Everything is in float32 or wider: log-softmax in half precision loses what a ratio is made of.
``temperature`` is the one the tokens were sampled with. A logit of -inf rules a token out.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = [
    "entropy_from_logits",
    "kept_log_mass",
    "renormalised_logprobs",
    "token_logprobs",
    "widened",
]


def widened(logits: Float[Tensor, "*rows V"]) -> Float[Tensor, "*rows V"]:
    """The same numbers in float32, or as they are if they have more."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def token_logprobs(
    logits: Float[Tensor, "*rows V"], token_ids: Int[Tensor, "*rows"], *, temperature: float = 1.0
) -> Float[Tensor, "*rows"]:
    """Log-softmax of logits / temperature at the given tokens; row t predicts token t."""
    scaled = widened(logits) / temperature
    chosen = scaled.gather(-1, token_ids.unsqueeze(-1)).squeeze(-1)
    return chosen - scaled.logsumexp(dim=-1)


def entropy_from_logits(
    logits: Float[Tensor, "*rows V"], *, temperature: float = 1.0
) -> Float[Tensor, "*rows"]:
    """H = -sum_v p log p in nats over the whole vocabulary, with its gradient through p.

    As a bonus, H is *subtracted* from the loss. -log p of the sampled token has the same mean but
    no gradient in expectation, so it is no substitute.
    """
    log_p = (widened(logits) / temperature).log_softmax(dim=-1)
    possible = log_p > -torch.inf
    safe = torch.where(possible, log_p, 0.0)
    return -torch.where(possible, safe.exp() * safe, 0.0).sum(dim=-1)


def kept_log_mass(
    logits: Float[Tensor, "*rows V"], kept: Bool[Tensor, "*rows V"], *, temperature: float = 1.0
) -> Float[Tensor, "*rows"]:
    """Log of the probability that top-p or top-k sampling kept at each position."""
    scaled = widened(logits) / temperature
    return scaled.masked_fill(~kept, -torch.inf).logsumexp(dim=-1) - scaled.logsumexp(dim=-1)


def renormalised_logprobs(
    logprobs: Float[Tensor, "*rows"], log_mass: Float[Tensor, "*rows"]
) -> Float[Tensor, "*rows"]:
    """Log-probs over the kept tokens alone: log p - log(kept mass).

    An engine that samples from a nucleus and reports what it drew from reports these; comparing
    them with log-probs over the whole vocabulary puts the mass into every ratio.
    """
    return logprobs - log_mass
