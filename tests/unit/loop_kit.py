"""A whole run without a tokenizer: a tiny model over bytes, one loop, one process."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from tests.unit.build import tiny_llama
from typing_extensions import override

from posttrain.errors import ConfigError
from posttrain.rewards.functions import SampleFunction
from posttrain.rollout.prompts import Seating
from posttrain.rollout.runner import Runner
from posttrain.rollout.scripted import ScriptedEngine
from posttrain.testing.byte_chat import VOCABULARY, ByteChat
from posttrain.trainers.learner import LocalLearner
from posttrain.trainers.loop import Loop, Machinery
from posttrain.trainers.stages import probe_stage
from posttrain.types.ask import Decode
from posttrain.types.describe import tree_hash
from posttrain.types.message import Message, Task
from posttrain.types.method import Source
from posttrain.types.models import AdamW, Trained
from posttrain.types.run import Checkpoints, Local, Phase, Run, Steps

__all__ = ["Letters", "ModelPolicy", "loop_of", "run_of"]


def starts_early(answer: str, gold: str) -> float:
    """1 if the answer begins with a byte below 128."""
    del gold
    return float(bool(answer) and ord(answer[0]) < 128)


@dataclass(frozen=True)
class Letters(Source):
    """Tasks a, b, c, ... without end."""

    num: int = 5

    @property
    @override
    def verifiers(self):
        return {"early": SampleFunction(starts_early)}

    @override
    def draw(self, state, n, rng):
        first = state["draws"]["count"][0].as_py()
        names = [chr(97 + (first + i) % self.num) for i in range(n)]
        return [Task(id=c, prompt=(Message("user", c),), gold=c) for c in names]


class ModelPolicy:
    """A scripted engine's policy that computes with a model and takes its weights."""

    def __init__(self) -> None:
        self.model = tiny_llama(vocab=VOCABULARY)

    @torch.no_grad()
    def __call__(self, ids):
        logits = self.model(input_ids=torch.tensor([ids])).logits[0, -1]
        return logits.double().softmax(-1).numpy()

    def load(self, tensors):
        self.model.load_state_dict(dict(tensors))


@dataclass
class Heard:
    """Keeps every event."""

    events: list = field(default_factory=list)

    def __call__(self, event):
        self.events.append(event)

    def of(self, kind):
        return [e for e in self.events if isinstance(e, kind)]


def run_of(method, *, steps=3, **fields) -> Run:
    """A run of one phase on letters."""
    defaults = {
        "models": {"policy": Trained(path="-", optimiser=AdamW(lr=1e-3), compute="float32")},
        "phases": (Phase(method=method, source=Letters(), until=Steps(steps)),),
        "decode": Decode(max_tokens=4),
        "trainer": Local(groups_per_step=2, microbatch_tokens=64, exact=True),
        "checkpoints": Checkpoints(every=2),
    }
    return Run(**{**defaults, **fields})


def loop_of(run, folder, *, emit=None, engine=None) -> Loop:
    """The loop of a run over ModelPolicy; every call starts from the same weights."""
    emit = emit or Heard()
    learner = LocalLearner()
    for name, spec in run.models.items():
        learner.add(name, spec, tiny_llama(vocab=VOCABULARY))
    engine = engine or ScriptedEngine(ModelPolicy())
    chats = {seat: ByteChat() for seat in run.seats}
    render = Seating(run.seats, chats).render
    runner = Runner(
        engine=engine,
        renderers=chats,
        seats=run.seats,
        decode=run.decode,
        limits=run.limits,
        seed=run.seed,
        exact=True,
        emit=emit,
        probe=lambda groups, probes: probe_stage(groups, probes, learner, render=render),
    )
    on = Machinery(
        learner=learner,
        engine=engine,
        runner=runner,
        render=render,
        save_model=learner.models["policy"].module.save_pretrained,
        emit=emit,
    )
    return Loop(run=run, folder=folder, on=on, run_hash=tree_hash(run))


def master(loop) -> dict[str, np.ndarray]:
    """Final weights."""
    if not loop.on.learner.models:
        raise ConfigError("the loop has no models")
    return {n: t.numpy().copy() for n, t in loop.on.learner.models["policy"].master.items()}
