"""Ratios: how much likelier the policy makes a token than the policy it is compared with.

Each part gives a *log*-ratio on every token, [B, T], 0 where nothing is trained.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from posttrain.objectives.masking import spread_over_tokens
from posttrain.objectives.ratios import (
    prefix_log_ratio,
    prefix_min_log_ratio,
    sequence_log_ratio,
    sequence_mean_log_ratio,
    sequence_token_log_ratio,
    token_log_ratio,
)
from posttrain.parts.reading import ROLLOUT, trained_column, trained_policy
from posttrain.types.term import ModelOut, TokenBatch


class Ratio(ABC):
    """A log-ratio of the policy to the log-probs in a column."""

    against: str
    """Column compared with: ``old_logprobs`` (the trainer's own before the update) or
    ``rollout_logprobs`` (the engine's: the ratio then also corrects staleness and mismatch)."""

    @property
    def reads(self) -> frozenset[str]:
        """The column, unless every batch has it."""
        return frozenset({self.against} - {ROLLOUT, ""})

    @abstractmethod
    def __call__(self, batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"]:
        """Log-ratio of each token, with gradient."""


@dataclass(frozen=True, slots=True)
class NoRatio(Ratio):
    """The plain score function: -A log pi, right for tokens the policy has just drawn."""

    against = ""

    @override
    def __call__(self, batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"]:
        """The log-probs themselves, less their value: 0 with the policy's gradient."""
        policy = trained_policy(batch, model)
        return token_log_ratio(policy, policy.detach(), batch.loss_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRatio(Ratio):
    """Each token's own ratio. Source: PPO, arXiv:1707.06347; GRPO, 2402.03300."""

    against: str = "old_logprobs"
    """Column compared with."""

    @override
    def __call__(self, batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"]:
        """Log of pi over old, for each token."""
        policy, old = _both(self, batch, model)
        return token_log_ratio(policy, old, batch.loss_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceRatio(Ratio):
    """The product of the row's token ratios, on every token of the row."""

    against: str = "old_logprobs"
    """Column compared with."""

    @override
    def __call__(self, batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"]:
        """The row's summed log-ratio."""
        policy, old = _both(self, batch, model)
        return spread_over_tokens(sequence_log_ratio(policy, old, batch.loss_mask), batch.loss_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceMeanRatio(Ratio):
    """The geometric mean of the row's token ratios. Source: GSPO, arXiv:2507.18071 eq. (7)."""

    against: str = "old_logprobs"
    """Column compared with."""

    @override
    def __call__(self, batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"]:
        """The row's mean log-ratio."""
        policy, old = _both(self, batch, model)
        mean = sequence_mean_log_ratio(policy, old, batch.loss_mask)
        return spread_over_tokens(mean, batch.loss_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class SequenceTokenRatio(Ratio):
    """The row's geometric mean with each token's own gradient.

    Source: GSPO-token, arXiv:2507.18071 eq. (14).
    """

    against: str = "old_logprobs"
    """Column compared with."""

    @override
    def __call__(self, batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"]:
        """The row's mean log-ratio, detached, with the token's gradient."""
        policy, old = _both(self, batch, model)
        return sequence_token_log_ratio(policy, old, batch.loss_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixRatio(Ratio):
    """The product of the token ratios so far. Source: CTPO, arXiv:2605.07331."""

    against: str = "old_logprobs"
    """Column compared with."""

    @override
    def __call__(self, batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"]:
        """Summed log-ratio up to each token, the part before it detached."""
        policy, old = _both(self, batch, model)
        return prefix_log_ratio(policy, old, batch.loss_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixMinRatio(Ratio):
    """The token's ratio times the smallest before it. Source: MinPRO, arXiv:2601.22718."""

    against: str = "old_logprobs"
    """Column compared with."""

    @override
    def __call__(self, batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"]:
        """Log-ratio of each token plus the smallest log-ratio before it, that one detached."""
        policy, old = _both(self, batch, model)
        return prefix_min_log_ratio(policy, old, batch.loss_mask)


def _both(
    part: Ratio, batch: TokenBatch, model: ModelOut
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T"]]:
    return trained_policy(batch, model), trained_column(batch, part.against)
