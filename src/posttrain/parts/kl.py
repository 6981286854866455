"""KL estimators that are right as a loss, or that published methods use as one.

k1 is not among them: as a loss it has no gradient in expectation; its place is the reward
(`parts.kl_reward`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from posttrain.objectives.kl import (
    kl_k2,
    kl_k3,
    kl_k3_straight_through,
    kl_k3_weighted,
)
from posttrain.objectives.ratios import bounded_exp, token_log_ratio
from posttrain.parts.reading import ROLLOUT, trained_column
from posttrain.types.term import TokenBatch


class KLEstimator(ABC):
    """KL(policy, reference) from the sampled token."""

    @property
    def reads(self) -> frozenset[str]:
        """Columns beside the reference's."""
        return frozenset()

    @abstractmethod
    def __call__(
        self,
        batch: TokenBatch,
        policy_logprobs: Float[Tensor, "B T"],
        ref_logprobs: Float[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """Penalty of each token, with gradient."""


@dataclass(frozen=True, slots=True)
class K2(KLEstimator):
    """Half the squared log-ratio: on policy its gradient is the KL's. arXiv:2510.01555."""

    @override
    def __call__(
        self,
        batch: TokenBatch,
        policy_logprobs: Float[Tensor, "B T"],
        ref_logprobs: Float[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """d^2 / 2."""
        return kl_k2(policy_logprobs, ref_logprobs, batch.loss_mask)


@dataclass(frozen=True, slots=True)
class K3(KLEstimator):
    """exp(-d) - 1 + d: unbiased value, gradient of KL(reference, policy). GRPO's own."""

    @override
    def __call__(
        self,
        batch: TokenBatch,
        policy_logprobs: Float[Tensor, "B T"],
        ref_logprobs: Float[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """exp(-d) - 1 + d."""
        return kl_k3(policy_logprobs, ref_logprobs, batch.loss_mask)


@dataclass(frozen=True, slots=True)
class K3StraightThrough(KLEstimator):
    """The value of k3 with the gradient of k2."""

    @override
    def __call__(
        self,
        batch: TokenBatch,
        policy_logprobs: Float[Tensor, "B T"],
        ref_logprobs: Float[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """k3 + k2 - detached k2."""
        return kl_k3_straight_through(policy_logprobs, ref_logprobs, batch.loss_mask)


@dataclass(frozen=True, slots=True, kw_only=True)
class K3Weighted(KLEstimator):
    """The policy's ratio times k3: value and gradient unbiased also for older tokens.

    Source: DeepSeek-V3.2, arXiv:2512.02556.
    """

    against: str = "old_logprobs"
    """Column the ratio is taken against."""

    @property
    @override
    def reads(self) -> frozenset[str]:
        """The column, unless every batch has it."""
        return frozenset({self.against} - {ROLLOUT})

    @override
    def __call__(
        self,
        batch: TokenBatch,
        policy_logprobs: Float[Tensor, "B T"],
        ref_logprobs: Float[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """The ratio times exp(-d) - 1 + d."""
        old = trained_column(batch, self.against)
        ratio = bounded_exp(token_log_ratio(policy_logprobs, old, batch.loss_mask))
        return kl_k3_weighted(ratio, policy_logprobs, ref_logprobs, batch.loss_mask)
