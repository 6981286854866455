"""Robustness cases on rollouts: few prompts, failures, empty answers, weights that must move."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from typing_extensions import override

from posttrain.data.sources import Rows
from posttrain.methods.dr_grpo import dr_grpo
from posttrain.parts.keeps import RewardsDiffer
from posttrain.parts.plans import FixedGroup
from posttrain.rewards.functions import SampleFunction
from posttrain.rollout.runner import Job, Runner
from posttrain.rollout.scripted import ScriptedEngine
from posttrain.testing.case_file import AtLeast, AtMost, Facts, Given, NotYetError, Text
from posttrain.testing.small_runs import (
    MAX_TOKENS,
    items,
    last_metrics,
    play,
    small_run,
    workplace,
)
from posttrain.testing.toy_ids import PROMPT, id_renderer
from posttrain.types.ask import Decode
from posttrain.types.engine import Sample, SampleRequest
from posttrain.types.env import Env, EnvFactory, Step
from posttrain.types.episode import Group
from posttrain.types.message import Message, Task
from posttrain.types.models import Seat
from posttrain.types.run import Lag, Limits


def few_prompts(given: Given, _expected: Given) -> Facts:
    """Fewer prompts than a step takes."""
    number, batch = int(given["prompts"]), int(given["batch"])
    with workplace() as place:
        run = small_run(place, items(number), steps=1, groups=batch)
        played = play(place, run, "run")
        groups = played.groups().get(1, [])
    text = str(played.error or "")
    return {
        "zero_steps_silently": played.error is None and (not groups or not played.heard.steps),
        "raises": played.error is not None,
        "message_mentions": Text(text),
        "processed": len(groups),
        "steps_completed": len(played.heard.steps),
    }


def constant(answer: str, gold: Any) -> float:
    """The same reward for every answer: the task's."""
    del answer
    return float(gold)


def nothing_to_learn(given: Given, _expected: Given) -> Facts:
    """Equal rewards everywhere, groups redrawn until some differ, up to a limit."""
    attempts, reward = int(given["max_attempts"]), float(given["all_rewards"])
    if not given["dynamic_sampling"]:
        raise NotYetError("the case without dynamic sampling")
    with workplace() as place:
        source = items(8, gold=reward, verifiers={"constant": SampleFunction(constant)})
        method = replace(
            dr_grpo(max_tokens=MAX_TOKENS, group_size=2),
            keep=RewardsDiffer(max_redraws=attempts - 1),
        )
        run = small_run(place, source, steps=1, groups=2, method=method)
        played = play(place, run, "run")
        tried = len(played.groups().get(1, ())) // 2
    return {
        "terminates": played.result is not None or played.error is not None,
        "attempts": tried,
        "message_mentions": Text(played.said),
        "raises": played.error is not None,
        "warned": bool(played.heard.warnings),
        "warns": bool(played.heard.warnings),
    }


@dataclass(frozen=True, slots=True)
class Unreliable(EnvFactory):
    """Fails for the first ``failing`` episodes it plays; the others are rewarded by turns."""

    failing: int
    played: list[int] = field(default_factory=list)

    @override
    def __call__(self, task: Task) -> Env:
        """A fresh environment, which may be one that fails."""
        self.played.append(0)
        number = len(self.played)
        return _Unreliable(fails=number <= self.failing, reward=float(number % 2))


class _Unreliable:
    def __init__(self, *, fails: bool, reward: float) -> None:
        self._fails, self._reward = fails, reward

    async def start(self, rng: np.random.Generator) -> Step:
        del rng
        await asyncio.sleep(0)
        return Step()

    async def step(self, action: Message) -> Step:
        del action
        if self._fails:
            raise OSError("the environment's server is gone")
        return Step(reward=self._reward, terminated=True)

    async def close(self) -> None:
        """Nothing is held."""


def failing_rollouts(given: Given, _expected: Given) -> Facts:
    """Some environments of a group fail; the step goes on without their episodes."""
    number, failing = int(given["rollouts"]), int(given["failing"])
    with workplace() as place:
        source = items(2, verifiers={}, env=Unreliable(failing))
        method = dr_grpo(max_tokens=MAX_TOKENS, group_size=number)
        run = small_run(place, source, steps=1, groups=1, method=method)
        engine = _Reciting(lambda request: [65, *request.stop_ids[:1]])
        played = play(place, run, "run", engine=engine)
        if played.error is not None:
            raise played.error
        group, metrics = played.groups()[1][0], last_metrics(played)
    return {
        "step_completed": played.heard.steps == [1],
        "failed_count_logged": int(metrics.get("episodes/failed", 0)),
        "failed_row_gradient": _credit_of_failed(group),
        "warned": bool(played.heard.warnings),
        "message_mentions": Text(played.said),
    }


def _credit_of_failed(group: Group) -> float:
    """Sum of the sizes of all advantages that tokens of failed episodes were given."""
    total = 0.0
    for episode in group.episodes:
        if episode.fault.infrastructure:
            for place in episode.segments:
                column = group.segments[place].columns.get("advantages")
                if column is not None:
                    total += float(np.nansum(np.abs(column.values)))
    return total


