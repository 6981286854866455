"""A key-value cache with room ahead: a decoded token is written in place, nothing is copied.

Shapes: R rows, H key-value heads, D head width. Padding holds 0, so that a masked position stays
finite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer
from typing_extensions import override

_LEAST_ROOM = 64
"""Positions added at least when the room is used up."""


class GrowingLayer(DynamicLayer):
    """Keys and values of one layer, as views of larger buffers."""

    def __init__(self) -> None:
        super().__init__()
        self._buffers: tuple[Tensor, Tensor] | None = None
        self._used = 0

    def allocate(self, like: GrowingLayer, *, rows: int, used: int, room: int) -> None:
        """Become ``rows`` rows of zeros, ``used`` positions long with ``room`` more ahead."""
        if like.keys is not None and like.values is not None:
            self._hold(like.keys, like.values, rows=rows, size=used + room)
            for shown in self._show(used):
                shown.zero_()

    def put(self, into: Tensor, source: GrowingLayer, rows: Tensor) -> None:
        """Copy rows of another layer to the end of the used positions of the rows ``into``."""
        length = source.get_seq_length()
        for mine, theirs in ((self.keys, source.keys), (self.values, source.values)):
            if mine is not None and theirs is not None:
                mine[into, :, mine.shape[2] - length :] = theirs[rows]

    def move_rows(self, into: Tensor, rows: Tensor, *, left: int) -> None:
        """Copy rows over others and keep the first ``left``."""
        if self._buffers is None:
            return
        for buffer in self._buffers:
            buffer[into, :, : self._used] = buffer[rows, :, : self._used]
        self._buffers = self._buffers[0][:left], self._buffers[1][:left]
        self._show(self._used)

    @override
    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        """Write new positions and return all of them, [R, H, positions, D]."""
        start, end = self._used, self._used + key_states.shape[2]
        if self._buffers is None:
            self._hold(key_states, value_states, rows=len(key_states), size=end + _LEAST_ROOM)
        elif end > self._buffers[0].shape[2]:
            self._grow(end + max(_LEAST_ROOM, end // 2))
        keys, values = self._show(end)
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        return keys, values

    def _hold(self, keys: Tensor, values: Tensor, *, rows: int, size: int) -> None:
        self.device = keys.device
        self.is_initialized = True
        self._buffers = (
            keys.new_empty((rows, keys.shape[1], size, keys.shape[3])),
            values.new_empty((rows, values.shape[1], size, values.shape[3])),
        )

    def _grow(self, size: int) -> None:
        keys, values = self.keys, self.values
        if keys is not None and values is not None:
            self._hold(keys, values, rows=len(keys), size=size)
            new_keys, new_values = self._show(self._used)
            new_keys.copy_(keys)
            new_values.copy_(values)

    def _show(self, used: int) -> tuple[Tensor, Tensor]:
        keys, values = self._buffers or (torch.empty(0), torch.empty(0))
        self._used = used
        self.keys, self.values = keys[:, :, :used], values[:, :, :used]
        return self.keys, self.values


def new_cache() -> Cache:
    """An empty cache; layers come as a model fills them."""
    return Cache(layer_class_to_replicate=GrowingLayer)


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a filled cache and where they go."""

    cache: Cache
    rows: Tensor
    into: Tensor


def gather(parts: Sequence[Part], *, rows: int, used: int, room: int) -> Cache:
    """One cache of ``rows`` rows, each a copy of a row of a part, aligned at the right."""
    layers = []
    for i, model in enumerate(growing(parts[0].cache)):
        layer = GrowingLayer()
        layer.allocate(model, rows=rows, used=used, room=room)
        for part in parts:
            layer.put(part.into, growing(part.cache)[i], part.rows)
        layers.append(layer)
    return Cache(layers=layers)


def growing(cache: Cache) -> list[GrowingLayer]:
    """The layers of a cache made here."""
    return [layer for layer in cache.layers if isinstance(layer, GrowingLayer)]
