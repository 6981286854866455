"""Conversations that exist already: given as text, or as the token ids of their turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from posttrain.errors import DataError
from posttrain.types.episode import Origin, Segment, Span, Stop
from posttrain.types.message import Messages

if TYPE_CHECKING:
    from posttrain.data.chat import Renderer
    from posttrain.data.chat_text import Tools


def conversation(
    renderer: Renderer, messages: Messages, *, tools: Tools | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """A given conversation: [tokens] int32 and [tokens] bool, True on assistant turns.

    The mask comes from who wrote each part, so a template needs no marks for it. The end token of
    a turn belongs to the turn, the next header does not.

    Raises:
        DataError: there is no assistant turn after a prompt.
    """
    turns = [i for i, m in enumerate(messages) if m.role == "assistant"]
    if not turns or turns[0] == 0:
        raise DataError(
            "a conversation to train on needs an assistant turn after a prompt, got the roles "
            f"{[m.role for m in messages]}."
        )
    parts = [(renderer.prompt(messages[: turns[0]], tools=tools), False)]
    for turn, following in zip(turns, [*turns[1:], None], strict=True):
        parts.append((renderer.assistant(messages[turn].content), True))
        if following is not None:
            between = messages[turn + 1 : following]
            parts.append((renderer.bridge(between, closed=True, tools=tools), False))
    mask = np.concatenate([np.full(len(ids), own) for ids, own in parts])
    return np.concatenate([ids for ids, _ in parts]), mask


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenTurn:
    """One call of a model, as tokens: what it saw, and what it drew."""

    prompt: Sequence[int] | np.ndarray
    """[context] all the ids it was conditioned on."""
    drawn: Sequence[int] | np.ndarray
    """[tokens] the ids it drew."""
    logprobs: Sequence[float] | np.ndarray
    """[tokens] their log-probs as drawn."""
    version: int = 0
    stop: Stop = Stop.COMPLETED


@dataclass(frozen=True, slots=True)
class Recorded:
    """Turns as segments of a group."""

    segments: tuple[Segment, ...]
    breaks: int
    """Turns whose prompt did not begin with what had been seen and drawn before: each opens a
    context of its own, so that every token is trained on what it was really conditioned on."""


def record_turns(
    turns: Sequence[SeenTurn], *, renderer: Renderer | None = None, seat: str = "policy",
    model: str = "policy",
) -> Recorded:  # fmt: skip
    """Segments of turns that some other program sampled, history compared by ids.

    A prompt that begins with everything before it continues the context; what it adds was
    observed. Any other prompt (a template that cut reasoning, a history that was summarised or
    tokenised again) is a new context, and is counted.
    """
    segments: list[Segment] = []
    context: tuple[Span, ...] = ()
    seen = np.zeros(0, np.int32)
    breaks = 0
    for number, turn in enumerate(turns):
        prompt = np.asarray(turn.prompt, np.int32)
        if not np.array_equal(prompt[: len(seen)], seen):
            context, seen = (), np.zeros(0, np.int32)
            breaks += 1
        added = prompt[len(seen) :]
        if len(added):
            context = _append(segments, _observed(added, context, number, seat, renderer))
        context = _append(segments, _drawn(turn, context, number, seat, model, renderer))
        seen = np.concatenate([prompt, np.asarray(turn.drawn, np.int32)])
    return Recorded(tuple(segments), breaks)


def _append(segments: list[Segment], segment: Segment) -> tuple[Span, ...]:
    """Add a segment; returns the context of what follows it."""
    segments.append(segment)
    return (*segment.context, Span(len(segments) - 1, segment.num_tokens))


def _observed(
    ids: np.ndarray, context: tuple[Span, ...], turn: int, seat: str, renderer: Renderer | None
) -> Segment:
    text, ends = ("", np.zeros(0, np.int32)) if renderer is None else renderer.decode(ids)
    return Segment(
        ids=ids,
        action_mask=np.zeros(len(ids), bool),
        rollout_logprobs=np.full(len(ids), np.nan, np.float32),
        version=np.full(len(ids), -1, np.int32),
        context=context,
        seat=seat,
        turn=turn,
        text=text,
        char_ends=ends,
    )


def _drawn(
    turn: SeenTurn,
    context: tuple[Span, ...],
    number: int,
    seat: str,
    model: str,
    renderer: Renderer | None,
) -> Segment:
    ids = np.asarray(turn.drawn, np.int32)
    logprobs = np.asarray(turn.logprobs, np.float32)
    if len(ids) != len(logprobs):
        raise DataError(
            f"turn {number} has {len(ids)} tokens and {len(logprobs)} log-probs; each token drawn "
            "needs its own, special tokens included."
        )
    text, ends = ("", np.zeros(0, np.int32)) if renderer is None else renderer.decode(ids)
    return Segment(
        ids=ids,
        action_mask=np.ones(len(ids), bool),
        rollout_logprobs=logprobs,
        version=np.full(len(ids), turn.version, np.int32),
        context=context,
        seat=seat,
        model=model,
        role="assistant",
        turn=number,
        trains=True,
        origin=Origin.SAMPLED,
        stop=turn.stop,
        text=text,
        char_ends=ends,
    )
