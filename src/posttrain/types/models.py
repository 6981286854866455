"""Models, their optimisers, and the seats they speak from."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from posttrain.errors import ConfigError

Precision = Literal["float32", "bfloat16", "float64"]


class LearningRate(ABC):
    """Multiplier of the learning rate by update; pure."""

    @abstractmethod
    def __call__(self, update: int) -> float:
        """The multiplier at update ``update``, counted from 0."""


@dataclass(frozen=True, slots=True)
class Constant(LearningRate):
    """The same rate throughout, after an optional linear warm-up."""

    warmup: int = 0
    """Updates over which the rate rises to its full value."""

    @override
    def __call__(self, update: int) -> float:
        """1 after the warm-up."""
        return min(1.0, (update + 1) / self.warmup) if self.warmup else 1.0


class Optimiser(ABC):
    """Makes the optimiser of one trained model."""

    lr: float
    schedule: LearningRate
    max_grad_norm: float

    @abstractmethod
    def build(self, parameters: Mapping[str, Tensor]) -> torch.optim.Optimizer:
        """An optimiser of the master weights, by parameter name, at the full rate ``lr``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamW(Optimiser):
    """AdamW on fp32 (or fp64) master weights."""

    lr: float = 1e-6
    """> 0."""
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    """>= 0; biases and norms are spared."""
    max_grad_norm: float = 1.0
    """Norm the gradient is scaled down to; 0 leaves it."""
    schedule: LearningRate = field(default_factory=Constant)

    def __post_init__(self) -> None:
        if not self.lr > 0.0:
            raise ConfigError(f"AdamW.lr must be > 0, got {self.lr}.")
        if self.weight_decay < 0.0 or self.max_grad_norm < 0.0:
            raise ConfigError(
                f"AdamW.weight_decay and .max_grad_norm must be >= 0, got {self.weight_decay} "
                f"and {self.max_grad_norm}."
            )

    @override
    def build(self, parameters: Mapping[str, Tensor]) -> torch.optim.Optimizer:
        """``torch.optim.AdamW``, weights of two or more axes decayed."""
        decayed = [p for p in parameters.values() if p.ndim >= 2]
        spared = [p for p in parameters.values() if p.ndim < 2]
        groups = [
            {"params": decayed, "weight_decay": self.weight_decay},
            {"params": spared, "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(
            [g for g in groups if g["params"]], lr=self.lr, betas=self.betas, eps=self.eps
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoRA:
    """A low-rank adapter; the base stays frozen."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj",
                                "down_proj")  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """A named set of weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained(ModelSpec):
    """A model with an optimiser."""

    path: str
    """A Hugging Face id, a folder, a GGUF file, or ``tiny`` for the embedded reasoner."""
    optimiser: Optimiser = field(default_factory=AdamW)
    compute: Precision = "bfloat16"
    """Precision of matrix products; master weights are float32 (float64 with float64)."""
    lora: LoRA | None = None
    head: Literal["lm", "scalar"] = "lm"
    gradient_checkpointing: bool = False
    template: str | None = None
    """A chat template, or a file of one, instead of the tokenizer's own."""
    init_seed: int = 0
    """Seed of weights that the path does not give (the tiny model, new heads, adapters)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Frozen(ModelSpec):
    """A model that is only scored or sampled: reference, teacher, opponent."""

    path: str | None = None
    """As ``Trained.path``; None copies ``of`` as it is when its phase begins."""
    of: str = "policy"
    compute: Precision = "bfloat16"
    template: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingAverage(ModelSpec):
    """decay * itself + (1 - decay) * ``of``, after each update of ``of``."""

    of: str = "policy"
    decay: float = 0.99

    def __post_init__(self) -> None:
        if not 0.0 <= self.decay < 1.0:
            raise ConfigError(f"MovingAverage.decay must be in [0, 1), got {self.decay}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """Which model speaks for a role."""

    model: str = "policy"
    system: str = ""
    """System message put before what the seat sees; empty for none."""
