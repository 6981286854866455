"""Models, their optimisers, and the seats they speak from."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from posttrain.errors import ConfigError

Precision = Literal["auto", "float32", "bfloat16", "float64"]
"""``auto`` is bfloat16 where the hardware multiplies it fast, else float32."""


def fast_precision(device: str) -> Literal["float32", "bfloat16"]:
    """bfloat16 on CUDA and on processors with instructions for it, else float32.

    Without such instructions (AVX2 alone) a bfloat16 matrix product is many times slower.
    """
    if device.startswith("cuda"):
        return "bfloat16"
    info = Path("/proc/cpuinfo")
    words = set(info.read_text().split()) if info.is_file() else set()
    return "bfloat16" if words & {"avx512_bf16", "amx_bf16", "bf16"} else "float32"


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
        return _risen(update, self.warmup)


@dataclass(frozen=True, slots=True, kw_only=True)
class Linear(LearningRate):
    """A linear fall to ``floor`` over ``updates``, after an optional linear warm-up."""

    updates: int
    """Update at which the floor is reached, >= 1."""
    warmup: int = 0
    floor: float = 0.0
    """Share of the full rate that stays, in [0, 1]."""

    def __post_init__(self) -> None:
        _check_fall(self)

    @override
    def __call__(self, update: int) -> float:
        """Rises to 1, falls to ``floor``, stays there."""
        return _risen(update, self.warmup) * max(
            self.floor, 1.0 - (1.0 - self.floor) * _fallen(update, self.warmup, self.updates)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Cosine(LearningRate):
    """Half a cosine down to ``floor`` over ``updates``, after an optional linear warm-up."""

    updates: int
    """Update at which the floor is reached, >= 1."""
    warmup: int = 0
    floor: float = 0.0
    """Share of the full rate that stays, in [0, 1]."""

    def __post_init__(self) -> None:
        _check_fall(self)

    @override
    def __call__(self, update: int) -> float:
        """Rises to 1, falls to ``floor``, stays there."""
        down = 0.5 * (1.0 + math.cos(math.pi * _fallen(update, self.warmup, self.updates)))
        return _risen(update, self.warmup) * (self.floor + (1.0 - self.floor) * down)


def _check_fall(schedule: Linear | Cosine) -> None:
    name = type(schedule).__name__
    if not 0 <= schedule.warmup < schedule.updates or not 0.0 <= schedule.floor <= 1.0:
        raise ConfigError(
            f"{name} needs 0 <= warmup < updates and floor in [0, 1], got warmup "
            f"{schedule.warmup}, updates {schedule.updates}, floor {schedule.floor}."
        )


def _risen(update: int, warmup: int) -> float:
    return min(1.0, (update + 1) / warmup) if warmup else 1.0


def _fallen(update: int, warmup: int, updates: int) -> float:
    return min(1.0, max(0.0, (update - warmup) / (updates - warmup)))


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
    alpha: int = 32
    """The product is scaled by alpha / rank."""
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
    compute: Precision = "auto"
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
    compute: Precision = "auto"
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
