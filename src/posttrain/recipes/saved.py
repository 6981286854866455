"""``run.yaml``: how a run is built again, and the whole tree it came to, for reading.

What counts is the recipe (a user's file is copied beside it) and the overrides. The tree below them
is compared with what they give now, so that a run trained again is the same run or none.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

import posttrain
from posttrain.errors import ConfigError
from posttrain.recipes.origin import Origin, build
from posttrain.types.describe import Plain, describe, differences, tree_hash
from posttrain.types.run import Run

HEAD = """\
# A run of posttrain. Train it again:   posttrain train {path}
# Go on where it stopped:               posttrain train {path} --resume
# It is built from recipe and overrides; what stands under `run` is for reading.
"""
SAVED = "run.yaml"
"""Name of the file a run is saved in, inside its folder."""
SHOWN = 20
"""Differences an error lists."""


def save_run(folder: Path, run: Run, origin: Origin) -> Path:
    """Write ``run.yaml``, and a copy of the user's recipe file, into a run's folder."""
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Plain] = {
        "posttrain": posttrain.__version__,
        "recipe": origin.recipe,
        "overrides": list(origin.overrides),
        "hash": tree_hash(run),
        "run": describe(run),
    }
    if origin.file is not None:
        copy = folder / origin.file.name
        content["file_sha256"] = _digest(origin.file)
        if copy.resolve() != origin.file.resolve():
            shutil.copyfile(origin.file, copy)
    path = folder / SAVED
    text = yaml.safe_dump(content, sort_keys=False, width=100)
    aside = path.with_suffix(".writing")
    aside.write_text(HEAD.format(path=path) + text, encoding="utf-8")
    aside.rename(path)
    return path


def read_run(path: Path) -> tuple[Run, Origin]:
    """Build a saved run again.

    Raises:
        ConfigError: the file is damaged, or recipe and overrides give another run today; lists
            what differs.
    """
    content = _content(path)
    recipe = str(content["recipe"])
    place = recipe.rpartition(":")[0]
    origin = Origin(
        recipe=recipe,
        file=(path.parent / place).resolve() if place.endswith(".py") else None,
        overrides=tuple(str(word) for word in content["overrides"]),
        folder=path.parent,
    )
    if origin.file is not None and not origin.file.is_file():
        raise ConfigError(f"{path} needs its recipe file {origin.file.name} beside it.")
    if origin.file is not None and content.get("file_sha256") != _digest(origin.file):
        raise ConfigError(
            f"{origin.file} was changed since {path} was saved, so it may be another run now. To "
            f"train what it says now, name the file itself: posttrain train {origin.file}."
        )
    run = build(origin)
    changed = list(differences(content["run"], describe(run)))
    if changed or content["hash"] != tree_hash(run):
        lines = [f"  {at}: {old!r} in the file, {new!r} now" for at, old, new in changed[:SHOWN]]
        if len(changed) > SHOWN:
            lines.append(f"  and {len(changed) - SHOWN} more")
        raise ConfigError(
            f"{path} was saved from another run than {recipe} and its overrides give now "
            f"(posttrain {content['posttrain']} then, {posttrain.__version__} now):\n"
            + "\n".join(lines or ["  its hash"])
            + "\nThe tree in the file is for reading: change fields with --a.b value. To train "
            f"what the recipe gives now, name the recipe itself: posttrain train {recipe}."
        )
    return run, origin


def _content(path: Path) -> Mapping[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read as a saved run: {error}") from error
    needed = ("posttrain", "recipe", "overrides", "hash", "run")
    missing = [key for key in needed if not isinstance(content, dict) or key not in content]
    if missing:
        raise ConfigError(f"{path} is no saved run: it lacks {missing}.")
    return content


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()
