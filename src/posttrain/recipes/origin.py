"""Where a run came from, and building it again from there."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from posttrain.errors import ConfigError, nearest
from posttrain.recipes import RECIPES
from posttrain.recipes.override import override
from posttrain.types.run import Run

_FROM_FILES: dict[str, Path] = {}
"""Modules that came from recipe files, and the file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a run came from: enough to build it again."""

    recipe: str
    """A built-in name, ``module:function``, or ``file.py:function``."""
    file: Path | None = None
    """The user's recipe file, if it came from one."""
    overrides: tuple[str, ...] = ()
    """Options given on the command line."""
    folder: Path | None = None
    """The run's folder, if it was saved before."""

    @property
    def name(self) -> str:
        """A short name, for folders and titles."""
        return self.recipe.rpartition(":")[2]


def build(origin: Origin) -> Run:
    """The run of an origin, with its overrides.

    Raises:
        ConfigError: the recipe is not there or gives no run.
    """
    function = _function(origin)
    needed = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
    ]
    if needed:
        raise ConfigError(
            f"the recipe {origin.recipe} needs the arguments {needed}; give each a default, since "
            "a recipe is called without any."
        )
    run = function()
    if not isinstance(run, Run):
        raise ConfigError(
            f"the recipe {origin.recipe} returned {type(run).__name__}; it must return a Run."
        )
    return override(run, origin.overrides)


def _function(origin: Origin) -> Callable[[], object]:
    if origin.file is None and origin.recipe in RECIPES:
        return RECIPES[origin.recipe]
    place, _, name = origin.recipe.rpartition(":")
    if origin.file is not None:
        module = module_of(origin.file)
    else:
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError as error:
            raise ConfigError(
                f"the recipe {origin.recipe!r} cannot be imported: {error}. Write module:function, "
                "with the module on Python's path, or give the file: path/to/file.py."
            ) from error
    found = getattr(module, name, None)
    if not callable(found):
        functions = [n for n, _ in inspect.getmembers(module, inspect.isfunction)]
        raise ConfigError(
            f"{place} has no function {name!r}; it has {functions}.{nearest(name, functions)}"
        )
    return found


def module_of(path: Path) -> ModuleType:
    """Import a file under its own name, its folder on Python's path, as a script would be."""
    path = path.resolve()
    name = path.stem
    if _FROM_FILES.get(name) == path:
        return sys.modules[name]
    if name not in _FROM_FILES and (name in sys.modules or importlib.util.find_spec(name)):
        found = importlib.util.find_spec(name)
        if found is None or found.origin != str(path):
            raise ConfigError(
                f"{path.name} has the name of another Python module, {name!r}; rename the file."
            )
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"{path} is no Python file.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        spec.loader.exec_module(module)
    except ModuleNotFoundError as error:
        sys.modules.pop(name, None)
        raise ConfigError(
            f"{path} imports {error.name!r}, which is not on Python's path. A saved run keeps a "
            "copy of the recipe file alone: put what it imports where Python finds it."
        ) from error
    _FROM_FILES[name] = path
    return module
