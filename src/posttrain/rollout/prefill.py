"""Contexts read into a cache: each different one once, whatever the number of rows that share it.

Shapes: R rows, U different contexts, n width of the padded contexts, V vocabulary. Contexts are
padded on the left.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers.cache_utils import Cache

from posttrain.rollout.causal import CausalModel
from posttrain.rollout.kv_cache import Part, gather, new_cache

_TOKENS = 8192
"""Tokens, padding included, of contexts read side by side."""


@dataclass(slots=True, eq=False)
class Prefilled:
    """Contexts in a cache, one a row."""

    cache: Cache
    logits: Float[Tensor, "R V"]
    """After the last token of each context."""
    lengths: Int[Tensor, " R"]
    mask: Bool[Tensor, "R n"]
    """False on padding."""


def prefill(model: CausalModel, contexts: Sequence[np.ndarray], *, room: int) -> Prefilled:
    """Read contexts, with place for ``room`` more tokens a row."""
    index: dict[bytes, int] = {}
    number = [index.setdefault(context.tobytes(), len(index)) for context in contexts]
    unique = [np.frombuffer(key, np.int32) for key in index]
    rows_of: list[list[int]] = [[] for _ in unique]
    for row, u in enumerate(number):
        rows_of[u].append(row)
    width = max(map(len, unique))
    parts, last = [], torch.empty(0)
    for chunk in _chunks(unique):
        cache, logits = _read(model, [unique[u] for u in chunk])
        into = [row for u in chunk for row in rows_of[u]]
        rows = [i for i, u in enumerate(chunk) for _ in rows_of[u]]
        part = Part(cache, *(torch.tensor(x, device=model.device) for x in (rows, into)))
        parts.append(part)
        if not len(last):
            last = logits.new_empty((len(contexts), logits.shape[-1]))
        last[part.into] = logits[part.rows]
    lengths = torch.tensor([len(context) for context in contexts], device=model.device)
    columns = torch.arange(width, device=model.device)
    return Prefilled(
        cache=gather(parts, rows=len(contexts), used=width, room=room),
        logits=last,
        lengths=lengths,
        mask=columns >= width - lengths[:, None],
    )


def _chunks(contexts: Sequence[np.ndarray]) -> Iterator[list[int]]:
    """Numbers of the contexts, by length, in lots of a bounded number of tokens."""
    chunk: list[int] = []
    for u in sorted(range(len(contexts)), key=lambda u: len(contexts[u])):
        if chunk and (len(chunk) + 1) * len(contexts[u]) > _TOKENS:
            yield chunk
            chunk = []
        chunk.append(u)
    yield chunk


def _read(model: CausalModel, contexts: Sequence[np.ndarray]) -> tuple[Cache, Tensor]:
    """A cache of the contexts and the logits after each, [U, V]."""
    width = len(contexts[-1])
    table = np.zeros((len(contexts), width), np.int64)
    for row, context in zip(table, contexts, strict=True):
        row[width - len(context) :] = context
    ids = torch.from_numpy(table).to(model.device)
    lengths = torch.tensor([len(context) for context in contexts], device=model.device)
    positions = torch.arange(width, device=model.device) - (width - lengths[:, None])
    mask = None if bool((lengths == width).all()) else positions >= 0
    positions = positions.clamp(min=0)
    cache, logits, start = new_cache(), torch.empty(0), 0
    while start < width:
        end = min(start + model.piece(len(contexts), start, logits=False), width)
        logits = model.logits(
            ids[:, start:end],
            mask=None if mask is None else mask[:, :end],
            positions=positions[:, start:end],
            cache=cache,
            keep=1,
        )
        start = end
    return cache, logits[:, -1]
