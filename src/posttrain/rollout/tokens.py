"""What an engine drew, or a plan handed in, as segments."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posttrain.rollout.drafts import KEPT_LOGMASS
from posttrain.rollout.prompts import Chat
from posttrain.types.ask import Ask, Decode, Given
from posttrain.types.engine import Sample
from posttrain.types.episode import Column, Origin, Segment, Span, Stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Speaker:
    """Who speaks, where, how tokens are drawn, and under which ask."""

    seat: str
    model: str
    chat: Chat
    context: tuple[Span, ...]
    turn: int
    ask: Ask
    decode: Decode


def bad_logprob(sample: Sample, *, num_forced: int) -> str:
    """Why a sample's log-probs cannot be trained on; empty when they can."""
    drawn = sample.logprobs[num_forced:]
    bad = np.flatnonzero(~np.isfinite(drawn) | (drawn > 1e-4))
    if not len(bad):
        return ""
    at = int(bad[0])
    return f"the engine gave token {num_forced + at} the log-prob {drawn[at]}"


def sampled_segment(sample: Sample, stop: Stop, by: Speaker) -> Segment:
    """The segment of a sample; forced tokens stand in it, masked."""
    chosen = np.ones(len(sample.ids), bool)
    chosen[: len(by.decode.forced)] = False
    logprobs = np.where(chosen, sample.logprobs, np.nan).astype(np.float32)
    version = np.where(chosen, sample.version, -1).astype(np.int32)
    text, char_ends = by.chat.decode(sample.ids)
    columns = {}
    if sample.kept_logmass is not None:
        columns[KEPT_LOGMASS] = Column(sample.kept_logmass.astype(np.float32), model=by.model)
    return Segment(
        ids=sample.ids.astype(np.int32),
        action_mask=chosen,
        rollout_logprobs=logprobs,
        version=version,
        context=by.context,
        seat=by.seat,
        model=by.model,
        role="assistant",
        turn=by.turn,
        trains=by.ask.trains,
        origin=Origin.SAMPLED,
        stop=stop,
        temperature=by.decode.temperature,
        tag=by.ask.tag,
        text=text,
        char_ends=char_ends,
        columns=columns,
        payloads=sample.payloads,
    )


def given_segment(given: Given, by: Speaker) -> Segment:
    """The segment of tokens handed in; only those of a replay count as chosen by the seat."""
    if given.ids is not None:
        ids = np.asarray(given.ids, np.int32)
    elif given.ends_turn:
        ids = by.chat.assistant(given.text or "").astype(np.int32)
    else:
        ids = _begun(given.text or "", by.chat)
    logprobs = np.full(len(ids), np.nan, np.float32)
    if given.rollout_logprobs is not None:
        logprobs = np.asarray(given.rollout_logprobs, np.float32)
    chosen = np.isfinite(logprobs)
    text, char_ends = by.chat.decode(ids)
    return Segment(
        ids=ids,
        action_mask=chosen,
        rollout_logprobs=logprobs,
        version=np.where(chosen, given.version, -1).astype(np.int32),
        context=by.context,
        seat=by.seat,
        model=by.model,
        role="assistant",
        turn=by.turn,
        trains=by.ask.trains,
        origin=given.origin,
        temperature=by.decode.temperature,
        tag=by.ask.tag,
        text=text,
        char_ends=char_ends,
    )


def _begun(text: str, chat: Chat) -> np.ndarray:
    """[tokens] int32 of a turn that is to go on: no end-of-turn token, no begin token."""
    end = len(chat.assistant(""))
    ids = chat.assistant(text)
    return ids[: len(ids) - end].astype(np.int32)
