"""Methods: one short file each, composed from parts; `METHODS` is the dictionary of names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from posttrain.methods.dr_grpo import dr_grpo
from posttrain.methods.grpo import grpo
from posttrain.methods.reinforce import reinforce
from posttrain.methods.rloo import rloo
from posttrain.methods.sft import sft
from posttrain.types.method import Method

__all__ = ["METHODS", "PAPER_ARGUMENTS", "dr_grpo", "grpo", "reinforce", "rloo", "sft"]

METHODS: Mapping[str, Callable[..., Method]] = MappingProxyType(
    {"sft": sft, "reinforce": reinforce, "rloo": rloo, "grpo": grpo, "dr_grpo": dr_grpo}
)
"""Every preset by name; its keyword arguments have defaults unless the run alone knows them."""

PAPER_ARGUMENTS: Mapping[str, Mapping[str, object]] = MappingProxyType(
    {"dr_grpo": {"max_tokens": 3000}}
)
"""Arguments without a default, as in the paper's own runs: what a card is printed with."""
