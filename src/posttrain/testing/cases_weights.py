"""Robustness cases on weights that reach the sampling engine, and what it keeps of older ones."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from posttrain.rollout.transformers import TransformersEngine
from posttrain.testing.case_file import Facts, Given, NotYetError, Text
from posttrain.testing.cases_measures import tiny_model
from posttrain.testing.small_runs import (
    Played,
    Workplace,
    items,
    play,
    small_run,
    trained,
    workplace,
)
from posttrain.types.ask import Decode
from posttrain.types.engine import (
    Capability,
    Change,
    Engine,
    Sample,
    SampleRequest,
    ScoreItem,
    Tensors,
)
from posttrain.types.models import LoRA
from posttrain.types.probe import Logprobs


class _Wrapped:
    """An engine that is not closed, and to which weights get through or do not."""

    def __init__(self, inner: Engine, *, deaf: bool) -> None:
        self._inner, self._deaf = inner, deaf
        self.capabilities: frozenset[Capability] = inner.capabilities

    def sample(self, requests: Sequence[SampleRequest]) -> AsyncIterator[Sample]:
        return self._inner.sample(requests)

    def score(self, items: Sequence[ScoreItem]) -> list[np.ndarray]:
        return self._inner.score(items)

    def load(self, model: str, version: int, change: Change) -> None:
        if not self._deaf:
            self._inner.load(model, version, change)

    def fingerprint(self, model: str) -> str:
        return self._inner.fingerprint(model)

    def close(self) -> None:
        """Stays open, to be looked at after the run."""


def weights_move(given: Given, _expected: Given) -> Facts:
    """Log-probs of the sampling engine before and after updates, and an engine that misses them."""
    updates = int(given["updates"])
    with workplace() as place:
        lora = LoRA(rank=4, targets=("q_proj", "v_proj")) if given["adapter_training"] else None
        models = {"policy": trained(place, lora=lora)}
        run = small_run(place, items(4), steps=updates, models=models)
        engine = _engine_of(place)
        before = _some_logprobs(engine)
        played = play(place, run, "run", engine=_Wrapped(engine, deaf=False))
        after = _some_logprobs(engine)
        deaf = play(place, run, "deaf", engine=_Wrapped(_engine_of(place), deaf=True))
        as_trained = _some_logprobs(_engine_of(place, _model_of(played)))
    moved = bool(np.abs(after - before).max() > 1e-6)
    return {
        "rollout_weights_changed": moved and bool(np.allclose(after, as_trained, atol=1e-5)),
        "checked_by_library": deaf.error is not None and deaf.result is None,
        "steps_completed": len(played.heard.steps),
        "message_mentions": Text(deaf.said),
    }


def _model_of(played: Played) -> str:
    if played.error is not None:
        raise played.error
    return "" if played.result is None else str(played.result.model)


def _engine_of(place: Workplace, path: str = "") -> TransformersEngine:
    model = AutoModelForCausalLM.from_pretrained(path or place.model)
    decode = {"policy": lambda ids: " ".join(map(str, ids))}
    return TransformersEngine({"policy": model}, decode=decode)


def _some_logprobs(engine: Engine) -> np.ndarray:
    ids = np.arange(20, 31, dtype=np.int32)
    item = ScoreItem(model="policy", context=ids[:3], target=ids[3:], want=Logprobs())
    return engine.score([item])[0]


def stale_prefix(given: Given, _expected: Given) -> Facts:
    """A context sampled from twice, with other weights the second time."""
    if not given["weights_change_between_calls"]:
        raise NotYetError("weights that do not change between two calls")
    asked = given["shared_prefix"]
    length = int(asked) if isinstance(asked, int | float) and asked > 1 else 12
    old, new = tiny_model(seed=0), tiny_model(seed=1)
    weights = Tensors({n: t.detach().clone() for n, t in new.state_dict().items()})
    engine, fresh = (TransformersEngine({"policy": m}) for m in (old, tiny_model(seed=1)))
    before = _drawn(engine, length)
    engine.load("policy", 1, weights)
    after, expected = _drawn(engine, length), _drawn(fresh, length)
    same = all(torch.equal(a, b) for a, b in zip(after, expected, strict=True))
    changed = not torch.equal(before[1], after[1])
    return {
        "cached_prefix_reused": not same,
        "rollout_weights_changed": changed,
    }


def _drawn(engine: TransformersEngine, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids and log-probs of two samples of one context."""
    ids = (np.arange(length, dtype=np.int32) * 5 + 1) % 19
    requests = [
        SampleRequest(key=f"r{i}", model="policy", ids=ids, decode=Decode(max_tokens=6),
                      stop_ids=(), seed=11 + i)
        for i in range(2)
    ]  # fmt: skip

    async def all_of() -> list[Sample]:
        return [s async for s in engine.sample(requests)]

    found = sorted(asyncio.run(all_of()), key=lambda s: s.key)
    return (
        torch.from_numpy(np.concatenate([s.ids for s in found])),
        torch.from_numpy(np.concatenate([s.logprobs for s in found])),
    )
