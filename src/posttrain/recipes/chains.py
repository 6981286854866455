"""The embedded task as a source, and the two runs of the quickstart: warm start, then RL.

The warm start is honest: every demonstration is correct. It first teaches the steps (worked
solutions), then blurs the habit of showing them (a quarter worked, the rest direct answers), which
leaves a policy that can reason and mostly does not. RL with a reward for the final answer alone
then has to find out that showing its work pays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from typing_extensions import override

from posttrain.data import chains
from posttrain.data.chains import SHORT, STANDARD, ChainLevel, Split
from posttrain.methods.dr_grpo import dr_grpo
from posttrain.methods.sft import sft
from posttrain.types.ask import Decode
from posttrain.types.episode import Group, RewardRow, Scope, Verdict
from posttrain.types.message import Message, Task
from posttrain.types.method import Source, State, Updates, Verifier
from posttrain.types.models import AdamW, Constant, Linear, ModelSpec, Trained
from posttrain.types.run import Checkpoints, Evaluation, Local, Phase, Run, Steps

MAX_TOKENS = chains.max_solution_chars(STANDARD) + 1
"""Holds every worked solution and the end token; the tiny reasoner has a token a character."""


@dataclass(frozen=True, slots=True)
class FinalAnswer(Verifier):
    """1 if what follows the last ``=`` is the answer, else 0."""

    name = "correct"

    @override
    def grade(self, task: Task, group: Group, episodes: Sequence[int]) -> Sequence[RewardRow]:
        """One row an episode."""
        return [_row(e, chains.final_answer(group.episode_text(e)), task) for e in episodes]


def _row(episode: int, said: str | None, task: Task) -> RewardRow:
    return RewardRow(
        scope=Scope.EPISODE,
        target=episode,
        name="correct",
        value=float(said == task.gold),
        verdict=Verdict.NO_ANSWER if said is None else Verdict.GRADED,
        answer=said or "",
        note="exact match of what follows the last '='",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Chains(Source):
    """Problems drawn afresh at every step, of one split."""

    level: ChainLevel = STANDARD
    split: Split = "train"
    worked_share: float | None = None
    """Share of worked solutions among the demonstrations; None gives no demonstrations."""
    checks: Mapping[str, Verifier] = field(default_factory=lambda: {"correct": FinalAnswer()})

    @property
    @override
    def verifiers(self) -> Mapping[str, Verifier]:
        """The exact check of the final answer."""
        return {} if self.worked_share is not None else self.checks

    @override
    def draw(self, state: State, n: int, rng: np.random.Generator) -> Sequence[Task]:
        """``n`` distinct problems."""
        problems = chains.draw_problems(rng, self.level, n, split=self.split, distinct=n <= 1024)
        return [self._task(p, rng) for p in problems]

    def _task(self, problem: chains.ChainProblem, rng: np.random.Generator) -> Task:
        columns = {}
        if self.worked_share is not None:
            share = self.worked_share
            columns["completion"] = chains.demonstrate(problem, rng, worked_share=share)
        return Task(
            id=problem.question,
            prompt=(Message("user", problem.question),),
            gold=problem.answer,
            columns=columns,
        )


def warm_start(*, seed: int = 0, batches: int = 75, blur_batches: int = 5) -> Run:
    """Imitation: worked solutions, then a fifth worked and the rest direct. About 0.13 M weights.

    A batch of demonstrations is passed over three times, 32 problems an update.

    Args:
        seed: Of weights, problems and sampling.
        batches: Batches of 128 worked solutions, 12 updates each.
        blur_batches: Batches of 256 mixed solutions, 12 updates each.
    """
    updates = 12 * batches
    taught = AdamW(
        lr=2e-3, betas=(0.9, 0.98), schedule=Linear(updates=updates, warmup=30, floor=0.1)
    )
    blurred = AdamW(lr=1e-3, betas=(0.9, 0.98))
    imitate = replace(sft(), updates=Updates(epochs=3, minibatches=4))
    return Run(
        models={"policy": Trained(path="tiny", optimiser=taught, init_seed=seed)},
        phases=(
            Phase(
                name="worked",
                method=imitate,
                source=Chains(level=SHORT, worked_share=1.0),
                until=Steps(batches),
                groups_per_step=128,
            ),
            Phase(
                name="blurred",
                method=imitate,
                source=Chains(level=SHORT, worked_share=0.2),
                until=Steps(blur_batches),
                groups_per_step=256,
                optimiser=blurred,
            ),
        ),
        decode=Decode(max_tokens=MAX_TOKENS),
        checkpoints=Checkpoints(every=0, episodes=False),
        seed=seed,
    )


def reinforce_chains(path: str, *, seed: int = 0, steps: int = 40, group_size: int = 16) -> Run:
    """Dr. GRPO on the final answer: 32 problems a step, held-out accuracy every 10 steps.

    Args:
        path: The warm-started model.
        seed: Of problems and sampling.
        steps: Updates.
        group_size: Answers a problem.
    """
    rate = AdamW(lr=5e-4, betas=(0.9, 0.99), schedule=Constant(warmup=5))
    policy: ModelSpec = Trained(path=path, optimiser=rate, init_seed=seed)
    return Run(
        models={"policy": policy},
        phases=(
            Phase(
                method=dr_grpo(max_tokens=MAX_TOKENS, group_size=group_size),
                source=Chains(),
                until=Steps(steps),
                evaluation=held_out(num_tasks=256, every=10),
            ),
        ),
        decode=Decode(max_tokens=MAX_TOKENS),
        trainer=Local(groups_per_step=32),
        checkpoints=Checkpoints(every=20),
        seed=seed,
    )


def chains_run() -> Run:
    """Warm start and RL in one run of three phases that hand the weights on."""
    warm = warm_start()
    trained = reinforce_chains("tiny")
    policy = trained.models["policy"]
    last = trained.phases[0]
    if isinstance(policy, Trained):
        last = replace(last, optimiser=policy.optimiser)
    return replace(trained, models=warm.models, phases=(*warm.phases, last))


def rl_phase_run(*, steps: int = 12, seed: int = 0) -> Run:
    """The RL run from random weights with small groups: for tests of the loop, not of learning."""
    run = reinforce_chains("tiny", seed=seed, steps=steps, group_size=4)
    phase = run.phases[0]
    small = Phase(method=phase.method, source=phase.source, until=phase.until, groups_per_step=4)
    return Run(
        models=run.models,
        phases=(small,),
        decode=run.decode,
        trainer=run.trainer,
        checkpoints=run.checkpoints,
        seed=seed,
    )


def held_out(*, num_tasks: int = 512, every: int = 0, greedy: bool = False) -> Evaluation:
    """Held-out problems, one answer each."""
    return Evaluation(
        source=Chains(split="heldout"),
        every=every,
        num_tasks=num_tasks,
        decode=Decode(max_tokens=MAX_TOKENS, temperature=0.0 if greedy else 1.0),
    )
