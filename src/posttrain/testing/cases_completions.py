"""Token cases on completions and batches: ends, padding, positions, order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from posttrain.objectives.returns import place_on_last
from posttrain.testing.case_file import AtMost, Facts, Given, NotYetError
from posttrain.testing.cases_measures import tiny_model
from posttrain.testing.toy_ids import id_renderer, rows_of, sample, sampled_segments, words
from posttrain.trainers.batch import Row, collate
from posttrain.trainers.forward import Layout, Split, hidden_states
from posttrain.trainers.learner import LocalLearner
from posttrain.types.ask import Decode
from posttrain.types.episode import Segment
from posttrain.types.models import Trained
from posttrain.types.term import TokenBatch

_VOCABULARY = 19


def _ends(given: Given) -> tuple[int, ...]:
    if "eos_ids" in given:
        return tuple(int(i) for i in given["eos_ids"])
    return (int(given["eos"]),) if "eos" in given else ()


def _drawn(ids: Sequence[int], ends: tuple[int, ...], given: Given) -> tuple[Row, Segment]:
    """The row and the segment of a policy that would go on to say ``ids``."""
    pad = given.get("pad")
    limit = int(given.get("max_completion", len(ids) + 1))
    renderer = id_renderer(ids, ends=ends, pad=None if pad is None else int(pad))
    groups = sample(renderer, lambda _: list(ids), decode=Decode(max_tokens=limit))
    return rows_of(groups)[0], sampled_segments(groups[0])[0]


def _padded_mask(row: Row, width: int) -> Tensor:
    """[1, width] bool: the row's mask over its completion, in a batch with a longer row."""
    longer = Row(
        ids=np.zeros(1 + width, np.int64),
        loss_mask=np.arange(1 + width) > 0,
        temperature=np.ones(1 + width, np.float32),
        segment=np.zeros(1 + width, np.int64),
        columns={},
        episode=1,
        group=1,
    )
    return collate([row, longer]).loss_mask[:1, 1:]


def ended(given: Given, _expected: Given) -> Facts:
    """A completion with its end token, or cut by the limit, and padding behind it."""
    ids = [int(i) for i in given["completion"]]
    row, segment = _drawn(ids, _ends(given), given)
    mask = _padded_mask(row, len(ids))[0].int().tolist()
    return {
        "mask": mask,
        "loss_mask": mask,
        "truncated": segment.stop.truncated,
        "length": segment.num_tokens,
        "len_ids": segment.num_tokens,
        "trainable": sum(mask),
        "trained_ids": [segment.ids.tolist()],
    }


def reward_on_end(given: Given, _expected: Given) -> Facts:
    """Where the score of a completion lands."""
    ids = [int(i) for i in given["response"]]
    ends, pad = _ends(given), given.get("pad")
    kept = list(ids)
    if pad is not None and not set(ends) & set(ids):
        while kept and kept[-1] == int(pad):
            kept.pop()
    row, _ = _drawn(kept, ends, given)
    score = torch.tensor([float(given["score"])])
    found = place_on_last(score, _padded_mask(row, len(ids)))[0]
    return {"token_rewards": found.tolist(), "reward_position": int(found.abs().argmax())}


def aligned(given: Given, _expected: Given) -> Facts:
    """A completion with special tokens inside: nothing is dropped from any list."""
    ids = [int(i) for i in given["sampled_ids"]]
    special = [int(i) for i in given["special_ids"]]
    renderer = id_renderer(ids, special=special)
    group = sample(renderer, lambda _: ids)[0]
    segment, row = sampled_segments(group)[0], rows_of([group])[0]
    return {
        "len_ids": segment.num_tokens,
        "len_logprobs": int(np.isfinite(segment.rollout_logprobs).sum()),
        "len_mask": int(row.loss_mask.sum()),
        "ids": segment.ids.tolist(),
        "training_ids": row.ids[row.loss_mask].tolist(),
        "length": segment.num_tokens,
    }


def equal_prompts(given: Given, _expected: Given) -> Facts:
    """Groups stay apart though their prompts are equal."""
    prompts = [str(p) for p in given["prompts"]]
    samples = int(given["samples_per_prompt"])
    known = {text: place for place, text in enumerate(dict.fromkeys(prompts))}
    renderer = id_renderer(range(len(known) + 2))
    end = renderer.end_ids[0]
    texts = [words([known[p]]) for p in prompts]
    groups = sample(renderer, lambda _: [len(known), end], prompts=texts, samples=samples)
    rows = rows_of(groups)
    return {
        "completions": len(rows),
        "groups": len({row.group for row in rows}),
        "rows": len(rows),
    }


class _Recorder(nn.Module):
    """A backbone that keeps the positions it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.positions: Tensor | None = None

    @override
    def forward(self, *, input_ids: Tensor, position_ids: Tensor | None = None,
                **_: Any) -> tuple[Tensor]:  # fmt: skip
        width = input_ids.shape[1]
        counted = torch.arange(width).expand_as(input_ids)
        self.positions = counted if position_ids is None else position_ids
        return (torch.zeros(*input_ids.shape, 2),)


def _row(ids: np.ndarray, place: int) -> Row:
    return Row(
        ids=ids.astype(np.int64),
        loss_mask=np.arange(len(ids)) > 0,
        temperature=np.ones(len(ids), np.float32),
        segment=np.full(len(ids), place),
        columns={},
        episode=place,
        group=place,
    )


def positions(given: Given, _expected: Given) -> Facts:
    """Positions of real tokens in a row of a wider batch, on the side the case pads."""
    real = [bool(m) for m in given["attention_mask"]]
    number, width = sum(real), len(real)
    layout: Layout = "left" if real and not real[0] else "right"
    wanted = sorted(real) if layout == "left" else sorted(real, reverse=True)
    if real != wanted or number < 2:
        raise NotYetError("an attention mask with holes, or fewer than two real tokens")
    batch = collate([_row(np.arange(number), 0), _row(np.arange(width), 1)])
    recorder = _Recorder()
    hidden_states(Split(recorder, lambda h: h), batch, layout=layout)
    if recorder.positions is None:
        raise NotYetError("the backbone was not called")
    return {"position_ids_on_real_tokens": recorder.positions[0][torch.tensor(real)].tolist()}


def padded_logprobs(given: Given, _expected: Given) -> Facts:
    """Log-probs of rows alone and in one padded batch."""
    lengths = [int(n) for n in given["lengths"]]
    layouts: dict[str, Layout] = {"left": "left", "right": "right", "packed": "packed",
                                  "none": "packed"}  # fmt: skip
    padding = str(given.get("padding", "right"))
    if padding not in layouts:
        raise NotYetError(f"unknown padding {padding!r}")
    given.get("model")
    learner = LocalLearner(layout=layouts[padding])
    learner.add("policy", Trained(path="-", compute="float32"), tiny_model())
    rng = np.random.default_rng(0)
    rows = [_row(rng.integers(0, _VOCABULARY, n), place) for place, n in enumerate(lengths)]
    together, alone = collate(rows), [collate([row]) for row in rows]
    with torch.no_grad():
        whole = learner.forward("policy", together).policy_logprobs
        parts = [learner.forward("policy", b).policy_logprobs[0] for b in alone]
    gaps = [float((whole[i, : len(p)] - p).abs().max()) for i, p in enumerate(parts)]
    return {"max_abs_logp_difference": AtMost(max(gaps)), "rows": _count(together)}


def _count(batch: TokenBatch) -> int:
    return len(batch.ids)
