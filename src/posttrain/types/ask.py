"""What a plan asks the runner to sample."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

from posttrain.errors import ConfigError
from posttrain.types.episode import Node, Origin, Piece


class StopWhen(ABC):
    """A rule that ends a segment early, asked after each drawn token; pure."""

    @abstractmethod
    def __call__(self, ids: Sequence[int], logprobs: Sequence[float]) -> bool:
        """Whether to stop after these drawn tokens and their log-probs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decode:
    """How tokens are drawn. Filters apply in the order temperature, top-k, top-p, min-p."""

    temperature: float = 1.0
    """>= 0; 0 takes the most likely token."""
    top_p: float = 1.0
    """Keep the smallest set of tokens with at least this probability, in (0, 1]."""
    top_k: int = 0
    """Keep the k most likely tokens; 0 keeps all."""
    min_p: float = 0.0
    """Drop tokens less likely than this share of the most likely one, in [0, 1)."""
    max_tokens: int = 256
    """Tokens a segment may draw, >= 1."""
    stop: tuple[str, ...] = ()
    """Strings that end a segment; the tokens that complete one are kept."""
    stop_ids: tuple[int, ...] = ()
    """Token ids that end a segment, beside the end tokens of the chat template."""
    forced: tuple[int, ...] = ()
    """Token ids put at the start instead of drawn; they count, and are not trained."""
    mixture: tuple[str, float] | None = None
    """(model, share): draw from (1 - share) * own + share * model; needs the capability."""
    stop_when: StopWhen | None = None

    def __post_init__(self) -> None:
        checks = (
            (self.temperature >= 0.0, "temperature", self.temperature, ">= 0 (0 is greedy)"),
            (0.0 < self.top_p <= 1.0, "top_p", self.top_p, "in (0, 1]; 1 keeps every token"),
            (self.top_k >= 0, "top_k", self.top_k, ">= 0; 0 keeps every token"),
            (0.0 <= self.min_p < 1.0, "min_p", self.min_p, "in [0, 1); 0 keeps every token"),
            (self.max_tokens >= 1, "max_tokens", self.max_tokens, ">= 1"),
            (all(self.stop), "stop", self.stop, "non-empty strings"),
        )
        for good, name, value, allowed in checks:
            if not good:
                raise ConfigError(f"Decode.{name} must be {allowed}, got {value!r}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """Tokens handed in instead of drawn: a demonstration, a replay, an edit, a prefix."""

    text: str | None = None
    ids: tuple[int, ...] | None = None
    rollout_logprobs: tuple[float, ...] | None = None
    """Log-probs the tokens had when they were drawn (replay); they may then enter a ratio."""
    version: int = -1
    origin: Origin = Origin.GIVEN
    ends_turn: bool = True
    """True: the turn is complete (an end-of-turn token is added to ``text``), nothing is
    sampled; False: sampling goes on after the given tokens."""

    def __post_init__(self) -> None:
        if (self.text is None) == (self.ids is None):
            raise ConfigError(
                f"Given takes exactly one of text and ids, got text={self.text!r} and "
                f"ids={self.ids!r}. Use ids for a replay, text for a demonstration."
            )
        if self.rollout_logprobs is not None and (
            self.ids is None or len(self.ids) != len(self.rollout_logprobs)
        ):
            raise ConfigError(
                f"Given.rollout_logprobs must be one a token of ids, got "
                f"{len(self.rollout_logprobs)} for {len(self.ids or ())} ids."
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request for ``n`` episodes of one group."""

    seat: str = "policy"
    at: Node | None = None
    """Restart from this place instead of the task's start."""
    context: tuple[Piece, ...] | None = None
    """A prompt of the plan's own instead of the task's."""
    n: int = 1
    decode: Decode | None = None
    """None means the run's own."""
    given: Given | None = None
    trains: bool = True
    tag: str = ""

    def __post_init__(self) -> None:
        if self.n < 1:
            raise ConfigError(f"Ask.n must be >= 1, got {self.n}. Ask for nothing with ().")
        if self.at is not None and self.context is not None:
            raise ConfigError(
                "Ask takes at most one of at and context: at restarts from a node, context is "
                "a prompt of the plan's own."
            )
