"""What happened for one task: segments of tokens, episodes over them, rewards, status.

A group is append-only: every function here returns a new group. Text is a view of token ids;
nothing re-encodes what a model said. Arrays are one value a token unless stated otherwise.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TypeAlias

import numpy as np

from posttrain.errors import InternalError
from posttrain.types.message import Task

Key: TypeAlias = tuple[int, int, int]
"""(phase, step, draw index): names a group."""


class Origin(StrEnum):
    """Where a segment's tokens come from."""

    SAMPLED = "sampled"
    FORCED = "forced"
    GIVEN = "given"
    REPLAYED = "replayed"
    EDITED = "edited"
    OBSERVED = "observed"


class Stop(StrEnum):
    """How a segment or an episode stopped."""

    COMPLETED = "completed"
    """The end token was drawn, or the environment terminated."""
    STOP_STRING = "stop_string"
    MAX_TOKENS = "max_tokens"
    MAX_TURNS = "max_turns"
    MAX_CONTEXT = "max_context"
    DEADLINE = "deadline"
    BUDGET = "budget"
    ENV_TRUNCATED = "env_truncated"
    ABORTED = "aborted"
    FAILED = "failed"

    @property
    def truncated(self) -> bool:
        """Whether a limit, not the policy or the environment, ended it."""
        return self not in (Stop.COMPLETED, Stop.STOP_STRING, Stop.FAILED)


class Fault(StrEnum):
    """Whose fault it was, if anything went wrong; only the policy's can cost reward."""

    NONE = "none"
    POLICY = "policy"
    PARSER = "parser"
    ENVIRONMENT = "environment"
    VERIFIER = "verifier"
    JUDGE = "judge"
    ENGINE = "engine"
    SCHEDULER = "scheduler"

    @property
    def infrastructure(self) -> bool:
        """Whether the policy is not to blame, so that the episode is left out."""
        return self not in (Fault.NONE, Fault.POLICY, Fault.PARSER)


class Scope(StrEnum):
    """What a reward row speaks of."""

    TOKEN = "token"
    STEP = "step"
    TURN = "turn"
    EPISODE = "episode"
    GROUP = "group"


class Verdict(StrEnum):
    """How grading ended; only ``GRADED`` and ``NO_ANSWER`` carry a value."""

    GRADED = "graded"
    NO_ANSWER = "no_answer"
    NOT_APPLICABLE = "not_applicable"
    TIMEOUT = "timeout"
    UNSCORABLE = "unscorable"


@dataclass(frozen=True, slots=True)
class RewardRow:
    """One value of one name for one target; several names stay apart until credit joins them."""

    scope: Scope
    target: int
    """Episode index (EPISODE), segment index (TURN, STEP, TOKEN), 0 (GROUP)."""
    name: str
    value: float | None
    weight: float = 1.0
    """Multiplier in the total; 0 logs a reward without training on it."""
    verdict: Verdict = Verdict.GRADED
    token: int = -1
    """Token offset in the segment where the value lands (STEP, TOKEN); -1 is its last token."""
    verifier: str = ""
    version: str = ""
    seconds: float = 0.0
    note: str = ""
    """How it was compared, or why there is no value."""
    answer: str = ""
    """The answer that was extracted, in the form equal answers share; votes count these."""


@dataclass(frozen=True, slots=True)
class Span:
    """The first ``tokens`` tokens of a segment."""

    segment: int
    tokens: int


@dataclass(frozen=True, slots=True)
class Said:
    """A message as text; the runner renders it once with the seat's template."""

    role: str
    text: str


Piece: TypeAlias = Span | Said


@dataclass(frozen=True, slots=True)
class Node:
    """A place in a group: after ``token`` tokens of a segment of an episode."""

    episode: int
    segment: int
    token: int


