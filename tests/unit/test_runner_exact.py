"""Waves: what is in them, and rollouts that are interrupted anywhere and go on exactly."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from rollout_kit import (
    Counting,
    Fixed,
    Listed,
    Rounds,
    ask_task,
    job,
    letters,
    runner,
    same_groups,
)

from posttrain.data.store import read_groups, write_groups
from posttrain.errors import CheckpointError, DeadlineError
from posttrain.rollout.waves import Waves
from posttrain.types.ask import Ask, Decode
from posttrain.types.engine import SampleRequest
from posttrain.types.env import EnvFactory, Step
from posttrain.types.episode import Fault, Node, Origin, Stop
from posttrain.types.method import Keep
from posttrain.types.run import Limits

LETTERS = {"a": 2, "b": 1, "c": 1}


class Rowwise:
    """Its tokens depend on everything that is sampled beside them, as matrix products may."""

    capabilities = frozenset({"topk"})

    def __init__(self):
        self.inner = letters(LETTERS, end=0.4)
        self.batches = []

    async def sample(self, requests):
        self.batches.append([r.key for r in requests])
        shift = sum(r.seed for r in requests) % 1009
        changed = [replace(r, seed=(r.seed + shift) % 2**63) for r in requests]
        async for sample in self.inner.sample(changed):
            yield sample


@dataclass(frozen=True)
class Jittery(EnvFactory):
    """Three turns at most; answers after a random time that no seed governs."""

    saves: bool = False

    def __call__(self, task):
        return _Jittery()


class _Jittery:
    def __init__(self):
        self.turns = 0

    async def start(self, rng):
        self.secret = int(rng.integers(100))
        return Step()

    async def step(self, action):
        await asyncio.sleep(random.random() * 0.01)
        self.turns += 1
        over = self.turns == 3 or action.content.startswith("c")
        return Step(reward=self.secret / 100, terminated=over)

    async def close(self):
        pass


SOURCE = Listed(
    tuple(ask_task(f"t{i}", f"task {i}", gold="a", env="w" if i % 3 else "") for i in range(7)),
    worlds={"w": Jittery()},
)


class Refine(Fixed):
    """Three rounds; the second depends on what the first earned."""

    reads = frozenset({"*"})

    def __call__(self, task, group, state):
        if group.round == 0:
            return (Ask(n=2), Ask(n=1, tag="more"))
        if group.round == 1:
            won = int(np.nansum(group.totals()) > 1)
            return (Ask(n=1 + won, decode=Decode(max_tokens=3)),)
        return ()


@dataclass(frozen=True)
class LongEnough(Keep):
    """Refuses short groups, so that places are drawn again."""

    max_redraws: int = 1

    def __call__(self, group, state):
        return sum(s.num_tokens for s in group.segments[1:]) > 30


JOB = job(SOURCE, Refine(), 3, keep=LongEnough())


class KilledError(Exception):
    pass


def rolled(engine, **more):
    return runner(engine, decode=Decode(max_tokens=6)).rollout(JOB, **more)


def test_timing_does_not_reach_the_tokens():
    one, other = Rowwise(), Rowwise()
    same_groups(rolled(one), rolled(other))
    assert one.batches == other.batches
    assert len(one.batches) > 4
    assert [len(b) for b in one.batches[:1]] == [9]
    shapes = [[tuple(int(i) for i in k.split("/")[0].split("-")) for k in b] for b in one.batches]
    assert all(keys == sorted(keys) for keys in shapes)


def test_killed_after_any_wave_and_resumed_it_is_the_same(tmp_path: Path):
    whole = Rowwise()
    stored = []
    expected = rolled(whole, on_wave=lambda groups: stored.append(list(groups)))
    assert len(stored) == len(whole.batches) - 1
    assert any(g.refused for g in expected)
    for group in expected:
        places = [(e.round, e.ask, e.member) for e in group.episodes]
        assert places == sorted(places)
    seen_partial = False
    for number, groups in enumerate(stored, start=1):
        write_groups(tmp_path / "inflight", groups)
        back = read_groups(tmp_path / "inflight")
        seen_partial |= any(e.note == "unfinished" for g in back for e in g.episodes)
        rest = Rowwise()
        same_groups(rolled(rest, unfinished=back), expected)
        assert rest.batches == whole.batches[number:]
    assert seen_partial


def test_a_hook_that_raises_stops_the_rollout_with_its_own_error():
    def kill(groups):
        raise KilledError("no space left")

    with pytest.raises(KilledError, match="no space"):
        rolled(Rowwise(), on_wave=kill)


def test_ended_episodes_are_not_played_again():
    played = []

    @dataclass(frozen=True)
    class Noted(EnvFactory):
        def __call__(self, task):
            played.append(task.id)
            return _Jittery()

    source = replace(SOURCE, worlds={"w": Noted()})
    stored = []
    work = replace(JOB, source=source)
    runner(Rowwise()).rollout(work, on_wave=lambda g: stored.append(list(g)))
    before = len(played)
    played.clear()
    last = stored[-1]
    over = sum(e.note != "unfinished" for g in last for e in g.episodes if g.task.env)
    runner(Rowwise()).rollout(work, unfinished=last)
    assert len(played) == before - over


def test_groups_of_another_step_or_task_are_refused():
    stored = []
    rolled(Rowwise(), on_wave=lambda g: stored.append(list(g)))
    with pytest.raises(CheckpointError, match="step 1"):
        runner(Rowwise()).rollout(replace(JOB, step=1), unfinished=stored[0])
    swapped = replace(JOB, source=replace(SOURCE, tasks=SOURCE.tasks[::-1]))
    with pytest.raises(CheckpointError, match="'t0'"):
        runner(Rowwise()).rollout(swapped, unfinished=stored[0])


def test_restarts_are_resumed_exactly_too():
    source = Listed((ask_task("t", "go", env="w"),), graders={}, worlds={"w": Counting(turns=3)})

    class Branch(Fixed):
        def __call__(self, task, group, state):
            if group.round == 1:
                node = Node(1, group.episodes[1].segments[3], 1)
                return (Ask(at=node, n=3, trains=False), Ask(n=1))
            return (Ask(n=2),) if group.round == 0 else ()

    plan = Branch()
    work = job(source, plan, 1)
    whole = Rowwise()
    stored = []
    expected = runner(whole).rollout(work, on_wave=lambda g: stored.append(list(g)))
    assert max(e.round for e in expected[0].episodes) == 1
    for number, groups in enumerate(stored, start=1):
        rest = Rowwise()
        same_groups(runner(rest).rollout(work, unfinished=groups), expected)
        assert rest.batches == whole.batches[number:]


def tokens(groups):
    return sum(
        int(s.action_mask.sum()) for g in groups for s in g.segments if s.origin is Origin.SAMPLED
    )


def test_a_spent_budget_begins_no_more_asks():
    engine = letters({"a": 1}, end=0.0)
    plan = Rounds(((Ask(n=2),), (Ask(n=3),), (Ask(n=1),)))
    limits = Limits(sampled_tokens=20)
    stored = []
    work = job(SOURCE, plan, 1)
    (group,) = runner(engine, limits=limits, decode=Decode(max_tokens=5)).rollout(
        work, on_wave=lambda g: stored.append(list(g))
    )
    stops = [e.stop for e in group.episodes]
    assert stops == [Stop.MAX_TOKENS] * 5 + [Stop.BUDGET]
    assert group.episodes[5].fault is Fault.SCHEDULER
    assert tokens([group]) == 25
    assert group.finished
    for groups in stored:
        again = runner(engine, limits=limits, decode=Decode(max_tokens=5))
        same_groups(again.rollout(work, unfinished=groups), [group])


def test_a_spent_budget_draws_no_further_groups():
    class Never(Keep):
        max_redraws = 5

        def __call__(self, group, state):
            return False

    work = job(SOURCE, Fixed(2), 2, keep=Never())
    engine = letters({"a": 1}, end=0.0)
    limits = Limits(sampled_tokens=30)
    stored = []
    groups = runner(engine, limits=limits, decode=Decode(max_tokens=5)).rollout(
        work, on_wave=lambda g: stored.append(list(g))
    )
    assert len(groups) == 4  # 20 tokens, then 40
    for some in stored:
        again = runner(engine, limits=limits, decode=Decode(max_tokens=5))
        same_groups(again.rollout(work, unfinished=some), groups)


@pytest.mark.parametrize("most", [1, 12, 30, 60])
def test_what_had_begun_before_the_budget_was_spent_goes_on_after_a_kill(most):
    class Never(Keep):
        max_redraws = 3

        def __call__(self, group, state):
            return False

    source = Listed((ask_task("t", "go", env="w"),), graders={}, worlds={"w": Counting(turns=3)})
    work = job(source, Rounds(((Ask(n=2),), (Ask(n=1),))), 1, keep=Never())
    settings = {"limits": Limits(sampled_tokens=most), "decode": Decode(max_tokens=40)}
    stored = []
    whole = runner(letters(LETTERS, end=0.3), **settings)
    expected = whole.rollout(work, on_wave=lambda g: stored.append(list(g)))
    spent = [tokens(g) >= most for g in stored]
    assert any(spent) or most == 60
    for groups in stored:
        again = runner(letters(LETTERS, end=0.3), **settings)
        same_groups(again.rollout(work, unfinished=groups), expected)


def test_waiting_for_a_slow_environment_does_not_begin_a_wave():
    engine = Rowwise()
    runner(engine, decode=Decode(max_tokens=6)).rollout(job(SOURCE, Fixed(2), 3))
    assert len(engine.batches[0]) == 6
    assert all(b == sorted(b) for b in engine.batches)


def test_a_wave_that_never_forms_is_given_up():
    async def stuck():
        waves = Waves(Rowwise(), wait_s=60, stuck_s=0.05)
        waves.enter(2)  # and only one of them ever asks
        request = SampleRequest(
            key="r", model="policy", ids=np.array([1]), decode=Decode(), stop_ids=(), seed=1
        )
        await waves.draw((0,), request)

    with pytest.raises(DeadlineError, match="1 of 2"):
        asyncio.run(stuck())


def test_a_silent_engine_names_a_request():
    class Silent(Rowwise):
        async def sample(self, requests):
            await asyncio.sleep(30)
            yield None

    with pytest.raises(DeadlineError, match=r"0-0-0/0\.0\.0/0"):
        runner(Silent(), limits=Limits(episode_s=0.05)).rollout(job(SOURCE, Fixed(1), 1))
