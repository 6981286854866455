"""Probes: columns read off a model, and the views that make the context it is scored in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import TypeAlias

from typing_extensions import override

from posttrain.types.episode import Group, Piece
from posttrain.types.message import Task


class View(ABC):
    """The context to score a segment under; pure."""

    @abstractmethod
    def __call__(self, task: Task, group: Group, segment: int) -> tuple[Piece, ...] | None:
        """The context, or None to leave the segment out."""


@dataclass(frozen=True, slots=True)
class AsSampled(View):
    """The context the segment was sampled in."""

    @override
    def __call__(self, task: Task, group: Group, segment: int) -> tuple[Piece, ...] | None:
        """The segment's own context."""
        return group.segments[segment].context


@dataclass(frozen=True, slots=True)
class Logprobs:
    """Log-prob of each target token, at the temperature it was drawn at."""


@dataclass(frozen=True, slots=True)
class TopK:
    """The ``k`` largest log-probs and their ids: columns NAME [tokens, k] and NAME.ids."""

    k: int


@dataclass(frozen=True, slots=True)
class Entropy:
    """Entropy in nats of the distribution each token was drawn from."""


@dataclass(frozen=True, slots=True)
class Value:
    """Output of the model's scalar head before each token."""


@dataclass(frozen=True, slots=True)
class Hidden:
    """Hidden state of a layer at each token, [tokens, width]."""

    layer: int = -1


@dataclass(frozen=True, slots=True)
class GradNorm:
    """Norm of the gradient of each segment's summed log-prob; one value, repeated."""


Want: TypeAlias = Logprobs | TopK | Entropy | Value | Hidden | GradNorm


class Target(ABC):
    """Which tokens a probe scores in the view's context; pure."""

    @abstractmethod
    def __call__(self, task: Task, group: Group, segment: int) -> tuple[Piece, ...] | None:
        """The tokens to score, or None for the segment's own."""


@dataclass(frozen=True, slots=True)
class OwnTokens(Target):
    """The segment's own tokens; the column has one value a token."""

    @override
    def __call__(self, task: Task, group: Group, segment: int) -> tuple[Piece, ...] | None:
        """None: the segment itself."""
        return None


@dataclass(frozen=True, slots=True)
class Probe:
    """The same tokens, scored by ``model`` in the context that ``view`` makes."""

    name: str
    """The column it writes, e.g. ``ref_logprobs``."""
    model: str = "policy"
    view: View = field(default_factory=AsSampled)
    want: Want = field(default_factory=Logprobs)
    target: Target = field(default_factory=OwnTokens)
    """Other tokens than the segment's own give one value a segment: their mean log-prob,
    repeated on its tokens."""
