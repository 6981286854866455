"""Reading what a term needs from a batch: NaN on a trained token is an error, never a zero.

Shapes: B rows, T positions.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from posttrain.objectives.masking import require_finite
from posttrain.types.term import ModelOut, TokenBatch

ROLLOUT = "rollout_logprobs"
"""Column of the log-probs as drawn."""

KEPT = "kept_logmass"
"""Column of the log-mass that top-k, top-p and min-p kept; absent when nothing was filtered."""


def trained_column(batch: TokenBatch, name: str) -> Float[Tensor, "B T"]:
    """A column, finite wherever the term trains.

    ``rollout_logprobs`` comes back under the whole distribution: the engine reports the log-prob
    among the tokens that its filters kept, the trainer scores all of them.

    Raises:
        ConfigError: the column is not there.
        NumericsError: it has no finite value on a trained token.
    """
    values = batch.column(name).detach()
    if name == ROLLOUT and KEPT in batch.columns:
        values = values + torch.nan_to_num(batch.column(KEPT).detach())
    _require(batch, values, name)
    return values


def trained_policy(batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"]:
    """The policy's log-probs, with gradient, finite wherever the term trains.

    Raises:
        NumericsError: the model gave NaN or infinity for a trained token.
    """
    _require(batch, model.policy_logprobs.detach(), "policy_logprobs")
    return model.policy_logprobs


def trained_entropy(batch: TokenBatch, model: ModelOut) -> Float[Tensor, "B T"] | None:
    """The policy's entropy, finite wherever the term trains; None if the model did not give it.

    Raises:
        NumericsError: the model gave NaN or infinity for a trained token.
    """
    if model.entropy is not None:
        _require(batch, model.entropy.detach(), "entropy")
    return model.entropy


def _require(batch: TokenBatch, values: Float[Tensor, "B T"], name: str) -> None:
    broken = batch.loss_mask & ~torch.isfinite(values)
    if not bool(broken.any()):
        return
    row, position = broken.nonzero()[0].tolist()
    where = (
        f"{name} (group {batch.group[row].item()} of the step, episode "
        f"{batch.episode[row].item()}, segment {batch.segment[row, position].item()})"
    )
    require_finite(values, batch.loss_mask, name=where)
