"""What is done to a model before it trains: dropout, checkpointing, scalar heads, adapters."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from posttrain.errors import ConfigError
from posttrain.types.models import LoRA


def no_dropout(module: nn.Module) -> None:
    """Switch every dropout of the module off for good."""
    for part in module.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
        for name in ("attention_dropout", "dropout", "attn_dropout"):
            if isinstance(getattr(part, name, None), float):
                setattr(part, name, 0.0)


def checkpointed(module: Any) -> None:
    """Recompute activations of each layer in the backward pass instead of keeping them."""
    module.gradient_checkpointing_enable({"use_reentrant": False})
    module.enable_input_require_grads()


def scalar_head(module: Any) -> nn.Linear:
    """A head that starts at 0, kept as ``module.value_head`` so that it is trained and saved."""
    head = nn.Linear(module.config.hidden_size, 1, bias=False)
    nn.init.zeros_(head.weight)
    module.value_head = head
    module.get_output_embeddings().requires_grad_(requires_grad=False)
    return head


def with_adapter(module: Any, lora: LoRA, *, seed: int) -> nn.Module:
    """The module with a fresh low-rank adapter; only that trains.

    Raises:
        ConfigError: a target is no linear layer of the module.
    """
    from peft import LoraConfig, get_peft_model

    targets = {n.rsplit(".", 1)[-1] for n, m in module.named_modules() if isinstance(m, nn.Linear)}
    missing = [t for t in lora.targets if t not in targets]
    if missing:
        raise ConfigError(
            f"LoRA.targets {missing} are no linear layers of {type(module).__name__}; it has "
            f"{sorted(targets)}."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LoraConfig(
            r=lora.rank,
            lora_alpha=lora.alpha,
            target_modules=list(lora.targets),
            lora_dropout=0.0,
            task_type="CAUSAL_LM",
        )
        return get_peft_model(module, config)


def merged(module: Any) -> dict[str, Tensor]:
    """Plain weights with the adapter's products added in float32."""
    merged: dict[str, Tensor] = {}
    base = module.get_base_model()
    for name, tensor in base.named_parameters():
        if ".lora_" in name:
            continue
        merged[name.replace(".base_layer.", ".")] = tensor
    for name, part in base.named_modules():
        if hasattr(part, "get_delta_weight"):
            key = f"{name}.weight"
            delta = part.get_delta_weight("default").float()
            merged[key] = (merged[key].float() + delta).to(merged[key].dtype)
    return merged
