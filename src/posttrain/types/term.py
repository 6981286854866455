"""Terms: pure functions from a batch and a model's output to per-token losses and weights.

Shapes: B rows, T positions, V vocabulary. A row is a sequence of tokens in the order the model
reads them; position t speaks of token t, scored from the tokens before it. A term's share of the
loss is ``(losses * weights).sum()``; weights come from counts over the whole optimiser step, so a
batch may be split in any way without moving the gradient.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

import torch
from torch import Tensor

from posttrain.errors import ConfigError
from posttrain.types.engine import Capability
from posttrain.types.probe import AsSampled, View

Reach: TypeAlias = Literal["token", "sequence", "pair", "group", "step"]
Needs: TypeAlias = Literal["logprobs", "entropy", "values", "logits"]
Stats: TypeAlias = Mapping[str, Tensor]
"""Sums over the step, merged over micro-batches and ranks by adding."""


@dataclass(frozen=True, slots=True)
class Counts:
    """Sizes of the whole optimiser step, for one term: all micro-batches, all ranks."""

    tokens: int
    """Tokens the term trains."""
    rows: int
    """Rows with at least one of them."""
    episodes: int
    groups: int


@dataclass(frozen=True, slots=True)
class Tally:
    """A metric that can be merged: a mean of ``total / count``, a sum, a maximum or a minimum."""

    total: float
    count: float = 1.0
    kind: Literal["mean", "sum", "max", "min"] = "mean"

    def merge(self, other: Tally) -> Tally:
        """The tally of both parts."""
        if self.kind in ("mean", "sum"):
            return Tally(self.total + other.total, self.count + other.count, self.kind)
        pick = max if self.kind == "max" else min
        return Tally(pick(self.total, other.total), self.count + other.count, self.kind)

    @property
    def value(self) -> float:
        """The number to log; NaN for a mean of nothing."""
        if self.kind == "mean":
            return self.total / self.count if self.count else float("nan")
        return self.total


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBatch:
    """Rows of one micro-batch for one term's view."""

    ids: Tensor
    """[B, T] int64."""
    attention_mask: Tensor
    """[B, T] bool, True on real tokens."""
    loss_mask: Tensor
    """[B, T] bool, True where the term trains; never on a row's first token."""
    temperature: Tensor
    """[B, T] float32 temperature each token was drawn at."""
    columns: Mapping[str, Tensor]
    """[B, T] float32 by name; NaN where a column has no value. Always there: advantages (if the
    method has credit) and rollout_logprobs; the rest by probe."""
    row: Tensor
    """[B] int64 row number in the step."""
    episode: Tensor
    """[B] int64 episode number in the step (the first that holds the row)."""
    group: Tensor
    """[B] int64 group number in the step."""
    segment: Tensor
    """[B, T] int64 segment number in the step; -1 on padding."""
    row_tokens: Tensor
    """[B] int64 trained tokens in the row."""
    episode_tokens: Tensor
    """[B] int64 trained tokens in all rows of the row's episode."""
    position_ids: Tensor | None = None
    """[B, T] int64; None counts real tokens from 0."""
    payloads: Mapping[str, Tensor] = field(default_factory=dict)

    def column(self, name: str) -> Tensor:
        """[B, T] float32 column; ConfigError naming what is there if it is missing."""
        if name not in self.columns:
            raise ConfigError(
                f"a term reads the column {name!r}, which nothing made. Columns here: "
                f"{sorted(self.columns)}. Add the probe or credit that writes it."
            )
        return self.columns[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOut:
    """What the model gave on a batch; only what its terms need is there."""

    policy_logprobs: Tensor
    """[B, T] float32 log-prob of each token at its temperature, with gradient; 0 off the mask."""
    entropy: Tensor | None = None
    """[B, T] float32, with gradient when a term needs it."""
    values: Tensor | None = None
    """[B, T] float32 scalar head, with gradient."""
    logits: Tensor | None = None
    """[tokens, V] float32 at the True positions of loss_mask, row by row, with gradient."""


@dataclass(frozen=True, slots=True)
class TermOut:
    """Losses and weights, both [B, T] (or [pairs]), and metrics by name."""

    losses: Tensor
    weights: Tensor
    metrics: Mapping[str, Tally] = field(default_factory=dict)

    @property
    def loss(self) -> Tensor:
        """The term's share of the loss; a position of weight 0 may hold NaN."""
        zero = torch.zeros((), dtype=self.losses.dtype, device=self.losses.device)
        return (torch.where(self.weights != 0, self.losses, zero) * self.weights).sum()


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """What one forward and backward pass over a micro-batch gave, detached."""

    loss: float
    metrics: Mapping[str, Tally]
    policy_logprobs: Tensor
    """[B, T] float32 on the loss mask, 0 elsewhere."""


class Term(ABC):
    """One summand of a model's loss. Subclasses are frozen dataclasses."""

    reach: ClassVar[Reach] = "token"
    """Rows that must meet in one call; the trainer never splits below it."""
    tokens: ClassVar[Literal["drawn", "given", "trained", "observed"]] = "drawn"
    """Which tokens of the segments that train it reads: drawn ones with a known log-prob, given
    ones, both, or those an environment wrote."""
    needs: ClassVar[frozenset[Needs]] = frozenset({"logprobs"})

    @property
    def reads(self) -> frozenset[str]:
        """Columns it needs beside ``rollout_logprobs``."""
        return frozenset()

    @property
    def view(self) -> View:
        """The context its tokens are scored in."""
        return AsSampled()

    @property
    def requires(self) -> frozenset[Capability]:
        """Capabilities the learner must have."""
        return frozenset()

    def summary(self, batch: TokenBatch, model: ModelOut) -> Stats:  # noqa: ARG002
        """Reach ``step`` only: sums of a first pass without gradient."""
        return {}

    @abstractmethod
    def __call__(
        self, batch: TokenBatch, model: ModelOut, counts: Counts, stats: Stats | None
    ) -> TermOut:
        """Losses, weights and metrics of one micro-batch."""


class GradientRule(ABC):
    """Differentiates in slices and combines the named gradients."""

    @abstractmethod
    def slices(self, batch: TokenBatch) -> Mapping[str, Tensor]:
        """[B] bool masks by slice name; every row is in exactly one."""

    @abstractmethod
    def combine(self, gradients: Mapping[str, list[Tensor]]) -> list[Tensor]:
        """One gradient a parameter from the gradients by slice."""
