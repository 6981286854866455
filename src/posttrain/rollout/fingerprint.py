"""A hash of weights: equal on both sides of a delivery, or the delivery went wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


def fingerprint(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> str:
    """16 hexadecimal digits that name these weights.

    Names, shapes, dtypes and every bit count; the order of the mapping does not. Both sides of a
    delivery pass ``model.state_dict()``, which lists tied weights under every name.

    Args:
        tensors: Weights by parameter name, on any device.
        dtype: What floating-point tensors are cast to first: float32 master weights then have
            the fingerprint of the bfloat16 weights they are delivered as. None keeps each.
    """
    digest = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name].detach()
        if dtype is not None and tensor.is_floating_point():
            tensor = tensor.to(dtype)
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        raw = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
        digest.update(raw.numpy().data)
    return digest.hexdigest()[:16]
