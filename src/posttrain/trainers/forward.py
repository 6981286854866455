"""Log-probs, entropies and values of trained tokens, without ever holding a step's logits.

Shapes: B rows, T positions, N trained tokens of the batch in row-major order, H width, V
vocabulary. The backbone runs over whole rows; the vocabulary projection runs over chunks of trained
tokens and is computed again in the backward pass, so at most ``CHUNK_LOGITS`` logits are alive.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from posttrain.errors import InternalError
from posttrain.types.term import ModelOut, Needs, TokenBatch

CHUNK_LOGITS = 1 << 25
"""Logits held at once: 2**25 float32 are 128 MiB."""

Layout: TypeAlias = Literal["right", "left", "packed"]
"""How rows lie in the forward pass; the result is the same."""


@dataclass(frozen=True, slots=True)
class Split:
    """A causal model cut in two: hidden states, and logits of them."""

    backbone: nn.Module
    head: Callable[[Tensor], Tensor]
    scalar: bool = False
    """The head gives one value a state instead of logits."""


def split_scalar(module: Any, head: nn.Linear) -> Split:
    """A value or reward model: the backbone of a causal model and a scalar head [H -> 1]."""
    return Split(getattr(module, module.base_model_prefix), lambda h: head(h).float(), scalar=True)


def split_model(module: Any) -> Split:
    """Backbone and head of a Hugging Face causal model (or of the base under an adapter).

    Raises:
        InternalError: the two halves do not reproduce the model's own logits.
    """
    model = module.get_base_model() if hasattr(module, "peft_config") else module
    backbone = getattr(model, model.base_model_prefix)
    projection = model.get_output_embeddings()
    config = model.config
    scale = getattr(config, "logit_scale", None) or 1.0
    scale = scale / (getattr(config, "logits_scaling", None) or 1.0)
    cap = getattr(config, "final_logit_softcapping", None)

    def head(hidden: Tensor) -> Tensor:
        logits = projection(hidden).float() if hidden.dtype != torch.float64 else projection(hidden)
        logits = logits * scale if scale != 1.0 else logits
        return torch.tanh(logits / cap) * cap if cap else logits

    parts = Split(backbone, head)
    _check(model, parts)
    return parts


@torch.no_grad()
def _check(model: Any, parts: Split) -> None:
    device = next(model.parameters()).device
    ids = torch.arange(1, 5, device=device).remainder(model.config.vocab_size).unsqueeze(0)
    own = model(input_ids=ids, use_cache=False).logits
    ours = parts.head(parts.backbone(input_ids=ids, use_cache=False)[0])
    spread = float(own.float().abs().max()) + 1.0
    error = float((own.float() - ours.float()).abs().max()) / spread
    if error > 2e-2 or ours.shape != own.shape:
        raise InternalError(
            f"{type(model).__name__}: hidden states and output projection do not reproduce the "
            f"model's logits (relative difference {error:.2g}). Its head does something this "
            "version does not know; please report the architecture."
        )


def hidden_states(parts: Split, batch: TokenBatch, *, layout: Layout = "right") -> Tensor:
    """[N, H] hidden states that predict the trained tokens, in row-major order of loss_mask."""
    before = batch.loss_mask[:, 1:]  # the state at t - 1 predicts token t
    if layout == "right":
        return _run(parts, input_ids=batch.ids)[:, :-1][before]
    if layout == "left":
        return _left(parts, batch, before)
    return _packed(parts, batch, before)


def _run(parts: Split, **inputs: Tensor) -> Tensor:
    return parts.backbone(use_cache=False, **inputs)[0]


def _left(parts: Split, batch: TokenBatch, before: Tensor) -> Tensor:
    width = batch.ids.shape[1]
    lengths = batch.attention_mask.sum(-1, keepdim=True)
    shift = width - lengths
    places = torch.arange(width, device=batch.ids.device).expand_as(batch.ids)
    source = (places - shift).clamp(min=0)
    real = places >= shift
    hidden = _run(
        parts,
        input_ids=torch.where(real, batch.ids.gather(1, source), 0),
        attention_mask=real.long(),
        position_ids=source,
    )
    rows, columns = torch.nonzero(before, as_tuple=True)
    return hidden[rows, columns + shift[rows, 0]]


def _packed(parts: Split, batch: TokenBatch, before: Tensor) -> Tensor:
    real = batch.attention_mask
    rows, columns = torch.nonzero(real, as_tuple=True)
    same = rows.unsqueeze(0) == rows.unsqueeze(1)
    causal = columns.unsqueeze(0) <= columns.unsqueeze(1)
    dtype = next(parts.backbone.parameters()).dtype
    bias = torch.zeros(same.shape, dtype=dtype, device=batch.ids.device)
    bias = bias.masked_fill(~(same & causal), torch.finfo(dtype).min)
    hidden = _run(
        parts,
        input_ids=batch.ids[real].unsqueeze(0),
        position_ids=columns.unsqueeze(0),
        attention_mask=bias[None, None],
    )[0]
    places = torch.full(real.shape, -1, dtype=torch.long, device=real.device)
    places[real] = torch.arange(len(rows), device=real.device)
    return hidden[places[:, :-1][before]]


def token_outputs(
    parts: Split,
    batch: TokenBatch,
    *,
    needs: frozenset[Needs],
    layout: Layout = "right",
) -> ModelOut:
    """Log-probs of the trained tokens, and what else the terms need.

    Entropies are always there; they carry gradient only if a term needs them.
    """
    mask = batch.loss_mask
    hidden = hidden_states(parts, batch, layout=layout)
    if parts.scalar:
        values = parts.head(hidden).squeeze(-1)
        blank = torch.zeros(mask.shape, dtype=values.dtype, device=mask.device)
        return ModelOut(policy_logprobs=blank, values=blank.masked_scatter(mask, values))
    targets = batch.ids[mask]
    temperature = batch.temperature[mask]
    temperature = torch.where(temperature > 0, temperature, torch.ones_like(temperature))
    graded = "entropy" in needs
    logprobs, entropy = _by_chunks(parts.head, hidden, targets, temperature, graded)
    blank = torch.zeros(mask.shape, dtype=logprobs.dtype, device=mask.device)
    out = ModelOut(
        policy_logprobs=blank.masked_scatter(mask, logprobs),
        entropy=blank.masked_scatter(mask, entropy),
    )
    if "logits" in needs:
        out = replace(out, logits=parts.head(hidden) / temperature.unsqueeze(-1))
    return out


def _by_chunks(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Tensor,
    temperature: Tensor,
    graded: bool,  # noqa: FBT001 (positional for checkpoint)
) -> tuple[Tensor, Tensor]:
    vocabulary = head(hidden[:1].detach()).shape[-1] if len(hidden) else 1
    rows = max(1, CHUNK_LOGITS // vocabulary)
    found = []
    for at in range(0, len(hidden), rows):
        part = slice(at, at + rows)
        args = (head, hidden[part], targets[part], temperature[part], graded)
        once = len(hidden) <= rows or not torch.is_grad_enabled()
        found.append(_chunk(*args) if once else checkpoint(_chunk, *args, use_reentrant=False))
    if not found:
        empty = hidden.new_zeros(0, dtype=torch.promote_types(hidden.dtype, torch.float32))
        return empty + hidden.sum() * 0.0, empty
    return torch.cat([f[0] for f in found]), torch.cat([f[1] for f in found])


def _chunk(
    head: Callable[[Tensor], Tensor],
    hidden: Tensor,
    targets: Tensor,
    temperature: Tensor,
    graded: bool,  # noqa: FBT001
) -> tuple[Tensor, Tensor]:
    logits = head(hidden) / temperature.unsqueeze(-1)
    log_z = torch.logsumexp(logits, dim=-1)
    logprobs = logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1) - log_z
    with torch.set_grad_enabled(graded and torch.is_grad_enabled()):
        distribution = torch.softmax(logits if graded else logits.detach(), dim=-1)
        mean_logit = (distribution * (logits if graded else logits.detach())).sum(-1)
        entropy = (log_z if graded else log_z.detach()) - mean_logit
    return logprobs, entropy
