"""Scores of given tokens: contexts are read once each, targets in pieces of bounded size.

Shapes: R items, T longest target, q tokens of a piece, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from posttrain.errors import EngineError
from posttrain.rollout.causal import CausalModel
from posttrain.rollout.prefill import Prefilled, prefill
from posttrain.rollout.wanted import wanted
from posttrain.types.engine import ScoreItem
from posttrain.types.probe import Hidden

_TOKENS = 16384
"""Tokens, padding included, of items scored side by side."""

_READ_OFF_LOGITS = -(1 << 20)
"""In place of a layer, for items that want none."""


@torch.inference_mode()
def score(model: CausalModel, items: Sequence[ScoreItem], *, max_rows: int) -> list[np.ndarray]:
    """One array an item, in order, as ``Engine.score``.

    Raises:
        EngineError: For a target without a context, or items the model's context cannot hold.
    """
    _check(model, items)
    found: list[np.ndarray] = [np.zeros(0, np.float32)] * len(items)
    for lot in _lots(items, max_rows):
        some = [items[i] for i in lot]
        for i, values in zip(lot, _score_lot(model, some), strict=True):
            found[i] = values
    for i, item in enumerate(items):
        if not len(item.target):
            found[i] = _nothing(model, item)
    return found


def _check(model: CausalModel, items: Sequence[ScoreItem]) -> None:
    for item in items:
        total = len(item.context) + len(item.target)
        if len(item.target) and not len(item.context):
            raise EngineError(
                f"an item of the model {item.model!r} has {len(item.target)} target tokens and an "
                "empty context: nothing precedes the first one. Start the context with the "
                "beginning-of-text token."
            )
        if model.max_context and total > model.max_context:
            raise EngineError(
                f"an item of {len(item.context)} context and {len(item.target)} target tokens "
                f"does not fit the model {item.model!r}, which reads {model.max_context}. "
                "Shorten the context, or lower Decode.max_tokens."
            )


def _nothing(model: CausalModel, item: ScoreItem) -> np.ndarray:
    if isinstance(item.want, Hidden):
        return np.zeros((0, model.width), np.float32)
    empty = torch.zeros((0, model.vocabulary))
    return wanted(empty, torch.zeros(0, dtype=torch.int64), item)


def _lots(items: Sequence[ScoreItem], max_rows: int) -> Iterator[list[int]]:
    """Numbers of the items with a target, alike in length and kind, in lots of bounded size."""

    def kind(i: int) -> tuple[int, int]:
        want, total = items[i].want, len(items[i].context) + len(items[i].target)
        return (want.layer if isinstance(want, Hidden) else _READ_OFF_LOGITS, total)

    lot: list[int] = []
    for i in sorted((i for i, item in enumerate(items) if len(item.target)), key=kind):
        full = len(lot) == max_rows or (len(lot) + 1) * kind(i)[1] > _TOKENS
        if lot and (full or kind(i)[0] != kind(lot[0])[0]):
            yield lot
            lot = []
        lot.append(i)
    if lot:
        yield lot


def _score_lot(model: CausalModel, items: Sequence[ScoreItem]) -> list[np.ndarray]:
    lengths = [len(item.target) for item in items]
    contexts = [item.context.astype(np.int32) for item in items]
    ready = prefill(model, contexts, room=max(lengths))
    table = np.zeros((len(items), max(lengths)), np.int64)
    for row, item in zip(table, items, strict=True):
        row[: len(item.target)] = item.target
    target = torch.from_numpy(table).to(model.device)
    want = items[0].want
    if isinstance(want, Hidden):
        pieces = _hidden(model, ready, target, want.layer)
        states = [
            [piece[r, : max(n - at, 0)].float().cpu().numpy() for at, piece in pieces]
            for r, n in enumerate(lengths)
        ]
        return [np.concatenate(rows) for rows in states]
    found: list[list[np.ndarray]] = [[] for _ in items]
    for at, logits in _logits(model, ready, target):
        for r, item in enumerate(items):
            n = min(len(item.target) - at, logits.shape[1])
            if n > 0:
                found[r].append(wanted(logits[r, :n], target[r, at : at + n], item))
    return [np.concatenate(pieces) for pieces in found]


def _logits(model: CausalModel, ready: Prefilled, target: Tensor) -> Iterator[tuple[int, Tensor]]:
    """First target of each piece and the logits that precede its tokens, [R, q, V]."""
    yield 0, ready.logits[:, None]
    R, T = target.shape
    start = 0
    while start < T - 1:
        seen = ready.mask.shape[1] + start
        end = min(start + model.piece(R, seen, logits=True), T - 1)
        mask, positions = _place(ready, start, end)
        yield (
            start + 1,
            model.logits(
                target[:, start:end],
                mask=mask,
                positions=positions,
                cache=ready.cache,
                keep=end - start,
            ),
        )
        start = end


def _hidden(
    model: CausalModel, ready: Prefilled, target: Tensor, layer: int
) -> list[tuple[int, Tensor]]:
    """First target of each piece and the hidden states at its tokens, [R, q, width]."""
    R, T = target.shape
    pieces, start = [], 0
    while start < T:
        end = min(start + model.piece(R, ready.mask.shape[1] + start, logits=False), T)
        mask, positions = _place(ready, start, end)
        states = model.hidden(
            target[:, start:end], mask=mask, positions=positions, cache=ready.cache, layer=layer
        )
        pieces.append((start, states))
        start = end
    return pieces


def _place(ready: Prefilled, start: int, end: int) -> tuple[Tensor | None, Tensor]:
    """Mask of everything up to the target's token ``end``, and positions of the new ones."""
    columns = torch.arange(start, end, device=ready.lengths.device)
    positions = ready.lengths[:, None] + columns
    if bool(ready.mask.all()):
        return None, positions
    return torch.cat((ready.mask, ready.mask.new_ones((len(ready.mask), end))), 1), positions
