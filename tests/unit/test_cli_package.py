"""The package itself: quick to import, and every public name there."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import posttrain

HEAVY = ("torch", "transformers", "vllm", "ray", "numpy", "tyro")


def test_importing_the_package_loads_nothing_heavy():
    code = f"import sys, posttrain; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_version_is_the_packages():
    project = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())
    assert posttrain.__version__ == project["project"]["version"]


def test_public_names_are_what_their_modules_hold():
    from posttrain.types.run import Run

    assert posttrain.Run is Run
    assert "fit" in dir(posttrain)
    with pytest.raises(AttributeError, match="'nothing'"):
        _ = posttrain.nothing
