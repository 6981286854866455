"""A causal language model as the engine calls it: ids, mask and positions in, logits out.

Shapes: R rows, q new tokens, n tokens in the cache after the call, V vocabulary.
"""

from __future__ import annotations

import copy
import inspect

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from transformers import PreTrainedModel
from transformers.cache_utils import (
    Cache,
    DynamicCache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
)

from posttrain.data.precision import cast_weights
from posttrain.errors import ConfigError, EngineError
from posttrain.types.models import Precision, fast_precision

_PIECE_TOKENS = 8192
"""Tokens of one forward pass, over all rows."""
_PIECE_SCORES = 1 << 26
"""Attention scores of one layer in one forward pass, over rows and heads."""
_PIECE_LOGITS = 1 << 25
"""Logits held at once while scoring."""

DTYPES: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float64": torch.float64,
}

_SHORT_CONTEXT = 1024
"""Longest context, in tokens, for which plain products are the faster attention on a CPU; in
bfloat16 they are at any length."""


class CausalModel:
    """A ``transformers`` model in evaluation mode, in the engine's precision.

    Args:
        name: Its name in the run, for messages.
        model: The model; copied first if it is not in ``compute``.
        compute: Precision of weights and products; None keeps the model's.

    Raises:
        ConfigError: If its layers keep a state that is not keys and values by position.
    """

    def __init__(self, name: str, model: PreTrainedModel, compute: Precision | None) -> None:
        if compute == "auto":
            compute = fast_precision(str(model.device))
        dtype = model.dtype if compute is None else DTYPES[compute]
        if model.dtype != dtype:
            model = cast_weights(copy.deepcopy(model), dtype)
        self.name = name
        self.model = model.eval()
        self._check_layers()
        self.dtype = dtype
        self.device = model.device
        config = model.config.get_text_config()
        self.vocabulary: int = config.vocab_size
        self.width: int = config.hidden_size
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.max_context: int = getattr(config, "max_position_embeddings", None) or 0
        """Tokens it can read; 0 if its configuration sets no limit."""
        short = 0 < self.max_context <= _SHORT_CONTEXT
        if self.device.type == "cpu" and (short or dtype == torch.bfloat16):
            model.set_attn_implementation("eager")
        accepted = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in accepted else "past_key_values"
        self._takes_positions = "position_ids" in accepted

    def _check_layers(self) -> None:
        plain = {DynamicLayer, DynamicSlidingWindowLayer}
        other = {type(layer) for layer in DynamicCache(config=self.model.config).layers} - plain
        if other:
            raise ConfigError(
                f"the model {self.name!r} ({type(self.model).__name__}) keeps "
                f"{sorted(kind.__name__ for kind in other)} between tokens; this engine decodes "
                "models whose layers keep keys and values by position. Use another engine for it."
            )

    def logits(
        self,
        ids: Int[Tensor, "R q"],
        *,
        mask: Bool[Tensor, "R n"] | None,
        positions: Int[Tensor, "R q"],
        cache: Cache,
        keep: int,
    ) -> Float[Tensor, "R keep V"]:
        """Logits after the last ``keep`` tokens; the cache takes the new ones."""
        return self._forward(ids, mask, positions, cache, logits_to_keep=keep).logits

    def hidden(
        self,
        ids: Int[Tensor, "R q"],
        *,
        mask: Bool[Tensor, "R n"] | None,
        positions: Int[Tensor, "R q"],
        cache: Cache,
        layer: int,
    ) -> Float[Tensor, "R q width"]:
        """Hidden states of a layer at the new tokens; layer 0 is the embedding, -1 the last.

        Raises:
            EngineError: If there is no such layer.
        """
        if not -self.layers - 1 <= layer <= self.layers:
            raise EngineError(
                f"Hidden.layer must be in [{-self.layers - 1}, {self.layers}] for the model "
                f"{self.name!r} of {self.layers} layers (0 is the embedding), got {layer}."
            )
        out = self._forward(
            ids, mask, positions, cache, logits_to_keep=1, output_hidden_states=True
        )
        return out.hidden_states[layer]

    def _forward(
        self,
        ids: Tensor,
        mask: Tensor | None,
        positions: Tensor,
        cache: Cache,
        **options: object,
    ):
        options[self._cache_name] = cache
        if self._takes_positions:
            options["position_ids"] = positions
        return self.model(input_ids=ids, attention_mask=mask, use_cache=True, **options)

    def piece(self, rows: int, seen: int, *, logits: bool) -> int:
        """Tokens a row that one forward pass may take after ``seen`` ones, >= 1.

        Args:
            rows: Rows of the pass.
            seen: Tokens in the cache.
            logits: Whether the logits after every token are kept.
        """
        width = _PIECE_TOKENS // rows
        if logits:
            width = min(width, _PIECE_LOGITS // (rows * self.vocabulary))
        while width > 1 and rows * self.heads * width * (seen + width) > _PIECE_SCORES:
            width //= 2
        return max(width, 1)
