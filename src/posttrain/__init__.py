"""Reinforcement learning of language models: methods composed from parts, one loop.

The names of daily use can be imported from here; each is loaded when it is first asked for, so
that importing the package is quick::

    from posttrain import Run, Phase, Trained, Steps, fit
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from posttrain.api import evaluate as evaluate
    from posttrain.api import fit as fit
    from posttrain.api import replay as replay
    from posttrain.api import rescore as rescore
    from posttrain.api import rollout as rollout
    from posttrain.errors import PosttrainError as PosttrainError
    from posttrain.recipes.load import load_recipe as load_recipe
    from posttrain.types.ask import Decode as Decode
    from posttrain.types.episode import Group as Group
    from posttrain.types.message import Message as Message
    from posttrain.types.message import Task as Task
    from posttrain.types.method import Method as Method
    from posttrain.types.method import Source as Source
    from posttrain.types.method import Verifier as Verifier
    from posttrain.types.models import AdamW as AdamW
    from posttrain.types.models import Frozen as Frozen
    from posttrain.types.models import LoRA as LoRA
    from posttrain.types.models import MovingAverage as MovingAverage
    from posttrain.types.models import Seat as Seat
    from posttrain.types.models import Trained as Trained
    from posttrain.types.run import Checkpoints as Checkpoints
    from posttrain.types.run import Evaluation as Evaluation
    from posttrain.types.run import Lag as Lag
    from posttrain.types.run import Limits as Limits
    from posttrain.types.run import Local as Local
    from posttrain.types.run import Phase as Phase
    from posttrain.types.run import Reached as Reached
    from posttrain.types.run import Run as Run
    from posttrain.types.run import Steps as Steps
    from posttrain.types.run import Sync as Sync
    from posttrain.types.run import Transformers as Transformers

__version__ = "0.1.0"

_PLACES = {
    "api": "evaluate fit replay rescore rollout",
    "errors": "PosttrainError",
    "recipes.load": "load_recipe",
    "types.ask": "Decode",
    "types.episode": "Group",
    "types.message": "Message Task",
    "types.method": "Method Source Verifier",
    "types.models": "AdamW Frozen LoRA MovingAverage Seat Trained",
    "types.run": "Checkpoints Evaluation Lag Limits Local Phase Reached Run Steps Sync "
    "Transformers",
}
"""Where each public name lives."""

_HOME = {name: place for place, names in _PLACES.items() for name in names.split()}

__all__ = ["__version__", *sorted(_HOME)]  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> object:
    """Load a public name when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'posttrain' has no attribute {name!r}")
    found = getattr(import_module(f"posttrain.{_HOME[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})
