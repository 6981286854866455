"""Complete runs: `RECIPES` is the dictionary of names; `load` finds any run, `override` changes it.

A recipe is a function without arguments that returns a `Run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from posttrain.recipes.chains import chains_run
from posttrain.recipes.smollm2 import smollm2_sums
from posttrain.types.run import Run

RECIPES: Mapping[str, Callable[[], Run]] = MappingProxyType(
    {"chains": chains_run, "smollm2": smollm2_sums}
)
"""Every built-in recipe by name."""
