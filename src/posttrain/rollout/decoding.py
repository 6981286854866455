"""Rows of one model decoded side by side, a token a step; finished rows leave at once.

Shapes: R live rows, V vocabulary, S end tokens at most.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from posttrain.rollout.causal import CausalModel
from posttrain.rollout.kv_cache import growing
from posttrain.rollout.prefill import prefill
from posttrain.rollout.requests import Decoder, ends_by_rule, forced_left, room
from posttrain.rollout.sampling import Drawn, Rules, draw, uniforms
from posttrain.types.engine import Sample, SampleRequest
from posttrain.types.episode import Stop

_UNIFORMS = 64
"""Steps whose uniform numbers are made at once."""
_ROOM = 256
"""Positions reserved ahead at most; the cache grows beyond them as it is used."""
_NOTHING = np.zeros(0)


@dataclass(slots=True)
class _Row:
    """A request: what it had before the first step, and what a rule has seen of it since."""

    request: SampleRequest
    forced: tuple[int, ...]
    left: int
    """Tokens that may be drawn."""
    at_end: Stop
    said: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @classmethod
    def of(cls, request: SampleRequest, max_context: int) -> _Row:
        left, at_end = room(request, max_context)
        forced = forced_left(request)[:left]
        return cls(
            request=request,
            forced=forced,
            left=left - len(forced),
            at_end=at_end,
            said=[*request.drawn, *forced],
            logprobs=[float("nan")] * len(forced),
        )

    @property
    def watched(self) -> bool:
        """Whether a rule must see every token."""
        return bool(self.request.decode.stop) or self.request.decode.stop_when is not None

    @property
    def context(self) -> np.ndarray:
        """Everything before the first drawn token, int32."""
        return np.concatenate([self.request.ids, np.array(self.said, np.int32)], dtype=np.int32)

    def sample(
        self,
        stop: Stop,
        *,
        ids: np.ndarray = _NOTHING,
        logprobs: np.ndarray = _NOTHING,
        kept: np.ndarray = _NOTHING,
        version: np.ndarray = _NOTHING,
    ) -> Sample:
        """The segment, from what was drawn after the forced tokens."""
        blank = np.zeros(len(self.forced))
        return Sample(
            key=self.request.key,
            ids=np.concatenate([self.forced, ids]).astype(np.int32),
            logprobs=np.concatenate([blank + np.nan, logprobs]).astype(np.float32),
            version=np.concatenate([blank - 1, version]).astype(np.int32),
            stop=stop,
            kept_logmass=np.concatenate([blank, kept]).astype(np.float32) if kept.any() else None,
        )


class Decoding:
    """A batch of requests of one model.

    Args:
        model: The model.
        requests: What to draw; contexts are not empty.
        version: Version of the weights now in use, asked at every step.
        decode: Text of ids, for stop strings.
    """

    def __init__(
        self,
        model: CausalModel,
        requests: Sequence[SampleRequest],
        version: Callable[[], int],
        decode: Decoder | None,
    ) -> None:
        self._model = model
        self._version = version
        self._decode = decode
        every = [_Row.of(request, model.max_context) for request in requests]
        self._done_at_once = [row for row in every if row.left <= 0]
        self._rows = [row for row in every if row.left > 0]
        """Live rows, in the order of the tensors."""
        self._step = 0
        self._versions: list[int] = []

    @torch.inference_mode()
    def start(self) -> list[Sample]:
        """Read the contexts; the samples that have no room for a token."""
        if self._rows:
            self._prepare()
        return [row.sample(row.at_end) for row in self._done_at_once]

    @property
    def live(self) -> bool:
        """Whether rows are left."""
        return bool(self._rows)

    def _prepare(self) -> None:
        rows, device = self._rows, self._model.device
        most = max(row.left for row in rows)
        ready = prefill(self._model, [row.context for row in rows], room=min(most, _ROOM))
        self._cache, self._logits = ready.cache, ready.logits
        self._width = ready.mask.shape[1]
        self._lengths = ready.lengths
        ahead = ready.mask.new_ones((len(rows), most))
        self._mask = None if bool(ready.mask.all()) else torch.cat((ready.mask, ahead), 1)
        self._left = torch.tensor([row.left for row in rows], device=device)
        ends = [row.request.stop_ids for row in rows]
        longest = max(map(len, ends))
        self._ends = torch.tensor([[*e, *[-1] * (longest - len(e))] for e in ends], device=device)
        self._rules = Rules.of([row.request.decode for row in rows], device)
        self._uniform = torch.empty((len(rows), 0))
        self._places = torch.arange(len(rows), device=device)  # columns of the tables
        size = (min(most, _ROOM), len(rows))
        self._ids = torch.zeros(size, dtype=torch.int32, device=device)
        self._logprobs = torch.zeros(size, dtype=torch.float32, device=device)
        self._kept = torch.zeros(size, dtype=torch.float32, device=device)

    @torch.inference_mode()
    def step(self) -> list[Sample]:
        """Draw a token a row; the samples that it finished."""
        drawn = draw(self._logits, self._next_uniform(), self._rules)
        self._record(drawn)
        completed = (drawn.ids[:, None] == self._ends).any(1)
        stopped = completed | (self._left <= self._step)
        ruled = self._ask_rules(drawn, completed)
        if ruled:
            stopped[ruled] = True
        finished = self._finish(stopped, completed, set(ruled)) if bool(stopped.any()) else []
        ids = drawn.ids
        if finished:
            order = self._remove(stopped)
            ids = ids[order]
        if self._rows:
            self._forward(ids)
        return finished

    def _next_uniform(self) -> Tensor:
        at = self._step % _UNIFORMS
        if at == 0:
            seeds = [row.request.seed for row in self._rows]
            begun = [len(row.request.drawn) + len(row.forced) for row in self._rows]
            table = uniforms(seeds, np.array(begun) + self._step, _UNIFORMS)
            self._uniform = torch.from_numpy(table).to(self._model.device)
        return self._uniform[:, at]

    def _record(self, drawn: Drawn) -> None:
        if self._step == len(self._ids):
            self._ids, self._logprobs, self._kept = (
                torch.cat((table, torch.zeros_like(table)))
                for table in (self._ids, self._logprobs, self._kept)
            )
        self._ids[self._step, self._places] = drawn.ids.int()
        self._logprobs[self._step, self._places] = drawn.logprobs
        self._kept[self._step, self._places] = drawn.kept_logmass
        self._versions.append(self._version())
        self._step += 1

    def _ask_rules(self, drawn: Drawn, completed: Tensor) -> list[int]:
        """Rows that a stop string or a rule ends."""
        if not any(row.watched for row in self._rows):
            return []
        ended = []
        columns = (drawn.ids.tolist(), drawn.logprobs.tolist(), completed.tolist())
        for i, (row, token, logprob, full) in enumerate(zip(self._rows, *columns, strict=True)):
            row.said.append(token)
            row.logprobs.append(logprob)
            watched = not full and row.watched
            if watched and ends_by_rule(row.request, row.said, row.logprobs, self._decode):
                ended.append(i)
        return ended

    def _finish(self, stopped: Tensor, completed: Tensor, ruled: set[int]) -> list[Sample]:
        rows = stopped.nonzero().flatten()
        at = self._places[rows]
        ids, logprobs, kept = (
            table[: self._step, at].t().cpu().numpy()
            for table in (self._ids, self._logprobs, self._kept)
        )
        by_token = completed[rows].tolist()
        samples = []
        for n, i in enumerate(rows.tolist()):
            row = self._rows[i]
            stop = Stop.STOP_STRING if i in ruled else row.at_end
            sample = row.sample(
                Stop.COMPLETED if by_token[n] else stop,
                ids=ids[n],
                logprobs=logprobs[n],
                kept=kept[n],
                version=np.array(self._versions),
            )
            samples.append(sample)
        return samples

    def _remove(self, stopped: Tensor) -> Tensor:
        """Drop rows: the last live ones take the places of those that stopped; the new order."""
        left = len(stopped) - int(stopped.sum())
        into = stopped[:left].nonzero().flatten()
        rows = left + (~stopped[left:]).nonzero().flatten()
        for layer in growing(self._cache):
            layer.move_rows(into, rows, left=left)
        order = torch.arange(left, device=stopped.device)
        order[into] = rows
        self._rows = [self._rows[i] for i in order.tolist()]
        self._places, self._left, self._ends = (
            table[order] for table in (self._places, self._left, self._ends)
        )
        self._lengths, self._uniform = self._lengths[order], self._uniform[order]
        self._rules = self._rules.rows(order)
        if self._mask is not None:
            self._mask = self._mask[order]
        return order

    def _forward(self, ids: Tensor) -> None:
        seen = self._width + self._step
        positions = self._lengths + (self._step - 1)
        logits = self._model.logits(
            ids[:, None],
            mask=None if self._mask is None else self._mask[:, :seen],
            positions=positions[:, None],
            cache=self._cache,
            keep=1,
        )
        self._logits = logits[:, -1]
