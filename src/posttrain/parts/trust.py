"""Trust regions: how far a ratio may carry an update, as the loss of each token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from posttrain.errors import ConfigError
from posttrain.objectives.surrogates import (
    capped_clipped_surrogate,
    clipped_above,
    clipped_below,
    clipped_surrogate,
    dual_capped,
    dual_clipped_surrogate,
    unclipped_surrogate,
)
from posttrain.parts.tallies import Series


class TrustRegion(ABC):
    """The policy loss of each token from its ratio and its advantage."""

    @abstractmethod
    def __call__(
        self,
        ratio: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """Losses, to be minimised; 0 where nothing is trained."""

    @abstractmethod
    def series(
        self,
        ratio: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
    ) -> dict[str, Series]:
        """How often each bound holds, by metric name."""


@dataclass(frozen=True, slots=True)
class Unconstrained(TrustRegion):
    """No trust region: one update a batch, or a ratio that only corrects."""

    @override
    def __call__(
        self,
        ratio: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """-A r."""
        return unclipped_surrogate(ratio, advantages, loss_mask)

    @override
    def series(
        self,
        ratio: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
    ) -> dict[str, Series]:
        """Nothing: there is no bound."""
        return {}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClippedRatio(TrustRegion):
    """Hold each ratio in [1 - low, 1 + high]. Source: PPO, arXiv:1707.06347 eq. (7)."""

    low: float = 0.2
    """Distance below 1, in (0, 1]. Source: PPO's 0.2."""

    high: float = 0.2
    """Distance above 1, > 0. Source: PPO's 0.2; DAPO uses 0.28."""

    def __post_init__(self) -> None:
        _check_bounds(self, self.low, self.high)

    @override
    def __call__(
        self,
        ratio: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """-min(A r, A clip(r))."""
        return clipped_surrogate(
            ratio, advantages, loss_mask, clip_low=self.low, clip_high=self.high
        )

    @override
    def series(
        self,
        ratio: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
    ) -> dict[str, Series]:
        """Shares of tokens held from below, from above, and either."""
        return _clip_series(ratio, advantages, loss_mask, low=self.low, high=self.high)


@dataclass(frozen=True, slots=True, kw_only=True)
class DualClip(TrustRegion):
    """The clipped ratio, and for A < 0 never more loss than -A ceiling.

    Source: dual-clip PPO, arXiv:1912.09729 eq. (5).
    """

    low: float = 0.2
    """Distance below 1, in (0, 1]. Source: PPO's 0.2."""

    high: float = 0.2
    """Distance above 1, > 0. Source: PPO's 0.2."""

    ceiling: float = 3.0
    """Largest ratio that counts for A < 0, > 1 + high. Source: the paper's 3."""

    def __post_init__(self) -> None:
        _check_bounds(self, self.low, self.high)
        _check_above(self, "ceiling", self.ceiling, self.high)

    @override
    def __call__(
        self,
        ratio: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """The clipped loss under its ceiling."""
        return dual_clipped_surrogate(
            ratio,
            advantages,
            loss_mask,
            clip_low=self.low,
            clip_high=self.high,
            ceiling=self.ceiling,
        )

    @override
    def series(
        self,
        ratio: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
    ) -> dict[str, Series]:
        """Shares of tokens held by each bound."""
        held = dual_capped(ratio, advantages, loss_mask, ceiling=self.ceiling)
        found = _clip_series(ratio, advantages, loss_mask, low=self.low, high=self.high)
        return {**found, "clip_ratio/dual_mean": ("mean", held.float())}


@dataclass(frozen=True, slots=True, kw_only=True)
class CappedClip(TrustRegion):
    """The clipped ratio with a cap on the free branch. Source: INTELLECT-2, arXiv:2505.07291."""

    low: float = 0.2
    """Distance below 1, in (0, 1]. Source: the paper's 0.2."""

    high: float = 0.2
    """Distance above 1, > 0. Source: the paper's 0.2."""

    cap: float = 4.0
    """Largest ratio of the free branch, > 1 + high. Source: the paper's 4."""

    def __post_init__(self) -> None:
        _check_bounds(self, self.low, self.high)
        _check_above(self, "cap", self.cap, self.high)

    @override
    def __call__(
        self,
        ratio: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
    ) -> Float[Tensor, "B T"]:
        """-min(A min(r, cap), A clip(r))."""
        return capped_clipped_surrogate(
            ratio, advantages, loss_mask, clip_low=self.low, clip_high=self.high, cap=self.cap
        )

    @override
    def series(
        self,
        ratio: Float[Tensor, "B T"],
        advantages: Float[Tensor, "B T"],
        loss_mask: Bool[Tensor, "B T"],
    ) -> dict[str, Series]:
        """Shares of tokens held by each bound."""
        held = dual_capped(ratio, advantages, loss_mask, ceiling=self.cap)
        found = _clip_series(ratio, advantages, loss_mask, low=self.low, high=self.high)
        return {**found, "clip_ratio/dual_mean": ("mean", held.float())}


def _clip_series(
    ratio: Float[Tensor, "B T"],
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    low: float,
    high: float,
) -> dict[str, Series]:
    below = clipped_below(ratio, advantages, loss_mask, clip_low=low)
    above = clipped_above(ratio, advantages, loss_mask, clip_high=high)
    return {
        "clip_ratio/low_mean": ("mean", below.float()),
        "clip_ratio/high_mean": ("mean", above.float()),
        "clip_ratio/region_mean": ("mean", torch.logical_or(below, above).float()),
    }


def _check_bounds(part: TrustRegion, low: float, high: float) -> None:
    name = type(part).__name__
    if not 0.0 < low <= 1.0:
        raise ConfigError(
            f"{name}.low must be in (0, 1], got {low}. It is the distance below 1 (0.2 keeps "
            "ratios >= 0.8), not the bound itself."
        )
    if not high > 0.0:
        raise ConfigError(
            f"{name}.high must be > 0, got {high}. It is the distance above 1 (0.28 keeps "
            "ratios <= 1.28), not the bound itself."
        )


def _check_above(part: TrustRegion, field: str, value: float, high: float) -> None:
    if not value > 1.0 + high:
        raise ConfigError(
            f"{type(part).__name__}.{field} must be > 1 + high = {1.0 + high:g}, got {value}. It "
            "bounds ratios beyond the clipped range; a smaller one would move the other side."
        )
