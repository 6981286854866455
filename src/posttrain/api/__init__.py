"""Fit, evaluate, rollout, rescore, replay: where trainer, engine and sinks meet."""

from posttrain.api.scoring import Rescored, evaluate, rescore, rollout
from posttrain.api.training import Result, fit, replay

__all__ = ["Rescored", "Result", "evaluate", "fit", "replay", "rescore", "rollout"]
