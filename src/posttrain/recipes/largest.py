"""A real model on two cores: the largest of three numbers, after two examples.

The prompt is a string, two solved rows and an open one, so that a small instruction-tuned model
knows what is asked. Held-out problems are kept out of training by a hash of their numbers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from posttrain.methods.dr_grpo import dr_grpo
from posttrain.rewards.answers import ExactAnswer
from posttrain.types.ask import Decode
from posttrain.types.message import Task
from posttrain.types.method import Source, State, Verifier
from posttrain.types.models import AdamW, Constant, Trained
from posttrain.types.run import Checkpoints, Evaluation, Local, Phase, Run, Steps

EXAMPLES = "12, 45, 31 -> 45\n77, 20, 54 -> 77\n"
MAX_TOKENS = 5


def question(numbers: Sequence[int]) -> str:
    """The open row."""
    return ", ".join(map(str, numbers)) + " ->"


def is_held_out(numbers: Sequence[int]) -> bool:
    """One problem in five, whatever the order of its numbers."""
    name = ",".join(map(str, sorted(numbers)))
    return hashlib.blake2b(name.encode(), digest_size=8).digest()[0] % 5 == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest(Source):
    """Three distinct two-digit numbers."""

    held_out: bool = False

    @property
    @override
    def verifiers(self) -> Mapping[str, Verifier]:
        """The number alone, up to the end of the line."""
        return {"correct": ExactAnswer(accept=None, until="\n")}

    @override
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """``n`` problems, no set of numbers twice."""
        tasks: dict[str, Task] = {}
        while len(tasks) < n:
            numbers = rng.choice(np.arange(10, 100), 3, replace=False).tolist()
            if is_held_out(numbers) == self.held_out:
                name = ",".join(map(str, sorted(numbers)))
                prompt = EXAMPLES + question(numbers)
                tasks.setdefault(name, Task(id=name, prompt=prompt, gold=str(max(numbers))))
        return list(tasks.values())


def largest(path: str, *, seed: int = 0, steps: int = 20) -> Run:
    """Dr. GRPO on the largest of three, 8 problems x 8 answers a step.

    Args:
        path: A model, such as SmolLM2-135M-Instruct.
        seed: Of problems and sampling.
        steps: Updates.
    """
    rate = AdamW(lr=2e-5, betas=(0.9, 0.99), schedule=Constant(warmup=2))
    return Run(
        models={"policy": Trained(path=path, optimiser=rate)},
        phases=(Phase(dr_grpo(max_tokens=MAX_TOKENS, group_size=8), Largest(), Steps(steps)),),
        decode=Decode(max_tokens=MAX_TOKENS, stop=("\n",)),
        trainer=Local(groups_per_step=8, microbatch_tokens=3000),
        checkpoints=Checkpoints(every=0, keep_last=1),
        seed=seed,
    )


def held_out(*, num_tasks: int = 200, greedy: bool = False) -> Evaluation:
    """Held-out problems, one answer each."""
    heat = 0.0 if greedy else 1.0
    decode = Decode(max_tokens=MAX_TOKENS, stop=("\n",), temperature=heat)
    return Evaluation(source=Largest(held_out=True), num_tasks=num_tasks, decode=decode)
