"""Complete runs: `RECIPES` is the dictionary of names; `load` finds any run, `override` changes it.

A recipe is a function without arguments that returns a `Run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from posttrain.recipes.chains import chains_run
from posttrain.types.run import Run

RECIPES: Mapping[str, Callable[[], Run]] = MappingProxyType({"chains": chains_run})
"""Every built-in recipe by name."""
