"""An engine that says what it is told: for tests, and for policies that are no language model.

Two kinds of script. ``next_token`` gives the distribution after any ids (a uniform policy, a
table, a bandit): tokens are drawn from it as every engine draws, with honest log-probs. ``reply``
gives a whole segment, whose tokens then have probability 1.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor

from posttrain.errors import ConfigError, EngineError
from posttrain.rollout.fingerprint import fingerprint
from posttrain.rollout.requests import (
    Decoder,
    check_items,
    check_requests,
    ends_by_rule,
    forced_left,
    known_model,
    room,
)
from posttrain.rollout.sampling import Rules, draw, uniforms
from posttrain.rollout.tabular import NextToken, Weighted
from posttrain.rollout.wanted import wanted
from posttrain.rollout.weights import check_version
from posttrain.types.ask import Decode
from posttrain.types.engine import (
    Capability,
    Change,
    Sample,
    SampleRequest,
    ScoreItem,
    Tensors,
)
from posttrain.types.episode import Stop

Reply: TypeAlias = Callable[[SampleRequest], str | Sequence[int]]
"""A request to its segment: ids, or a text that is encoded and closed with an end token."""

CAPABILITIES: frozenset[Capability] = frozenset(
    {"topk", "entropy", "mixture", "stop_when", "batch_invariant"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trouble:
    """What goes wrong with a request."""

    delay_s: float = 0.0
    """Seconds after the call at which its sample comes; samples come in this order."""
    error: Exception | None = None
    """Raised out of the iterator instead of the sample."""
    after: int | None = None
    """Tokens after which the segment is cut with ``Stop.FAILED``."""


@dataclass(slots=True)
class _Row:
    """A segment as it grows."""

    request: SampleRequest
    left: int
    at_end: Stop
    decode: Decoder | None
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    kept: list[float] = field(default_factory=list)
    stop: Stop | None = None

    def __post_init__(self) -> None:
        for token in forced_left(self.request)[: self.left]:
            self._put(token, float("nan"), 0.0)
        self._end_if_full()

    def _put(self, token: int, logprob: float, kept: float) -> None:
        self.ids.append(token)
        self.logprobs.append(logprob)
        self.kept.append(kept)

    def _end_if_full(self) -> None:
        if self.stop is None and len(self.ids) >= self.left:
            self.stop = self.at_end

    @property
    def said(self) -> tuple[int, ...]:
        """The segment so far, what was drawn before an interruption included."""
        return (*self.request.drawn, *self.ids)

    def take(self, token: int, logprob: float, kept: float) -> None:
        """Add a drawn token and end where it ends."""
        self._put(token, logprob, kept)
        if token in self.request.stop_ids:
            self.stop = Stop.COMPLETED
        elif ends_by_rule(self.request, self.said, self.logprobs, self.decode):
            self.stop = Stop.STOP_STRING
        self._end_if_full()

    def sample(self, version: int, after: int | None) -> Sample:
        """The finished segment, cut after ``after`` tokens if that is less."""
        cut = after is not None and after < len(self.ids)
        kept = np.array(self.kept[:after], np.float32)
        chosen = np.arange(len(kept)) >= len(forced_left(self.request))
        return Sample(
            key=self.request.key,
            ids=np.array(self.ids[:after], np.int32),
            logprobs=np.array(self.logprobs[:after], np.float32),
            version=np.where(chosen, version, -1).astype(np.int32),
            stop=Stop.FAILED if cut or self.stop is None else self.stop,
            kept_logmass=kept if kept.any() else None,
        )


class ScriptedEngine:
    """Samples and scores by script; the same requests always give the same samples.

    ``stop_when`` sees NaN for the log-probs of tokens drawn before an interruption.

    Args:
        next_token: The policy of every model, or one by model name.
        reply: Instead of ``next_token``: a function of the request, or a mapping from a piece of
            the context's text to a reply. Of the pieces that occur, the one whose last
            occurrence ends latest counts, then the longest.
        encode: Text to ids, for replies that are text.
        decode: Ids to text, for stop strings and for a mapping of replies.
        max_context: Tokens context and segment may have together; 0 is no limit.
        trouble: What goes wrong with a request, if anything.
        capabilities: What it says it can do; fewer shows what would be refused.

    Raises:
        ConfigError: Unless exactly one of next_token and reply is given.
    """

    def __init__(
        self,
        next_token: NextToken | Mapping[str, NextToken] | None = None,
        *,
        reply: Reply | Mapping[str, str | Sequence[int]] | None = None,
        encode: Callable[[str], Sequence[int]] | None = None,
        decode: Decoder | None = None,
        max_context: int = 0,
        trouble: Callable[[SampleRequest], Trouble | None] | None = None,
        capabilities: frozenset[Capability] = CAPABILITIES,
    ) -> None:
        if (next_token is None) == (reply is None):
            raise ConfigError(
                "ScriptedEngine takes exactly one of next_token (a distribution after any ids) "
                f"and reply (whole segments), got next_token={next_token!r} and reply={reply!r}."
            )
        if isinstance(reply, Mapping) and decode is None:
            raise ConfigError(
                "ScriptedEngine finds replies by text in the context: pass decode=, or give "
                "reply as a function of the request."
            )
        self.capabilities = capabilities
        self.requests: list[SampleRequest] = []
        """Every request so far, for tests to look at."""
        self._next_token = next_token
        self._reply = reply
        self._encode = encode
        self._decode = decode
        self._max_context = max_context
        self._trouble = trouble or (lambda _: None)
        self._versions: dict[str, int] = {}
        self._tensors: dict[str, dict[str, Tensor]] = {}

    async def sample(self, requests: Sequence[SampleRequest]) -> AsyncIterator[Sample]:
        """Samples by delay, then in the order of the requests.

        Raises:
            EngineError: For an unknown model or a script that is no distribution.
            ConfigError: For a decode setting it cannot keep.
            Exception: What ``trouble`` injects.
        """
        self._check(requests)
        self.requests.extend(requests)
        troubles = [self._trouble(request) or Trouble() for request in requests]
        rows = self._draw(requests)
        versions = [self._versions.get(request.model, 0) for request in requests]
        now = 0.0
        for i in sorted(range(len(rows)), key=lambda i: troubles[i].delay_s):
            await asyncio.sleep(troubles[i].delay_s - now)
            now = troubles[i].delay_s
            error = troubles[i].error
            if error is not None:
                raise error
            yield rows[i].sample(versions[i], troubles[i].after)

    def score(self, items: Sequence[ScoreItem]) -> list[np.ndarray]:
        """What the policies say of the targets, by the rules of every engine.

        Raises:
            EngineError: For an unknown model, or if the script is replies: they have no
                distribution.
            ConfigError: For a want it cannot give.
        """
        models = self._models({item.model for item in items})
        check_items(items, models=models, capabilities=self.capabilities)
        return [self._score(item) for item in items]

    def load(self, model: str, version: int, change: Change) -> None:
        """Take new weights; a ``Weighted`` policy is given them.

        Raises:
            EngineError: For an unknown model, a lower version, or a change that is not tensors.
        """
        known_model(model, self._models({model}))
        check_version(model, version, self._versions.get(model, 0))
        if not isinstance(change, Tensors):
            raise EngineError(
                f"ScriptedEngine takes whole tensors, got {type(change).__name__} for the model "
                f"{model!r}. Deliver Tensors(...)."
            )
        policy = None if self._next_token is None else self._policy(model)
        if isinstance(policy, Weighted):
            policy.load(change.tensors)
        self._tensors[model] = {k: torch.as_tensor(v) for k, v in change.tensors.items()}
        self._versions[model] = version

    def fingerprint(self, model: str) -> str:
        """Hash of the tensors loaded last, each in its own dtype."""
        known_model(model, self._models({model}))
        return fingerprint(self._tensors.get(model, {}))

    def close(self) -> None:
        """Nothing to free."""

    def _models(self, asked: set[str]) -> set[str]:
        """Names of the models it speaks for; one script speaks for any."""
        return set(self._next_token) if isinstance(self._next_token, Mapping) else asked

    def _policy(self, model: str) -> NextToken:
        if self._next_token is None:
            raise EngineError(
                "a script of replies has no distribution to score or mix: give ScriptedEngine "
                "next_token instead of reply."
            )
        if isinstance(self._next_token, Mapping):
            return self._next_token[model]
        return self._next_token

    def _check(self, requests: Sequence[SampleRequest]) -> None:
        asked = {r.model for r in requests}
        asked |= {r.decode.mixture[0] for r in requests if r.decode.mixture is not None}
        models = self._models(asked)
        check_requests(
            requests,
            models=models,
            decoders=models if self._decode else (),
            capabilities=self.capabilities,
        )

    def _draw(self, requests: Sequence[SampleRequest]) -> list[_Row]:
        rows = [_Row(r, *room(r, self._max_context), self._decode) for r in requests]
        if self._reply is not None:
            for row in rows:
                self._recite(row)
            return rows
        for model in {row.request.model: None for row in rows}:
            live = [row for row in rows if row.request.model == model and row.stop is None]
            while live:
                self._advance(live)
                live = [row for row in live if row.stop is None]
        return rows

    def _advance(self, rows: Sequence[_Row]) -> None:
        """Draw one token for each row of one model."""
        logits = torch.stack([self._logits(row.request, row.said) for row in rows])
        seeds = [row.request.seed for row in rows]
        offsets = np.array([len(row.said) for row in rows])
        uniform = torch.from_numpy(uniforms(seeds, offsets, 1)[:, 0])
        drawn = draw(logits, uniform, Rules.of([_after_mixing(r.request.decode) for r in rows]))
        columns = (drawn.ids.tolist(), drawn.logprobs.tolist(), drawn.kept_logmass.tolist())
        for row, token, logprob, kept in zip(rows, *columns, strict=True):
            row.take(token, logprob, kept)

    def _logits(self, request: SampleRequest, said: tuple[int, ...]) -> Tensor:
        """Log-probabilities to draw from, [V]; a mixture is of distributions at temperature."""
        ids = (*request.ids.tolist(), *said)
        own = self._log_probs(request.model, ids)
        if request.decode.mixture is None:
            return own
        other, share = request.decode.mixture
        tau = request.decode.temperature or 1.0
        mixed = (1.0 - share) * (own / tau).softmax(-1)
        return (mixed + share * (self._log_probs(other, ids) / tau).softmax(-1)).log()

    def _log_probs(self, model: str, ids: tuple[int, ...]) -> Tensor:
        probs = torch.as_tensor(np.asarray(self._policy(model)(ids), np.float64))
        if not (
            probs.ndim == 1 and bool((probs >= 0).all()) and abs(float(probs.sum()) - 1) < 1e-6
        ):
            raise EngineError(
                f"next_token of the model {model!r} must give probabilities, [V] and summing to "
                f"1, got shape {tuple(probs.shape)} with sum {float(probs.sum()):.6g} after the "
                f"ids {list(ids[-8:])}."
            )
        return probs.log()

    def _score(self, item: ScoreItem) -> np.ndarray:
        context, target = item.context.tolist(), item.target.tolist()
        seen = [(*context, *target[:t]) for t in range(max(len(target), 1))]
        logits = torch.stack([self._log_probs(item.model, ids) for ids in seen])
        return wanted(logits[: len(target)], torch.tensor(target, dtype=torch.int64), item)

    def _recite(self, row: _Row) -> None:
        """Say the scripted reply from where the segment stands."""
        for token in self._reply_ids(row.request)[len(row.said) :]:
            if row.stop is not None:
                return
            row.take(token, 0.0, 0.0)
        row.stop = row.stop or Stop.COMPLETED

    def _reply_ids(self, request: SampleRequest) -> list[int]:
        reply = self._find(request)
        if not isinstance(reply, str):
            return [int(token) for token in reply]
        if self._encode is None:
            raise ConfigError(
                f"the reply {reply!r} is text: pass encode= to ScriptedEngine, or give ids."
            )
        return [*map(int, self._encode(reply)), *request.stop_ids[:1]]

    def _find(self, request: SampleRequest) -> str | Sequence[int]:
        if not isinstance(self._reply, Mapping):
            return self._reply(request) if self._reply else ()
        text = self._decode(request.ids.tolist()) if self._decode else ""
        found = {piece: text.rfind(piece) + len(piece) for piece in self._reply if piece in text}
        if not found:
            raise EngineError(
                f"no scripted reply fits the context ending {text[-80:]!r}; the pieces known are "
                f"{list(self._reply)}."
            )
        return self._reply[max(found, key=lambda piece: (found[piece], len(piece)))]


def _after_mixing(decode: Decode) -> Decode:
    """Settings to draw from logits that already hold mixture and temperature."""
    if decode.mixture is None or decode.temperature == 0.0:
        return decode
    return replace(decode, temperature=1.0)
