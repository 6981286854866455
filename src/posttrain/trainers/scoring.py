"""Probes on the learner's side: score target tokens after a context."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from posttrain.errors import ConfigError
from posttrain.trainers.forward import Split, hidden_states, token_outputs
from posttrain.types.engine import ScoreItem
from posttrain.types.probe import Entropy, GradNorm, Hidden, Logprobs, TopK, Value
from posttrain.types.term import TokenBatch

BATCH_TOKENS = 16384
"""Tokens, padding included, of one forward pass."""


@torch.no_grad()
def score_items(
    items: Sequence[ScoreItem], models: Mapping[str, Split], *, device: torch.device
) -> list[np.ndarray]:
    """One float32 array an item, in order.

    Raises:
        ConfigError: an unknown model, or a want this learner cannot give.
    """
    results: list[np.ndarray] = [np.zeros(0, np.float32)] * len(items)
    order = sorted(
        range(len(items)), key=lambda i: (items[i].model, repr(items[i].want), _size(items[i]))
    )
    for (model, _), numbers in groupby(order, key=lambda i: (items[i].model, repr(items[i].want))):
        if model not in models:
            raise ConfigError(f"no model {model!r} to score with; there are {sorted(models)}.")
        for chunk in _chunks([n for n in numbers if len(items[n].target)], items):
            batch = _batch([items[n] for n in chunk], device)
            values = _values(models[model], batch, items[chunk[0]])
            for n, array in zip(chunk, _rows(values, batch), strict=True):
                results[n] = array
    return results


def _size(item: ScoreItem) -> int:
    return len(item.context) + len(item.target)


def _chunks(numbers: Sequence[int], items: Sequence[ScoreItem]) -> Iterator[list[int]]:
    """Runs of similar length, at most BATCH_TOKENS padded tokens; the input is sorted by size."""
    chunk: list[int] = []
    for n in numbers:
        if chunk and _size(items[n]) * (len(chunk) + 1) > BATCH_TOKENS:
            yield chunk
            chunk = []
        chunk.append(n)
    if chunk:
        yield chunk


def _batch(items: Sequence[ScoreItem], device: torch.device) -> TokenBatch:
    width = max(_size(i) for i in items)
    ids = torch.zeros(len(items), width, dtype=torch.long)
    real = torch.zeros(len(items), width, dtype=torch.bool)
    mask = torch.zeros(len(items), width, dtype=torch.bool)
    temperature = torch.ones(len(items), width)
    for row, item in enumerate(items):
        if not len(item.context):
            raise ConfigError("cannot score tokens with nothing before them; give a context.")
        start, end = len(item.context), _size(item)
        both = np.concatenate([item.context, item.target])
        ids[row, :end] = torch.from_numpy(both.astype(np.int64))
        real[row, :end] = True
        mask[row, start:end] = True
        temperature[row] = item.temperature
    rows = torch.arange(len(items))
    lengths = mask.sum(-1)
    return TokenBatch(
        ids=ids.to(device),
        attention_mask=real.to(device),
        loss_mask=mask.to(device),
        temperature=temperature.to(device),
        columns={},
        row=rows,
        episode=rows,
        group=rows,
        segment=torch.full(ids.shape, -1),
        row_tokens=lengths,
        episode_tokens=lengths,
    )


def _values(parts: Split, batch: TokenBatch, item: ScoreItem) -> Tensor:
    """[N] or [N, k] values of the target tokens, row by row."""
    mask = batch.loss_mask
    match item.want:
        case Logprobs():
            return token_outputs(parts, batch, needs=frozenset({"logprobs"})).policy_logprobs[mask]
        case Entropy():
            entropy = token_outputs(parts, batch, needs=frozenset({"logprobs"})).entropy
            return torch.zeros(0) if entropy is None else entropy[mask]
        case Value():
            values = token_outputs(parts, batch, needs=frozenset({"values"})).values
            if values is None:
                raise ConfigError(
                    f"the model {item.model!r} has no scalar head, so it gives no value; declare "
                    "it with Trained(head='scalar')."
                )
            return values[mask]
        case TopK(k=k):
            hidden = hidden_states(parts, batch)
            heat = batch.temperature[mask].clamp(min=1e-6).unsqueeze(-1)
            logprobs = torch.log_softmax(parts.head(hidden) / heat, dim=-1)
            top = logprobs.topk(min(k, logprobs.shape[-1]), dim=-1)
            return torch.cat([top.values, top.indices.to(top.values.dtype)], dim=-1)
        case Hidden(layer=-1):
            return hidden_states(parts, batch).float()
        case Hidden() | GradNorm():
            raise ConfigError(
                f"the local learner cannot give {item.want}; it gives log-probs, top-k, entropy, "
                "values and the last hidden state."
            )


def _rows(values: Tensor, batch: TokenBatch) -> list[np.ndarray]:
    sizes = batch.row_tokens.tolist()
    return [v.float().cpu().numpy() for v in values.split(sizes)]
