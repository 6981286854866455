"""Models in another precision: weights are cast, what a model computed at its start is not."""

from __future__ import annotations

from typing import TypeVar

import torch
from torch import nn

Module = TypeVar("Module", bound=nn.Module)


def cast_weights(module: Module, dtype: torch.dtype) -> Module:
    """The module itself, its floating-point parameters cast in place and its buffers left.

    Rotary frequencies are buffers. ``module.to(bfloat16)`` rounds them by up to 0.4 per cent, an
    error of angle that grows with the position; ``from_pretrained`` keeps them in float32 too.
    """
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    return module
