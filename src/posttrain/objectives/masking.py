"""Keeping untrained positions out of the arithmetic, and trained NaN out of the dark.

Shapes: B completions, T tokens. ``loss_mask`` is True where a token is trained. A masked position
may hold anything, NaN included: it is replaced *before* any arithmetic, because multiplying by
zero keeps a NaN and selecting after the arithmetic keeps a NaN gradient.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from posttrain.errors import NumericsError

__all__ = [
    "masked_mean",
    "require_finite",
    "row_sum",
    "select_trained",
    "spread_over_tokens",
    "without_truncated",
]


def select_trained(
    values: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], *, fill: float = 0.0
) -> Float[Tensor, "B T"]:
    """`values` where trained and `fill` elsewhere; neither value nor gradient leaks through."""
    return torch.where(loss_mask, values, torch.full_like(values, fill))


def spread_over_tokens(
    row_values: Float[Tensor, " B"], loss_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Each row's number on that row's own trained tokens, 0 on the others.

    The rows of one trajectory (its turns) each spread the same number over their own mask.
    """
    return select_trained(row_values.unsqueeze(-1).expand(loss_mask.shape), loss_mask)


def row_sum(values: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, " B"]:
    """Sum over the trained tokens of each row; a row without any gives 0."""
    return select_trained(values, loss_mask).sum(dim=-1)


def masked_mean(values: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Mean over the trained tokens of this batch, for metrics; 0 when there is none.

    A loss needs the counts of the whole optimiser step instead: see `objectives.weights`.
    """
    return select_trained(values, loss_mask).sum() / loss_mask.sum().clamp(min=1)


def without_truncated(
    loss_mask: Bool[Tensor, "B T"], truncated: Bool[Tensor, " B"]
) -> Bool[Tensor, "B T"]:
    """The mask with every row that hit its length limit taken out of the loss.

    Source: overlong filtering, DAPO, arXiv:2503.14476 sec. 3.4. Give the weights of
    `objectives.weights` the counts of the mask *before* this call if the denominator shall stay.
    """
    return loss_mask & ~truncated.unsqueeze(-1)


def require_finite(
    values: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], *, name: str
) -> None:
    """Refuse NaN or infinity on a trained token.

    Raises:
        NumericsError: names `name`, how many trained tokens are not finite, and the first of them.
    """
    broken = loss_mask & ~torch.isfinite(values)
    if not bool(broken.any()):
        return
    row, token = broken.nonzero()[0].tolist()
    raise NumericsError(
        f"{name} must be finite on every trained token, but {int(broken.sum())} of "
        f"{int(loss_mask.sum())} are not; the first is {values[row, token].item()} at row {row}, "
        f"token {token}. Mask the token if it shall not be trained, or look for the step that "
        "made it (a learning rate too high, half precision, an engine without log-probabilities)."
    )