def empty_completion(given: Given, _expected: Given) -> Facts:
    """Completions of no tokens among others."""
    listed = [[int(i) for i in ids] for ids in given["completions"]]
    rewards = [float(r) for r in given["rewards"]]
    replies = iter(listed)
    with workplace() as place:
        engine = _Reciting(lambda _: next(replies))
        source = items(
            1, gold=_by_length(listed, rewards), verifiers={"listed": SampleFunction(by_length)}
        )
        method = dr_grpo(max_tokens=MAX_TOKENS, group_size=len(listed))
        run = small_run(place, source, steps=1, groups=1, method=method)
        played = play(place, run, "run", engine=engine)
        if played.error is not None:
            raise played.error
        metrics = last_metrics(played)
    finite = [metrics.get(n) for n in ("loss", "grad_norm", "completions/mean_length")]
    return {
        "loss_finite": all(isinstance(v, float) and np.isfinite(v) for v in finite),
        "step_completed": played.heard.steps == [1],
        "lengths": [metrics.get("completions/min_length"), metrics.get("completions/max_length")],
    }


def by_length(answer: str, gold: Any) -> float:
    """The reward the task gives to an answer of this many characters."""
    return float(gold.get(str(len(answer)), 0.0))


def _by_length(completions: Sequence[Sequence[int]], rewards: Sequence[float]) -> dict[str, float]:
    """Rewards by the number of characters the ids spell; byte tokens spell at most one."""
    return {str(len(ids)): reward for ids, reward in zip(completions, rewards, strict=True)}


class _Reciting(ScriptedEngine):
    """A script of replies that takes weights and holds them, as an engine must."""

    def __init__(self, reply: Any) -> None:
        super().__init__(reply=reply, decode=lambda ids: " ".join(map(str, ids)))


def members_differ(given: Given, _expected: Given) -> Facts:
    """Members of a group under one seed, and the same group again."""
    found = re.search(r"uniform over (\d+)", str(given["policy"]))
    if found is None:
        raise NotYetError(f"unknown policy {given['policy']!r}")
    width, length = int(found.group(1)), int(given["completion_length"])
    samples = int(given["samples_per_prompt"])
    decode = Decode(max_tokens=length, temperature=float(given.get("temperature", 1.0)))
    runs = [_uniform(width, samples, decode, int(given["seed"])) for _ in range(2)]
    return {
        "distinct_at_least": AtLeast(len(set(runs[0]))),
        "same_on_rerun": runs[0] == runs[1],
    }


def _uniform(width: int, samples: int, decode: Decode, seed: int) -> list[tuple[int, ...]]:
    """Completions of one group under a uniform policy."""
    probs = np.full(width, 1.0 / width)
    renderer = id_renderer(range(width))
    engine = ScriptedEngine(lambda _: probs, decode=lambda ids: renderer.decode(ids)[0])
    runner = Runner(
        engine=engine,
        renderers={"policy": renderer},
        seats={"policy": Seat()},
        decode=decode,
        limits=Limits(),
        seed=seed,
        exact=True,
    )
    source = Rows(({"prompt": PROMPT, "id": "0"},))
    plan = FixedGroup(size=samples)
    job = Job(phase=0, step=0, num_groups=1, source=source, plan=plan, state={})
    group = runner.rollout(job)[0]
    return [tuple(s.ids.tolist()) for s in group.segments if s.trains]


def dead_producer(given: Given, _expected: Given) -> Facts:
    """Sampling that dies after some batches, ahead of the trainer."""
    found = re.search(r"after (\d+)", str(given["producer"]))
    if found is None or "raise" not in str(given["producer"]):
        raise NotYetError(f"unknown producer {given['producer']!r}")
    batches, needs = int(found.group(1)), int(given.get("trainer_needs", given.get("max_steps", 5)))
    cause = OSError("the sampling process died")
    with workplace() as place:
        engine = _Dying(batches, cause)
        run = small_run(place, items(6), steps=needs, schedule=Lag(1))
        started = time.monotonic()
        played = play(place, run, "run", engine=engine)
        waited = time.monotonic() - started
    chain = _chain(played.error)
    return {
        "trainer_raises": played.error is not None,
        "raises": played.error is not None,
        "max_wait_s": AtMost(waited),
        "max_delay_s": AtMost(waited),
        "reported_as_success": played.result is not None or (bool(chain) and cause not in chain),
        "message_mentions": Text("\n".join(map(str, chain))),
    }


def _chain(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


class _Dying(ScriptedEngine):
    """Samples some batches, then raises."""

    def __init__(self, batches: int, cause: Exception) -> None:
        super().__init__(reply=lambda _: [1, 2], decode=lambda ids: " ".join(map(str, ids)))
        self._left, self._cause = batches, cause

    @override
    async def sample(self, requests: Sequence[SampleRequest]) -> AsyncIterator[Sample]:
        """Samples, as long as batches are left."""
        if not self._left:
            raise self._cause
        self._left -= 1
        async for sample in super().sample(requests):
            yield sample
