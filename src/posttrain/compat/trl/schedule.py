"""How long a TRL run is, in optimiser steps and in posttrain's steps, and how its rate falls."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from transformers.trainer_callback import TrainerControl
from typing_extensions import override

from posttrain.compat.trl.config import GRPOConfig
from posttrain.compat.trl.method import minibatches
from posttrain.errors import ConfigError
from posttrain.types.models import Constant, Cosine, LearningRate, Linear
from posttrain.types.run import Until


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Sizes of a run. A step samples once; an update is one step of the optimiser."""

    updates_a_step: int
    steps: int
    steps_a_pass: int | None
    """Steps in one pass over the data; None for a source without an end."""

    @property
    def updates(self) -> int:
        """Optimiser steps of the run: TRL's ``max_steps``."""
        return self.steps * self.updates_a_step

    def epoch(self, step: int) -> float | None:
        """Passes over the data after ``step`` steps."""
        return None if self.steps_a_pass is None else step / self.steps_a_pass

    def updates_for(self, given: float) -> int:
        """A number of updates as TRL's options give it: below 1 it is a share of the run."""
        return max(1, math.ceil(given * self.updates) if given < 1 else int(given))

    def steps_for(self, given: float) -> int:
        """The steps that make at least this many updates."""
        return math.ceil(self.updates_for(given) / self.updates_a_step)


def length_of(config: GRPOConfig, steps_a_pass: int | None) -> Length:
    """How long a run under these options is.

    Raises:
        ConfigError: its end would fall within the updates of one generation, or is not given.
    """
    updates_a_step = minibatches(config) * config.num_iterations
    if config.max_steps > 0:
        updates = config.max_steps
    elif steps_a_pass is None:
        raise ConfigError(
            "GRPOConfig.max_steps must be given for a source that is not a data set: it has no "
            "end that num_train_epochs could count."
        )
    else:
        updates = math.ceil(config.num_train_epochs * steps_a_pass * updates_a_step)
    steps, rest = divmod(updates, updates_a_step)
    if rest:
        raise ConfigError(
            f"GRPOConfig would stop after {updates} optimiser steps, but every generation makes "
            f"{updates_a_step} (steps_per_generation / gradient_accumulation_steps * "
            f"num_iterations). Set max_steps={steps * updates_a_step + updates_a_step}."
        )
    return Length(updates_a_step=updates_a_step, steps=steps, steps_a_pass=steps_a_pass)


@dataclass(frozen=True, slots=True, kw_only=True)
class RisingFromZero(LearningRate):
    """A linear warm-up whose first update has rate 0, then another schedule from its start.

    Source: transformers 5, which TRL uses; posttrain's own warm-ups begin above 0.
    """

    warmup: int
    then: LearningRate

    @override
    def __call__(self, update: int) -> float:
        """The multiplier at an update, counted from 0."""
        return update / self.warmup if update < self.warmup else self.then(update - self.warmup)


def learning_rate_of(config: GRPOConfig, length: Length) -> LearningRate:
    """The learning rate under these options."""
    given = config.warmup_steps
    warmup = int(given) if given >= 1 else math.ceil(length.updates * given)
    falling = max(1, length.updates - warmup)
    if config.lr_scheduler_type == "linear":
        then: LearningRate = Linear(updates=falling)
    elif config.lr_scheduler_type == "cosine":
        then = Cosine(updates=falling)
    else:
        then = Constant()
    risen = warmup == 0 or config.lr_scheduler_type == "constant"
    return then if risen else RisingFromZero(warmup=warmup, then=then)


@dataclass(frozen=True, slots=True)
class StepsOrStopped(Until):
    """After ``n`` steps, or as soon as a callback asks to stop."""

    n: int
    _control: TrainerControl = field(compare=False)

    @override
    def __call__(self, step: int, metrics: object) -> bool:
        """Whether to stop."""
        return step >= self.n or self._control.should_training_stop

    @property
    @override
    def steps(self) -> int:
        """``n``."""
        return self.n
