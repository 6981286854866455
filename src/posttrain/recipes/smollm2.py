"""SmolLM2-135M-Instruct learns to add one: a small real model, Dr. GRPO, a processor and no GPU.

A problem is a number of two or three digits plus 1, asked in a chat after one solved problem.
The model then answers with a number, mostly a wrong one when sampled. The reward is 1 for the exact
sum and nothing else. A hash of the problems' text decides which 200 of them are held out.

Measured (benchmarks/results/smollm2-sums.json, one seed): held-out accuracy sampled at temperature
1 from 0.19 to 0.82, greedy from 0.43 to 0.83. So a good part of the gain is sharpening, doing when
sampled what the model already did when greedy; the rest is new. Not all is gain: of the 26 held-out
numbers of two digits it solved 5 before and 1 after, for it came to repeat them; of the 21 sums
that carry, 1 before and 8 after (benchmarks/results/smollm2-sums.parquet).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Literal

import numpy as np
from typing_extensions import override

from posttrain.errors import DataError
from posttrain.methods.dr_grpo import dr_grpo
from posttrain.rewards.answers import ExactAnswer
from posttrain.types.ask import Decode
from posttrain.types.message import Message, Task
from posttrain.types.method import Source, State, Verifier
from posttrain.types.models import AdamW, Constant, Trained
from posttrain.types.run import Checkpoints, Evaluation, Local, Phase, Run, Steps

MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"
MAX_TOKENS = 6
"""Three digits, the turn's end, and room to be wrong; the model has a token a digit."""
NUM_HELD_OUT = 200
SYSTEM = "Calculate."
SOLVED = 146
"""The number whose sum is shown before every problem; in neither split."""

Split = Literal["train", "heldout"]


@cache
def numbers(split: Split) -> tuple[int, ...]:
    """The numbers of a split, in an order that a hash of the question gives."""
    every = [a for a in range(10, 900) if a != SOLVED]
    every.sort(key=lambda a: hashlib.sha256(asked(a).encode()).digest())
    return tuple(every[:NUM_HELD_OUT] if split == "heldout" else every[NUM_HELD_OUT:])


def asked(a: int) -> str:
    """The user's words."""
    return f"{a} + 1 ="


def sum_task(a: int) -> Task:
    """The problem a + 1 after the solved one, as a chat."""
    prompt = (
        Message("system", SYSTEM),
        Message("user", asked(SOLVED)),
        Message("assistant", str(SOLVED + 1)),
        Message("user", asked(a)),
    )
    return Task(id=f"{a}+1", prompt=prompt, gold=str(a + 1))


def _exact() -> dict[str, Verifier]:
    return {"exact_answer": ExactAnswer(accept=None)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Sums(Source):
    """Sums of one split: drawn at random to train, in a fixed order when held out."""

    split: Split = "train"
    checks: Mapping[str, Verifier] = field(default_factory=_exact)

    @property
    @override
    def verifiers(self) -> Mapping[str, Verifier]:
        """The exact sum and nothing else."""
        return self.checks

    @override
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """``n`` different problems.

        Raises:
            DataError: the split has fewer.
        """
        known = numbers(self.split)
        if n > len(known):
            raise DataError(
                f"Sums has {len(known)} problems in the split {self.split!r}, got a request for "
                f"{n}. Lower groups_per_step or num_tasks."
            )
        chosen = range(n) if self.split == "heldout" else rng.permutation(len(known))[:n]
        return [sum_task(known[i]) for i in chosen]


def held_out_sums(
    *, num_tasks: int = NUM_HELD_OUT, every: int = 0, greedy: bool = False
) -> Evaluation:
    """Held-out sums, one answer each."""
    return Evaluation(
        source=Sums(split="heldout"),
        every=every,
        num_tasks=num_tasks,
        decode=_decode(0.0 if greedy else 1.0),
    )


def _decode(temperature: float) -> Decode:
    return Decode(max_tokens=MAX_TOKENS, temperature=temperature)


def smollm2_sums(
    path: str = MODEL, *, seed: int = 0, steps: int = 12, lr: float = 4e-5, every: int = 5
) -> Run:
    """Dr. GRPO on sums, all weights trained: 6 problems a step, 8 answers each.

    Args:
        path: SmolLM2-135M-Instruct, as a Hugging Face id, a folder or a GGUF file.
        seed: Of problems and sampling.
        steps: Updates.
        lr: Learning rate after two updates of warm-up.
        every: Steps between evaluations on the first 100 held-out sums.
    """
    rate = AdamW(lr=lr, betas=(0.9, 0.95), schedule=Constant(warmup=2))
    return Run(
        models={"policy": Trained(path=path, optimiser=rate, init_seed=seed)},
        phases=(
            Phase(
                method=dr_grpo(max_tokens=MAX_TOKENS, group_size=8),
                source=Sums(),
                until=Steps(steps),
                evaluation=held_out_sums(num_tasks=100, every=every),
            ),
        ),
        decode=_decode(1.0),
        trainer=Local(groups_per_step=6, microbatch_tokens=2048),
        checkpoints=Checkpoints(every=0, episodes=False),
        seed=seed,
    )
