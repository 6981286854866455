"""Behaviour corrections: a detached weight for tokens that another policy drew.

The weight is made of the ratio of the policy at the start of the update to the one that sampled:
older weights, other kernels, lower precision. It multiplies the policy loss alone, and leaves every
denominator as it is.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Literal, NamedTuple, TypeAlias, get_args

from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from posttrain.errors import ConfigError, nearest
from posttrain.objectives.corrections import (
    masked_weight,
    outside,
    row_mean_log_ratio,
    row_sum_log_ratio,
    truncated_weight,
)
from posttrain.objectives.ratios import bounded_exp

Level: TypeAlias = Literal["token", "sequence", "geometric"]
"""Each token's own ratio; the product over the row; its geometric mean over the row."""


class Corrected(NamedTuple):
    """Weights of a micro-batch's tokens."""

    weights: Float[Tensor, "B T"]
    """Detached; 0 where nothing is trained."""
    bounded: Bool[Tensor, "B T"]
    """Where a bound holds, so that the weight is not the ratio."""


class Correction(ABC):
    """A weight for each token from its log-ratio."""

    @abstractmethod
    def __call__(
        self, log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]
    ) -> Corrected | None:
        """Weights, or None for 1 everywhere."""


@dataclass(frozen=True, slots=True)
class Uncorrected(Correction):
    """Sampler and trainer are taken to be the same policy."""

    @override
    def __call__(
        self, log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]
    ) -> Corrected | None:
        """None."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class TruncatedWeight(Correction):
    """The ratio up to a cap. Source: truncated importance sampling, Ionides 2008."""

    cap: float = 2.0
    """Largest weight, >= 1. Source: flash-rl's and verl's 2."""

    level: Level = "token"
    """Token weights hide the drift of a whole row; row products have a high variance."""

    def __post_init__(self) -> None:
        _check_level(self, self.level)
        if not self.cap >= 1.0:
            raise ConfigError(
                f"TruncatedWeight.cap must be >= 1, got {self.cap}: below 1 it would shrink the "
                "update even where sampler and trainer agree."
            )

    @override
    def __call__(
        self, log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]
    ) -> Corrected | None:
        """The ratio up to the cap."""
        ratio = _at_level(log_ratio, loss_mask, self.level)
        held = outside(ratio, loss_mask, low=0.0, high=self.cap)
        return Corrected(truncated_weight(ratio, loss_mask, cap=self.cap), held)


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedWeight(Correction):
    """The ratio within [low, high], and 0 outside. Source: IcePop, arXiv:2510.18855."""

    low: float = 0.5
    """Smallest ratio kept, >= 0 and < 1; 0 masks from above only. Source: IcePop's 0.5."""

    high: float = 5.0
    """Largest ratio kept, > 1. Source: IcePop's 5."""

    level: Level = "token"
    """What the bounds hold for."""

    def __post_init__(self) -> None:
        _check_level(self, self.level)
        if not 0.0 <= self.low < 1.0 < self.high:
            raise ConfigError(
                f"MaskedWeight needs 0 <= low < 1 < high, got low={self.low} and "
                f"high={self.high}: a ratio of 1 must be kept."
            )

    @override
    def __call__(
        self, log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]
    ) -> Corrected | None:
        """The ratio where it is kept."""
        ratio = _at_level(log_ratio, loss_mask, self.level)
        weights = masked_weight(ratio, loss_mask, low=self.low, high=self.high)
        return Corrected(weights, outside(ratio, loss_mask, low=self.low, high=self.high))


def _at_level(
    log_ratio: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], level: Level
) -> Float[Tensor, "B T"]:
    """The ratio at a level, on every token."""
    if level == "sequence":
        return bounded_exp(row_sum_log_ratio(log_ratio, loss_mask))
    if level == "geometric":
        return bounded_exp(row_mean_log_ratio(log_ratio, loss_mask))
    return bounded_exp(log_ratio.detach())


def _check_level(part: Correction, level: str) -> None:
    if level not in get_args(Level):
        raise ConfigError(
            f"{type(part).__name__}.level knows {', '.join(get_args(Level))}; got {level!r}."
            f"{nearest(level, get_args(Level))}"
        )
