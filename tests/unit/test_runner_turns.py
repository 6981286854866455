"""Episodes of several turns: what is observed, who speaks, what fails, where it stops."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from rollout_kit import CHAT, Counting, Fixed, Listed, ask_task, job, letters, replies, runner

from posttrain.errors import ConfigError
from posttrain.testing.byte_chat import END, ByteChat
from posttrain.types.ask import Decode
from posttrain.types.env import EnvFactory, Step
from posttrain.types.episode import Fault, Origin, Said, Scope, Span, Stop, Verdict
from posttrain.types.message import Message
from posttrain.types.models import Seat
from posttrain.types.run import Limits


def world(factory: EnvFactory, **more: Any) -> Listed:
    return Listed((ask_task("t", "go", env="w"),), graders={}, worlds={"w": factory}, **more)


def by_turn(*texts: str):
    """A reply by the number of assistant headers in the context."""
    return replies(lambda r: texts[int((r.ids == 259).sum()) - 1])


def test_turns_extend_one_context_and_nothing_is_encoded_again():
    engine = by_turn("one", "two", "three")
    (group,) = runner(engine).rollout(job(world(Counting(turns=3)), Fixed(1), 1))
    (episode,) = group.episodes
    assert episode.segments == (0, 1, 2, 3, 4, 5, 6)
    kinds = [(s.origin, s.turn, s.text) for s in group.segments]
    assert kinds == [
        (Origin.OBSERVED, 0, "go"),
        (Origin.SAMPLED, 0, "one"),
        (Origin.OBSERVED, 1, "1:one"),
        (Origin.SAMPLED, 1, "two"),
        (Origin.OBSERVED, 2, "2:one/two"),
        (Origin.SAMPLED, 2, "three"),
        (Origin.OBSERVED, 3, "3:one/two/three"),
    ]
    for number, request in enumerate(engine.requests):
        before = group.segments[: 2 * number + 1]
        np.testing.assert_array_equal(request.ids, np.concatenate([s.ids for s in before]))
    context = group.segments[5].context
    assert context == tuple(Span(s, group.segments[s].num_tokens) for s in range(5))
    np.testing.assert_array_equal(group.segments[2].ids, [258, *b"1:one", END, 259])
    assert len({r.seed for r in engine.requests}) == 3


def test_turn_rewards_stay_apart_and_add_up():
    (group,) = runner(by_turn("a", "b", "c")).rollout(job(world(Counting(turns=3)), Fixed(1), 1))
    rows = [(r.scope, r.target, r.name, r.value) for r in group.rewards]
    assert rows == [
        (Scope.TURN, 1, "env", 1.0),
        (Scope.TURN, 3, "env", 2.0),
        (Scope.TURN, 5, "env", 3.0),
        (Scope.EPISODE, 0, "env", 6.0),
    ]
    assert group.total(0) == 6.0
    assert group.episodes[0].stop is Stop.COMPLETED


def test_max_turns_stops_and_what_was_earned_counts():
    limits = Limits(max_turns=2)
    (group,) = runner(by_turn("a", "b"), limits=limits).rollout(
        job(world(Counting(turns=9)), Fixed(1), 1)
    )
    assert (group.episodes[0].stop, group.total(0)) == (Stop.MAX_TURNS, 3.0)


def test_a_turn_cut_by_max_tokens_ends_the_episode_without_an_answer():
    engine = letters({"a": 1}, end=0.0)
    (group,) = runner(engine, decode=Decode(max_tokens=2)).rollout(
        job(world(Counting()), Fixed(1), 1)
    )
    assert group.episodes[0].stop is Stop.MAX_TOKENS
    assert len(engine.requests) == 1
    (row,) = group.rewards
    assert (row.value, row.verdict) == (0.0, Verdict.NO_ANSWER)
    assert "max_tokens" in row.note


def test_a_stop_string_is_closed_by_tokens_that_are_not_trained():
    engine = letters({"a": 1, "b": 1}, end=0.0)
    decode = Decode(max_tokens=50, stop=("b",))
    (group,) = runner(engine, decode=decode).rollout(job(world(Counting()), Fixed(1), 1))
    first, after = group.segments[1:3]
    assert first.text.endswith("b")
    assert first.stop is Stop.STOP_STRING
    assert after.ids[0] == END
    assert not after.action_mask.any()


def test_one_failing_environment_leaves_the_others_and_is_not_zero():
    engine = letters({"a": 1, "b": 1, "c": 1, "d": 1}, end=0.3)
    fails = Counting(turns=2, fails_at=1, fails_for="a")
    (group,) = runner(engine, decode=Decode(max_tokens=40)).rollout(job(world(fails), Fixed(8), 1))
    failed = [e for e in group.episodes if e.fault is Fault.ENVIRONMENT]
    assert 0 < len(failed) < 8
    assert {e.stop for e in failed} == {Stop.FAILED}
    assert "OSError: the disk is gone" in failed[0].note
    assert "'w'" in failed[0].note
    totals = group.totals()
    assert np.isnan(totals).sum() == len(failed)
    assert set(totals[np.isfinite(totals)]) == {3.0}


@dataclass(frozen=True)
class Odd(EnvFactory):
    """Misbehaves in the way ``how`` says."""

    how: str

    def __call__(self, task):
        if self.how == "build":
            raise RuntimeError("no room")
        return _Odd(self.how)


class _Odd:
    closed = 0

    def __init__(self, how):
        self.how = how

    async def start(self, rng):
        if self.how == "stall":
            await asyncio.sleep(60)
        return Step()

    async def step(self, action):
        return {"nan": Step(reward=float("nan")), "none": None}.get(self.how, Step(terminated=True))

    async def close(self):
        type(self).closed += 1
        if self.how == "close":
            raise ValueError("stuck door")


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("build", "no room"),
        ("stall", "waited 0.05 s"),
        ("nan", "reward nan"),
        ("none", "NoneType"),
    ],
)
def test_whatever_an_environment_does_is_its_own_fault(how, says):
    limits = Limits(env_s=0.05)
    source = world(Odd(how))
    (group,) = runner(by_turn("x", "y"), limits=limits).rollout(job(source, Fixed(2), 1))
    assert [e.fault for e in group.episodes] == [Fault.ENVIRONMENT] * 2
    assert says in group.episodes[0].note
    assert np.isnan(group.totals()).all()


def test_environments_are_closed_and_a_bad_close_is_only_noted():
    before = _Odd.closed
    (group,) = runner(by_turn("x")).rollout(job(world(Odd("close")), Fixed(3), 1))
    assert _Odd.closed - before == 3
    assert [e.fault for e in group.episodes] == [Fault.NONE] * 3
    assert "stuck door" in group.episodes[0].note


def test_an_opening_is_part_of_the_prompt_and_stored_once():
    (group,) = runner(by_turn("a", "b")).rollout(
        job(world(Counting(opening="ready?")), Fixed(3), 1)
    )
    assert group.segments[1].text == "goready?"
    assert [e.segments[:1] for e in group.episodes] == [(1,)] * 3
    np.testing.assert_array_equal(
        group.segments[1].ids, [258, *b"go", END, 258, *b"ready?", END, 259]
    )


def test_a_deadline_ends_an_episode_between_turns():
    @dataclass(frozen=True)
    class Slow(EnvFactory):
        def __call__(self, task):
            return _Slow()

    class _Slow(_Odd):
        def __init__(self):
            super().__init__("")

        async def step(self, action):
            await asyncio.sleep(0.2)
            return Step()

    (group,) = runner(by_turn("a", "b"), limits=Limits(episode_s=0.1)).rollout(
        job(world(Slow()), Fixed(1), 1)
    )
    assert (group.episodes[0].stop, group.episodes[0].fault) == (Stop.DEADLINE, Fault.SCHEDULER)
    assert group.total(0) is None


@dataclass(frozen=True)
class Debate(EnvFactory):
    """Two seats in turn; the second sees only what it is shown."""

    shows: Any = (Said("user", "You are the critic."), Span(1, -1))

    def __call__(self, task):
        return _Debate(self.shows)


class _Debate:
    def __init__(self, shows):
        self.shows, self.heard = shows, []

    async def start(self, rng):
        return Step()

    async def step(self, action):
        self.heard.append(action.content)
        if len(self.heard) == 1:
            return Step(seat="critic", shows=self.shows, messages=(Message("user", "Well?"),))
        return Step(messages=(Message("user", self.heard[1]),), terminated=len(self.heard) == 3)

    async def close(self):
        pass


def two_seats(**more: Any) -> dict[str, Any]:
    return {
        "renderers": {"policy": CHAT, "critic": more.pop("chat", CHAT)},
        "seats": {"policy": Seat(), "critic": Seat(model="second", system="Doubt.")},
        **more,
    }


def test_a_step_names_who_speaks_and_what_they_see():
    engine = replies(lambda r: "no" if r.model == "second" else "yes")
    (group,) = runner(engine, **two_seats()).rollout(job(world(Debate()), Fixed(1), 1))
    _, second, third = engine.requests
    assert [r.model for r in engine.requests] == ["policy", "second", "policy"]
    shown = [257, *b"Doubt.", END, 258, *b"You are the critic.", END, 259, *b"yes", END]
    np.testing.assert_array_equal(second.ids, [*shown, 258, *b"Well?", END, 259])
    np.testing.assert_array_equal(third.ids, [*second.ids, *b"no", END, 258, *b"no", END, 259])
    spoken = [s for s in group.segments if s.origin is Origin.SAMPLED]
    assert [(s.seat, s.model, s.turn) for s in spoken] == [
        ("policy", "policy", 0),
        ("critic", "second", 1),
        ("policy", "policy", 2),
    ]
    assert group.episode_text(0, joint="|") == "yes|no|yes"


def test_tokens_of_another_tokenizer_are_not_shown():
    engine = replies(lambda r: "x")
    with pytest.raises(ConfigError, match=r"'critic'.*'policy'"):
        runner(engine, **two_seats(chat=ByteChat("other"))).rollout(
            job(world(Debate()), Fixed(1), 1)
        )
    text_only = Debate(shows=(Said("user", "only words"),))
    settings = two_seats(chat=ByteChat("other"))
    with pytest.raises(ConfigError, match=r"'policy'.*'critic'"):  # the answer goes back as tokens
        runner(engine, **settings).rollout(job(world(text_only), Fixed(1), 1))


def test_showing_a_segment_that_is_not_there_is_the_environments_fault():
    (group,) = runner(replies(lambda r: "x"), **two_seats()).rollout(
        job(world(Debate(shows=(Span(5, -1),))), Fixed(1), 1)
    )
    assert group.episodes[0].fault is Fault.ENVIRONMENT
    assert "segment 5" in group.episodes[0].note


def test_the_environments_randomness_comes_from_the_episodes_seed():
    @dataclass(frozen=True)
    class Dice(EnvFactory):
        def __call__(self, task):
            return _Dice()

    class _Dice(_Odd):
        def __init__(self):
            super().__init__("")

        async def start(self, rng):
            return Step(messages=(Message("user", str(rng.integers(1 << 30))),))

    rolled = [
        runner(by_turn("x"), exact=exact).rollout(job(world(Dice()), Fixed(3), 1))[0]
        for exact in (True, False)
    ]
    prompts = [[g.text(e.segments[0]) for e in g.episodes] for g in rolled]
    assert prompts[0] == prompts[1]
    assert len(set(prompts[0])) == 3


def test_the_episodes_of_a_group_do_not_wait_for_one_another_in_a_stream():
    source = world(Counting(turns=3))
    a, b = (
        runner(letters({"a": 1, "b": 2}), exact=exact).rollout(job(source, Fixed(4), 2))
        for exact in (True, False)
    )
    assert [replace(g, rewards=()).episodes for g in a] == [g.episodes for g in b]
    assert [[s.text for s in g.segments] for g in a] == [[s.text for s in g.segments] for g in b]
