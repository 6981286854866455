"""Policies given by a table or a function, for the scripted engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

NextToken: TypeAlias = Callable[[tuple[int, ...]], Sequence[float] | np.ndarray]
"""All ids so far to the probabilities of the next token, [V]."""


@runtime_checkable
class Weighted(Protocol):
    """A ``next_token`` with weights: it is given those the engine loads."""

    def load(self, tensors: Mapping[str, object]) -> None:
        """Take new weights."""
        ...


@dataclass(slots=True, eq=False)
class TabularSoftmax:
    """The softmax of one row of a table of logits: a policy small enough to solve by hand."""

    logits: Tensor
    """[states, V]; ``load`` replaces it by the tensor of this name."""
    state: Callable[[tuple[int, ...]], int]
    """Ids so far to a row."""

    def __call__(self, ids: tuple[int, ...]) -> np.ndarray:
        """Probabilities of the next token, [V] float64."""
        return self.logits[self.state(ids)].detach().double().softmax(-1).numpy()

    def load(self, tensors: Mapping[str, object]) -> None:
        """Take the tensor ``logits``."""
        self.logits = torch.as_tensor(tensors["logits"]).detach().clone()