@dataclass(frozen=True, slots=True)
class Column:
    """A named column with what made it."""

    values: np.ndarray
    """[tokens] float32, NaN where there is no value; [tokens, k] for top-k and hidden."""
    model: str = ""
    version: int = -1
    view: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A contiguous block of tokens and the context it was conditioned on."""

    ids: np.ndarray
    """[tokens] int32."""
    action_mask: np.ndarray
    """[tokens] bool, True where a seat chose the token."""
    rollout_logprobs: np.ndarray
    """[tokens] float32 of the distribution really drawn from; NaN elsewhere."""
    version: np.ndarray
    """[tokens] int32 weight version that drew the token; -1 elsewhere."""
    context: tuple[Span, ...] = ()
    seat: str = ""
    model: str = ""
    role: str = ""
    turn: int = 0
    trains: bool = False
    origin: Origin = Origin.OBSERVED
    stop: Stop = Stop.COMPLETED
    temperature: float = 1.0
    """Temperature the tokens were drawn at; learners score them at the same one."""
    tag: str = ""
    text: str = ""
    char_ends: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int32))
    """[tokens] int32: length of ``text`` decoded from the tokens up to and including this one."""
    columns: Mapping[str, Column] = field(default_factory=dict)
    payloads: Mapping[str, np.ndarray] = field(default_factory=dict)

    @property
    def num_tokens(self) -> int:
        """Tokens in the segment."""
        return len(self.ids)

    @property
    def drawn(self) -> np.ndarray:
        """[tokens] bool, True where the token was drawn and its log-prob is known."""
        return self.action_mask & np.isfinite(self.rollout_logprobs)


def _chars(segment: Segment, tokens: int) -> int:
    """Length of the text of the first ``tokens`` tokens."""
    return int(segment.char_ends[tokens - 1]) if tokens > 0 else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One path through a group's segments, and how it ended."""

    episode_id: str
    segments: tuple[int, ...]
    seed: int = 0
    round: int = 0
    ask: int = 0
    member: int = 0
    tag: str = ""
    stop: Stop = Stop.COMPLETED
    fault: Fault = Fault.NONE
    note: str = ""
    start: Node | None = None
    """Where it was restarted from, if it was; of that segment it holds ``token`` tokens."""
    env_states: Mapping[int, bytes] = field(default_factory=dict)
    """Saved environment by segment index, for restarts after that segment."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Everything done for one task at one place of a step."""

    key: Key
    task: Task
    segments: tuple[Segment, ...] = ()
    episodes: tuple[Episode, ...] = ()
    rewards: tuple[RewardRow, ...] = ()
    round: int = 0
    """Plan calls whose asks have all ended; the plan's only clock."""
    finished: bool = False
    refused: bool = False
    """Turned away by ``Keep``: stored and counted, not trained."""
    template_hash: str = ""
    tokenizer_hash: str = ""

    @property
    def group_id(self) -> str:
        """``phase-step-draw``."""
        return "-".join(map(str, self.key))

    def text(self, segment: int) -> str:
        """The segment's text, decoded once from its tokens."""
        return self.segments[segment].text

    def cut(self, segment: int, char: int) -> int:
        """Tokens whose text ends at or before ``char``: the offset to restart or split at."""
        return int(np.searchsorted(self.segments[segment].char_ends, char, side="right"))

    def cuts(self, episode: int) -> dict[int, int]:
        """Tokens an episode holds of the segments it was restarted within, by segment index."""
        found: dict[int, int] = {}
        start = self.episodes[episode].start
        while start is not None:
            found.setdefault(start.segment, start.token)
            start = self.episodes[start.episode].start
        return found

    def episode_text(self, episode: int, *, joint: str = "") -> str:
        """What the seats chose or were given to say in an episode, without observations."""
        cuts = self.cuts(episode)
        parts = []
        for s in self.episodes[episode].segments:
            segment = self.segments[s]
            if segment.origin is Origin.OBSERVED:
                continue
            kept = cuts.get(s, segment.num_tokens)
            whole = kept >= segment.num_tokens
            parts.append(segment.text if whole else segment.text[: _chars(segment, kept)])
        return joint.join(parts)

    def context_ids(self, context: Sequence[Span]) -> np.ndarray:
        """Token ids of a context, [tokens] int32."""
        if not context:
            return np.zeros(0, np.int32)
        return np.concatenate([self.segments[s.segment].ids[: s.tokens] for s in context])

    def add(
        self,
        *,
        segments: Sequence[Segment] = (),
        episodes: Sequence[Episode] = (),
        rewards: Sequence[RewardRow] = (),
    ) -> Group:
        """This group with more rows."""
        return replace(
            self,
            segments=(*self.segments, *segments),
            episodes=(*self.episodes, *episodes),
            rewards=(*self.rewards, *rewards),
        )

    def with_columns(self, columns: Mapping[int, Mapping[str, Column]]) -> Group:
        """This group with columns added, by segment index; a column is written once."""
        segments = list(self.segments)
        for index, new in columns.items():
            old = segments[index]
            for name, column in new.items():
                if len(column.values) != old.num_tokens:
                    raise InternalError(
                        f"column {name!r} of segment {index} in group {self.group_id} has "
                        f"{len(column.values)} values for {old.num_tokens} tokens"
                    )
            segments[index] = replace(old, columns={**old.columns, **new})
        return replace(self, segments=tuple(segments))

    def rewards_for(self, episode: int) -> Iterator[RewardRow]:
        """Reward rows of episode scope for one episode."""
        return (r for r in self.rewards if r.scope is Scope.EPISODE and r.target == episode)

    def total(self, episode: int) -> float | None:
        """Weighted sum of the episode's rewards; None when it cannot be scored.

        A row that is unscorable or timed out makes the whole episode unscored, and so does
        an infrastructure fault; a row that is not applicable is passed over.
        """
        if self.episodes[episode].fault.infrastructure:
            return None
        sums = []
        for row in self.rewards_for(episode):
            if row.value is not None:
                sums.append(row.weight * row.value)
            elif row.weight != 0.0 and row.verdict is not Verdict.NOT_APPLICABLE:
                return None
        return float(sum(sums)) if sums else None

    def totals(self) -> np.ndarray:
        """[episodes] float64, ``total`` of each; NaN where it cannot be scored."""
        values = (self.total(e) for e in range(len(self.episodes)))
        return np.array([np.nan if v is None else v for v in values], np.float64)
