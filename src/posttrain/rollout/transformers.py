"""An engine on Hugging Face ``transformers``: any causal model that keeps keys and values.

The reference for other engines, and the default on a laptop. Logits are those of the model's own
forward pass; the loop, the cache, the drawing and the stops are here.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

import numpy as np
from torch import Tensor
from transformers import PreTrainedModel

from posttrain.errors import ConfigError, EngineError
from posttrain.rollout.causal import CausalModel
from posttrain.rollout.decoding import Decoding
from posttrain.rollout.fingerprint import fingerprint
from posttrain.rollout.requests import Decoder, check_items, check_requests, known_model
from posttrain.rollout.scoring import score
from posttrain.rollout.weights import add_noise, check_version, copy_weights
from posttrain.types.engine import (
    Adapter,
    Capability,
    Change,
    NoiseDraw,
    Sample,
    SampleRequest,
    ScoreItem,
    Tensors,
)
from posttrain.types.models import Precision


class TransformersEngine:
    """Samples and scores with models of ``transformers``.

    Requests are taken in order, ``max_rows`` of a model side by side; rows of one context share
    its prefill. Equal requests in equal order give equal samples, bit for bit on a CPU with the
    same number of threads; in other company a log-prob may differ in its last digits, for matrix
    products do (``batch_invariant`` is not among its capabilities).

    Args:
        models: Models by name. One in another precision than ``compute`` is copied; one already
            in it is used as it is, and ``load`` writes into it.
        decode: Text of ids by model name, for stop strings.
        max_rows: Rows decoded side by side, >= 1.
        compute: Precision of weights and products; None keeps each model's own.

    Raises:
        ConfigError: For max_rows below 1 or a model this engine cannot decode.
    """

    capabilities: frozenset[Capability] = frozenset({"topk", "entropy", "hidden", "stop_when"})

    def __init__(
        self,
        models: Mapping[str, PreTrainedModel],
        *,
        decode: Mapping[str, Decoder] | None = None,
        max_rows: int = 512,
        compute: Precision | None = None,
    ) -> None:
        if max_rows < 1:
            raise ConfigError(f"TransformersEngine.max_rows must be >= 1, got {max_rows}.")
        self._models = {name: CausalModel(name, m, compute) for name, m in models.items()}
        self._decode = dict(decode or {})
        self._max_rows = max_rows
        self._versions = dict.fromkeys(self._models, 0)
        self._bases: dict[str, dict[str, Tensor]] = {}
        """Weights as delivered, while a noise draw is in use."""

    async def sample(self, requests: Sequence[SampleRequest]) -> AsyncIterator[Sample]:
        """Samples as their rows finish; other tasks run between the steps.

        ``stop_when`` sees NaN for the log-probs of tokens drawn before an interruption.

        Raises:
            EngineError: For an unknown model, or a request without context.
            ConfigError: For a decode setting it cannot keep.
            NumericsError: If a model gives NaN.
        """
        check_requests(
            requests,
            models=self._models,
            decoders=self._decode,
            capabilities=self.capabilities,
        )
        for batch in self._batches(requests):
            for sample in batch.start():
                yield sample
            while batch.live:
                await asyncio.sleep(0)
                for sample in batch.step():
                    yield sample

    def score(self, items: Sequence[ScoreItem]) -> list[np.ndarray]:
        """One array an item, in order; temperature 0 is read as 1.

        ``Hidden`` is the state at each target token, the last layer's after the final norm.

        Raises:
            EngineError: For an unknown model, a target without context, or an item too long.
            ConfigError: For a want it cannot give.
        """
        check_items(items, models=self._models, capabilities=self.capabilities)
        found: dict[int, np.ndarray] = {}
        for name in dict.fromkeys(item.model for item in items):
            own = [i for i, item in enumerate(items) if item.model == name]
            values = score(self._models[name], [items[i] for i in own], max_rows=self._max_rows)
            found.update(zip(own, values, strict=True))
        return [found[i] for i in range(len(items))]

    def load(self, model: str, version: int, change: Change) -> None:
        """Take whole tensors, or the weights delivered last plus a noise draw.

        Raises:
            EngineError: For an unknown model, a lower version, or weights that do not fit.
        """
        known_model(model, self._models)
        check_version(model, version, self._versions[model])
        parameters = self._parameters(model)
        match change:
            case Tensors(tensors=tensors):
                known = self._models[model].model.state_dict().keys()
                copy_weights(model, parameters, tensors, also=known)
                self._bases.pop(model, None)
            case NoiseDraw(seed=seed, scale=scale):
                base = self._bases.get(model)
                if base is None:
                    base = {name: p.detach().clone() for name, p in parameters.items()}
                    self._bases[model] = base
                add_noise(parameters, base, seed=seed, scale=scale)
            case Adapter():
                raise EngineError(
                    f"the engine takes no separate adapters (model {model!r}): merge the adapter "
                    "and deliver Tensors."
                )
        self._versions[model] = version

    def fingerprint(self, model: str) -> str:
        """Hash of the weights in use, in the engine's precision, tied ones once."""
        known_model(model, self._models)
        return fingerprint(self._parameters(model))

    def close(self) -> None:
        """Let go of the models."""
        self._models.clear()
        self._bases.clear()

    def _parameters(self, model: str) -> dict[str, Tensor]:
        return dict(self._models[model].model.named_parameters())

    def _batches(self, requests: Sequence[SampleRequest]) -> Iterator[Decoding]:
        for request in requests:
            if not len(request.ids):
                raise EngineError(
                    f"the request {request.key!r} has no context ids: nothing precedes the first "
                    "token. Start the context with the beginning-of-text token."
                )
        for name in dict.fromkeys(request.model for request in requests):
            own = [request for request in requests if request.model == name]
            for start in range(0, len(own), self._max_rows):
                yield Decoding(
                    self._models[name],
                    own[start : start + self._max_rows],
                    lambda name=name: self._versions[name],
                    self._decode.get(name),
                )
