"""The two protocols of execution: an engine samples and scores, a learner learns.

Both speak of models by name and of tokens by id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np

from posttrain.types.ask import Decode
from posttrain.types.episode import Stop
from posttrain.types.probe import Want

if TYPE_CHECKING:
    from posttrain.types.term import Counts, Forward, GradientRule, Stats, Term, TokenBatch

Capability: TypeAlias = Literal[
    "topk",
    "entropy",
    "value",
    "hidden",
    "grad_norm",
    "mixture",
    "stop_when",
    "images",
    "routing",
    "kept_tokens",
    "adapters",
    "interruption",
    "batch_invariant",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleRequest:
    """One segment to draw."""

    key: str
    """Names the request; samples come back under it in any order."""
    model: str
    ids: np.ndarray
    """[context] int32."""
    decode: Decode
    stop_ids: tuple[int, ...]
    """End tokens of the seat's template and of ``decode``, resolved."""
    seed: int
    """The token at offset t is drawn with the t-th uniform number of this seed."""
    drawn: tuple[int, ...] = ()
    """Ids of this segment drawn before an interruption; sampling goes on after them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was drawn for a request."""

    key: str
    ids: np.ndarray
    """[tokens] int32, forced ones included, ``request.drawn`` not."""
    logprobs: np.ndarray
    """[tokens] float32 of the distribution really drawn from (after temperature and filters);
    NaN for forced tokens."""
    version: np.ndarray
    """[tokens] int32 weight version that drew each token; -1 for forced tokens."""
    stop: Stop
    kept_logmass: np.ndarray | None = None
    """[tokens] float32: log of the probability the filters kept; ``logprobs + kept_logmass`` is
    the log-prob under the whole distribution. None when nothing was filtered (all 0)."""
    payloads: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreItem:
    """Target tokens to score after a context."""

    model: str
    context: np.ndarray
    """[context] int32."""
    target: np.ndarray
    """[tokens] int32."""
    want: Want
    temperature: float = 1.0
    payloads: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tensors:
    """New weights by parameter name, as torch tensors."""

    tensors: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Adapter:
    """A low-rank adapter's tensors by name."""

    tensors: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class NoiseDraw:
    """Weights plus ``scale`` times a normal draw of ``seed``."""

    seed: int
    scale: float


Change: TypeAlias = Tensors | Adapter | NoiseDraw


class Engine(Protocol):
    """Samples and scores with named models."""

    capabilities: frozenset[Capability]

    def sample(self, requests: Sequence[SampleRequest]) -> AsyncIterator[Sample]:
        """Samples in any order; closing the iterator early stops the unfinished ones."""
        ...

    def score(self, items: Sequence[ScoreItem]) -> list[np.ndarray]:
        """One array an item, in order: [tokens] float32, or [tokens, k] / [tokens, width].

        ``TopK`` gives [tokens, 2 k]: k log-probs, then k ids as floats.
        """
        ...

    def load(self, model: str, version: int, change: Change) -> None:
        """Take new weights; later samples carry ``version``."""
        ...

    def fingerprint(self, model: str) -> str:
        """Hash of the weights in use; equals the learner's after a delivery."""
        ...

    def close(self) -> None:
        """Free what the engine holds."""
        ...


class Learner(Protocol):
    """Holds the models, the trained ones with optimiser and version."""

    capabilities: frozenset[Capability]

    def forward_backward(
        self,
        model: str,
        batch: TokenBatch,
        terms: Sequence[Term],
        counts: Sequence[Counts],
        stats: Sequence[Stats | None],
        *,
        rule: GradientRule | None = None,
        current: frozenset[str] = frozenset(),
    ) -> Forward:
        """Add the gradient of the terms on one micro-batch (by slice, if a rule is given).

        Columns named in ``current`` equal the policy's own log-probs at this pass.
        """
        ...

    def summarise(self, model: str, batch: TokenBatch, terms: Sequence[Term]) -> list[Stats]:
        """First-pass sums of one micro-batch, for terms of reach ``step``."""
        ...

    def optim_step(self, model: str, *, rule: GradientRule | None = None) -> Mapping[str, float]:
        """Apply the gathered gradient; returns grad_norm and learning_rate."""
        ...

    def score(self, items: Sequence[ScoreItem]) -> list[np.ndarray]:
        """As ``Engine.score``, in the trainer's precision."""
        ...

    def version(self, model: str) -> int:
        """Updates applied to the model so far."""
        ...

    def export(self, model: str) -> Tensors:
        """Weights to deliver to an engine (adapters merged)."""
        ...

    def fingerprint(self, model: str) -> str:
        """Hash of the weights ``export`` gives."""
        ...
