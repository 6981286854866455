"""Aggregation: the weight of every token in a term, from counts of the whole optimiser step."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from posttrain.errors import ConfigError
from posttrain.objectives.weights import (
    constant_length,
    per_rollout,
    sequence_mean,
    sequence_sum,
    token_mean,
    token_sum,
)
from posttrain.types.term import Counts, TokenBatch


class Aggregation(ABC):
    """How token losses become one number: a weight for each of them."""

    @abstractmethod
    def __call__(self, batch: TokenBatch, counts: Counts) -> Float[Tensor, "B T"]:
        """Weights of the micro-batch's tokens; over the step they make the named mean."""


@dataclass(frozen=True, slots=True)
class TokenMean(Aggregation):
    """Every trained token of the step counts the same. Source: DAPO, arXiv:2503.14476."""

    @override
    def __call__(self, batch: TokenBatch, counts: Counts) -> Float[Tensor, "B T"]:
        """1 / trained tokens of the step."""
        return token_mean(batch.loss_mask, num_tokens=counts.tokens)


@dataclass(frozen=True, slots=True)
class SequenceMean(Aggregation):
    """Mean over rows of each row's token mean. Source: GRPO, arXiv:2402.03300 eq. (3)."""

    @override
    def __call__(self, batch: TokenBatch, counts: Counts) -> Float[Tensor, "B T"]:
        """1 / (rows of the step * tokens of the row)."""
        return sequence_mean(batch.loss_mask, num_rows=counts.rows)


@dataclass(frozen=True, slots=True)
class SequenceSum(Aggregation):
    """Mean over rows of each row's token sum: the whole answer is one action."""

    @override
    def __call__(self, batch: TokenBatch, counts: Counts) -> Float[Tensor, "B T"]:
        """1 / rows of the step."""
        return sequence_sum(batch.loss_mask, num_rows=counts.rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstantLength(Aggregation):
    """Sum over rows times a constant length. Source: Dr. GRPO, arXiv:2503.20783 sec. 3.1."""

    length: int
    """Tokens a completion may have in this run, >= 1; never the width of a batch."""

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ConfigError(
                f"ConstantLength.length must be >= 1, got {self.length}. Take the largest number "
                "of tokens a completion may have, Decode.max_tokens."
            )

    @override
    def __call__(self, batch: TokenBatch, counts: Counts) -> Float[Tensor, "B T"]:
        """1 / (rows of the step * length)."""
        return constant_length(batch.loss_mask, length=self.length, num_rows=counts.rows)


@dataclass(frozen=True, slots=True)
class EpisodeMean(Aggregation):
    """Every episode counts the same, into however many rows its turns were cut."""

    @override
    def __call__(self, batch: TokenBatch, counts: Counts) -> Float[Tensor, "B T"]:
        """1 / (episodes of the step * tokens of the episode)."""
        return per_rollout(
            batch.loss_mask,
            batch.episode,
            rollout_tokens=batch.episode_tokens,
            num_rollouts=counts.episodes,
        )


@dataclass(frozen=True, slots=True)
class TokenSum(Aggregation):
    """Every trained token counts 1: the gradient grows with the batch."""

    @override
    def __call__(self, batch: TokenBatch, counts: Counts) -> Float[Tensor, "B T"]:
        """1."""
        return token_sum(batch.loss_mask)
