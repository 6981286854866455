"""Metrics of a term, as sums that merge over micro-batches and ranks.

All numbers of one term leave the device in one transfer. Shapes: B rows, T positions.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posttrain.types.term import Tally

Kind: TypeAlias = Literal["mean", "max", "min"]
Series: TypeAlias = tuple[Kind, Tensor]
"""How a metric is merged, and its value on every token, [B, T]."""


def tallies(series: Mapping[str, Series], loss_mask: Bool[Tensor, "B T"]) -> dict[str, Tally]:
    """Each series over the trained tokens; nothing at all where none is trained."""
    count = int(loss_mask.sum())
    if count == 0 or not series:
        return {}
    totals = torch.stack([_reduce(kind, values, loss_mask) for kind, values in series.values()])
    return {
        name: Tally(total, float(count), kind)
        for (name, (kind, _)), total in zip(series.items(), totals.tolist(), strict=True)
    }


def _reduce(
    kind: Kind, values: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, ""]:
    chosen = values.detach()[loss_mask].double()
    if kind == "mean":
        return chosen.sum()
    return chosen.max() if kind == "max" else chosen.min()
