"""From a name or a path to a run: built-in recipes, functions, Python files, saved runs."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from posttrain.errors import ConfigError, nearest
from posttrain.recipes import RECIPES
from posttrain.recipes.origin import Origin, build, module_of
from posttrain.recipes.override import merged
from posttrain.recipes.saved import SAVED, read_run
from posttrain.recipes.values import hints_of
from posttrain.types.run import Run


def load_recipe(recipe: str, overrides: Sequence[str] = ()) -> tuple[Run, Origin]:
    """The run that a word of the command line means, and where it came from.

    Args:
        recipe: A built-in name, ``module:function``, a Python file (``file.py`` or
            ``file.py:function``), a saved ``run.yaml``, or the folder that holds one.
        overrides: Options for ``override``.

    Raises:
        ConfigError: there is no such recipe, it gives no run, or a saved one no longer gives the
            run it was saved from.
    """
    path = Path(recipe)
    if recipe not in RECIPES and (path.suffix in (".yaml", ".yml") or (path / SAVED).is_file()):
        run, origin = read_run(path if path.suffix in (".yaml", ".yml") else path / SAVED)
        origin = replace(origin, overrides=merged(origin.overrides, overrides))
        return (build(origin) if overrides else run), origin
    origin = replace(_origin(recipe), overrides=tuple(overrides))
    return build(origin), origin


def _origin(recipe: str) -> Origin:
    if recipe in RECIPES:
        return Origin(recipe=recipe)
    file, colon, function = recipe.rpartition(":")
    path = Path(file if colon and file.endswith(".py") else recipe)
    if path.suffix == ".py":
        if not path.is_file():
            raise ConfigError(f"there is no recipe file {path}.")
        name = function if colon and file.endswith(".py") else _only_function(path)
        return Origin(recipe=f"{path.name}:{name}", file=path.resolve())
    if colon:
        return Origin(recipe=recipe)
    raise ConfigError(
        f"there is no recipe {recipe!r}.{nearest(recipe, RECIPES)} Built in: "
        f"{', '.join(RECIPES) or 'none'}. A recipe may also be module:function, a Python file with "
        f"a function that returns a Run, or a saved {SAVED}."
    )


def _only_function(path: Path) -> str:
    """The one function of a file that says it returns a Run."""
    module = module_of(path)
    names = [
        name
        for name, function in inspect.getmembers(module, inspect.isfunction)
        if function.__module__ == module.__name__ and hints_of(function).get("return") is Run
    ]
    if len(names) == 1:
        return names[0]
    if not names:
        raise ConfigError(
            f"{path} has no function that says it returns a Run. Write one: "
            "def my_run() -> Run: ..."
        )
    raise ConfigError(f"{path} has several recipes, {names}; say which: {path}:{names[0]}.")
