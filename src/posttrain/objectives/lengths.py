"""Penalties for running into the length limit.

Shapes: B completions. Lengths count the tokens a completion really has, never its padded width.
"""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from posttrain.errors import ConfigError

__all__ = ["soft_overlong"]


def soft_overlong(
    num_tokens: Int[Tensor, " B"], *, max_tokens: int, cache_tokens: int
) -> Float[Tensor, " B"]:
    """0 up to max - cache, then a straight line down to -1 at max, and -1 beyond.

    Added to the reward. Multiply by a coefficient for a gentler one (Magistral uses 0.1).

    Raises:
        ConfigError: unless 0 < `cache_tokens` <= `max_tokens`.

    Source: DAPO, arXiv:2503.14476 eq. (13).
    """
    if not 0 < cache_tokens <= max_tokens:
        raise ConfigError(
            f"cache_tokens must be in 1..max_tokens ({max_tokens}), got {cache_tokens}. "
            "It is the width of the zone before the limit in which the penalty grows."
        )
    excess = num_tokens.float() - (max_tokens - cache_tokens)
    return -(excess / cache_tokens).clamp(0.0, 1.0)
