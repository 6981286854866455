"""Held-out accuracy while training: the same tasks with the same seeds every time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from posttrain.objectives.estimators import bootstrap_interval, wilson_interval
from posttrain.parts.plans import FixedGroup
from posttrain.rollout.runner import Job, Runner
from posttrain.trainers.checkpoint import empty_state
from posttrain.types.ask import Decode
from posttrain.types.episode import Group
from posttrain.types.method import Method, State
from posttrain.types.run import Evaluation
from posttrain.types.term import Counts, ModelOut, Stats, Term, TermOut, TokenBatch

EVALUATION_PHASE = 1 << 20
"""Key of evaluation groups, apart from every phase that trains."""


@dataclass(frozen=True, slots=True)
class NoTraining(Term):
    """Stands for an update where there is none."""

    @override
    def __call__(
        self, batch: TokenBatch, model: ModelOut, counts: Counts, stats: Stats | None
    ) -> TermOut:
        """Nothing."""
        return TermOut(model.policy_logprobs, model.policy_logprobs * 0.0)
