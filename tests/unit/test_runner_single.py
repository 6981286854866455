"""One prompt, one answer: what is stored, seeds, forced tokens, limits, failures."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import numpy as np
import pytest
from rollout_kit import CHAT, Fixed, Listed, Rounds, ask_task, job, letters, replies, runner

from posttrain.errors import ConfigError, DataError, EngineError
from posttrain.rollout.scripted import Trouble
from posttrain.testing.byte_chat import END, ByteChat
from posttrain.types.ask import Ask, Decode, Given
from posttrain.types.episode import Fault, Origin, Stop
from posttrain.types.events import Progress, Warned
from posttrain.types.message import Message, Task
from posttrain.types.models import Seat
from posttrain.types.run import Limits

SOURCE = Listed((ask_task("a", "1+1?", gold="2"), ask_task("b", "2+2?", gold="4")))


def test_every_token_of_two_groups_is_where_it_belongs():
    engine = replies(lambda r: "2" if b"1+1" in bytes(i for i in r.ids if i < 256) else "éx")
    groups = runner(engine).rollout(job(SOURCE, Fixed(3), 2))
    assert [g.key for g in groups] == [(0, 0, 0), (0, 0, 1)]
    assert [g.task.id for g in groups] == ["a", "b"]
    assert all(g.finished and g.round == 1 and not g.refused for g in groups)
    assert [len(g.segments) for g in groups] == [4, 4]
    prompt, *answers = groups[1].segments
    np.testing.assert_array_equal(prompt.ids, [258, *b"2+2?", END, 259])
    assert not prompt.action_mask.any()
    assert prompt.origin is Origin.OBSERVED
    for s, answer in enumerate(answers, start=1):
        np.testing.assert_array_equal(answer.ids, [0xC3, 0xA9, ord("x"), END])
        np.testing.assert_array_equal(answer.action_mask, [True] * 4)
        np.testing.assert_array_equal(answer.rollout_logprobs, np.zeros(4, np.float32))
        np.testing.assert_array_equal(answer.char_ends, [0, 1, 2, 2])
        assert (answer.text, answer.turn, answer.stop) == ("éx", 0, Stop.COMPLETED)
        assert [(c.segment, c.tokens) for c in answer.context] == [(0, 7)]
        assert (answer.seat, answer.model, answer.trains) == ("policy", "policy", True)
        assert groups[1].episodes[s - 1].segments == (0, s)
    assert list(groups[0].totals()) == [1.0, 1.0, 1.0]
    assert list(groups[1].totals()) == [0.0, 0.0, 0.0]
    row = groups[0].rewards[0]
    assert (row.verifier, row.version, row.seconds > 0) == ("says", "1", True)


def test_members_differ_and_a_second_run_is_the_same():
    rolled = [
        runner(letters({"a": 1, "b": 1, "c": 1}), exact=exact).rollout(job(SOURCE, Fixed(4), 2))
        for exact in (True, True, False)
    ]
    texts = [[s.text for g in groups for s in g.segments[1:]] for groups in rolled]
    assert texts[0] == texts[1] == texts[2]
    assert len(set(texts[0])) > 4
    seeds = {e.seed for g in rolled[0] for e in g.episodes}
    assert len(seeds) == 8
    assert all(0 <= seed < 2**63 for seed in seeds)
    other = runner(letters({"a": 1, "b": 1, "c": 1}), seed=8).rollout(job(SOURCE, Fixed(4), 2))
    assert [s.text for g in other for s in g.segments[1:]] != texts[0]


def test_it_works_inside_a_running_event_loop():
    async def notebook():
        return runner(letters({"a": 1})).rollout(job(SOURCE, Fixed(1), 1))

    assert asyncio.run(notebook())[0].finished


def test_forced_tokens_stand_in_the_segment_and_are_not_trained():
    engine = letters({"a": 1})
    decode = Decode(max_tokens=5, forced=(ord("x"), ord("y")), temperature=0.5)
    (group,) = runner(engine).rollout(job(SOURCE, Fixed(1, decode=decode), 1))
    answer = group.segments[1]
    assert answer.text.startswith("xy")
    np.testing.assert_array_equal(answer.action_mask[:3], [False, False, True])
    assert np.isnan(answer.rollout_logprobs[:2]).all()
    assert np.isfinite(answer.rollout_logprobs[2:]).all()
    np.testing.assert_array_equal(answer.version[:3], [-1, -1, 0])
    assert answer.temperature == 0.5


def test_filters_leave_their_kept_mass_as_a_column():
    decode = Decode(max_tokens=4, top_k=1)
    (group,) = runner(letters({"a": 3, "b": 1}, end=0.1)).rollout(
        job(SOURCE, Fixed(1, decode=decode), 1)
    )
    answer = group.segments[1]
    np.testing.assert_allclose(answer.columns["kept_logmass"].values, np.log(0.675), rtol=1e-6)
    np.testing.assert_allclose(answer.rollout_logprobs, 0.0, atol=1e-6)


def test_max_tokens_and_max_context_are_told_apart():
    engine = letters({"a": 1}, end=0.0)
    (group,) = runner(engine, decode=Decode(max_tokens=3)).rollout(job(SOURCE, Fixed(1), 1))
    assert (group.episodes[0].stop, group.segments[1].num_tokens) == (Stop.MAX_TOKENS, 3)
    limits = Limits(max_context=9)  # the prompt has 7 tokens
    (group,) = runner(engine, limits=limits).rollout(job(SOURCE, Fixed(1), 1))
    assert (group.episodes[0].stop, group.segments[1].num_tokens) == (Stop.MAX_CONTEXT, 2)
    assert group.total(0) == 0.0


def test_a_prompt_beyond_the_limit_is_left_out_and_told():
    heard = []
    small = runner(letters({"a": 1}), limits=Limits(max_context=7), emit=heard.append)
    (group,) = small.rollout(job(SOURCE, Fixed(1), 1))
    (episode,) = group.episodes
    assert (episode.stop, episode.fault) == (Stop.MAX_CONTEXT, Fault.SCHEDULER)
    assert group.total(0) is None
    (warning,) = [e.text for e in heard if isinstance(e, Warned)]
    assert "7 tokens" in warning
    assert "max_context" in warning


def test_given_answers_are_not_sampled_and_not_drawn():
    engine = letters({"a": 1})
    plan = Rounds(((Ask(given=Given(text="2")), Ask(given=Given(ids=(65, END)), trains=False)),))
    (group,) = runner(engine).rollout(job(SOURCE, plan, 1))
    assert engine.requests == []
    first, second = group.segments[1:]
    np.testing.assert_array_equal(first.ids, [ord("2"), END])
    assert (first.origin, first.trains, second.trains) == (Origin.GIVEN, True, False)
    assert not first.action_mask.any()
    assert np.isnan(first.rollout_logprobs).all()
    assert group.episode_text(0) == "2"
    assert group.total(0) == 1.0


def test_a_replay_keeps_its_log_probs_and_version():
    given = Given(ids=(65, END), rollout_logprobs=(-0.5, -1.5), version=4, origin=Origin.REPLAYED)
    (group,) = runner(letters({"a": 1})).rollout(job(SOURCE, Rounds(((Ask(given=given),),)), 1))
    answer = group.segments[1]
    np.testing.assert_array_equal(answer.drawn, [True, True])
    np.testing.assert_array_equal(answer.rollout_logprobs, np.array([-0.5, -1.5], np.float32))
    np.testing.assert_array_equal(answer.version, [4, 4])
    assert answer.origin is Origin.REPLAYED


def test_sampling_goes_on_after_a_given_prefix():
    engine = replies(lambda r: "yz")
    plan = Rounds(((Ask(given=Given(text="x", ends_turn=False), n=2),),))
    (group,) = runner(engine).rollout(job(SOURCE, plan, 1))
    assert [g.tolist()[-2:] for g in (r.ids for r in engine.requests)] == [[259, ord("x")]] * 2
    assert [group.episode_text(e) for e in (0, 1)] == ["xyz", "xyz"]
    prefix, answer = group.segments[1:3]
    assert (prefix.origin, answer.origin) == (Origin.GIVEN, Origin.SAMPLED)
    assert [(s.segment, s.tokens) for s in answer.context] == [(0, 7), (1, 1)]
    assert (prefix.turn, answer.turn) == (0, 0)


def test_the_system_message_of_a_seat_comes_first():
    seats = {"policy": Seat(system="Be brief.")}
    (group,) = runner(letters({"a": 1}), seats=seats).rollout(job(SOURCE, Fixed(1), 1))
    assert group.segments[0].text == "Be brief.1+1?"
    own = Task(id="c", prompt=(Message("system", "Be kind."), Message("user", "hi")))
    (group,) = runner(letters({"a": 1}), seats=seats).rollout(job(Listed((own,)), Fixed(1), 1))
    assert group.segments[0].text == "Be brief.\n\nBe kind.hi"
    raw = Listed((Task(id="d", prompt="once"),))
    (group,) = runner(letters({"a": 1})).rollout(job(raw, Fixed(1), 1))
    np.testing.assert_array_equal(group.segments[0].ids, [*b"once"])
    with pytest.raises(ConfigError, match="string"):
        runner(letters({"a": 1}), seats=seats).rollout(job(raw, Fixed(1), 1))


def test_a_seat_with_another_template_gets_a_prompt_of_its_own():
    more = {
        "renderers": {"policy": CHAT, "other": ByteChat("other")},
        "seats": {"policy": Seat(), "other": Seat(model="second", system="Hm.")},
    }
    engine = replies(lambda r: "ok")
    plan = Rounds(((Ask(n=2), Ask(seat="other", n=2)),))
    (group,) = runner(engine, **more).rollout(job(SOURCE, plan, 1))
    assert [e.segments for e in group.episodes] == [(0, 1), (0, 2), (3, 4), (3, 5)]
    assert group.segments[3].text == "Hm.1+1?"
    assert {r.model for r in engine.requests} == {"policy", "second"}


def test_one_failed_request_leaves_the_step_and_is_not_scored_zero():
    heard = []
    fails = {"n": 0}

    def trouble(request):
        fails["n"] += 1
        return Trouble(after=1) if fails["n"] == 3 else None

    engine = replies(lambda r: "nope", trouble=trouble)
    (group,) = runner(engine, emit=heard.append).rollout(job(SOURCE, Fixed(8), 1))
    faults = [e.fault for e in group.episodes]
    assert faults.count(Fault.ENGINE) == 1
    bad = faults.index(Fault.ENGINE)
    assert group.episodes[bad].stop is Stop.FAILED
    assert group.total(bad) is None
    assert np.isnan(group.totals()).sum() == 1
    assert any("engine" in e.text for e in heard if isinstance(e, Warned))


@pytest.mark.parametrize("exact", [True, False])
def test_a_dead_engine_surfaces_its_own_error(exact):
    dead = replies(lambda r: "x", trouble=lambda r: Trouble(error=OSError("device lost")))
    with pytest.raises(EngineError, match="device lost") as raised:
        runner(dead, exact=exact).rollout(job(SOURCE, Fixed(3), 2))
    assert isinstance(raised.value.__cause__, OSError)


@pytest.mark.parametrize("exact", [True, False])
def test_a_silent_engine_is_given_up_by_name(exact):
    silent = replies(lambda r: "x", trouble=lambda r: Trouble(delay_s=5.0))
    with pytest.raises(TimeoutError, match="sample"):
        runner(silent, exact=exact, limits=Limits(episode_s=0.05)).rollout(job(SOURCE, Fixed(2), 2))


def test_progress_ends_at_the_number_of_episodes():
    heard = []
    runner(letters({"a": 1}), emit=heard.append).rollout(job(SOURCE, Fixed(3), 2))
    last = [e for e in heard if isinstance(e, Progress)][-1]
    assert (last.stage, last.done, last.total) == ("rollout", 6, 6)
    assert last.sampled_tokens > 0


def test_mistakes_are_named_before_anything_is_sampled():
    engine = letters({"a": 1})
    lost = replace(SOURCE.tasks[0], env="sokobam")
    with pytest.raises(DataError, match="sokobam"):
        runner(engine).rollout(job(Listed((lost,)), Fixed(1), 1))
    unknown = replace(SOURCE.tasks[0], verifiers=("sayz",))
    with pytest.raises(DataError, match="'says'"):
        runner(engine).rollout(job(Listed((unknown,)), Fixed(1), 1))
    with pytest.raises(ConfigError, match=r"'polcy'.*'policy'"):
        runner(engine).rollout(job(SOURCE, Rounds(((Ask(seat="polcy"),),)), 1))
    assert engine.requests == []


def test_a_source_that_gives_too_few_tasks_is_refused_with_both_numbers():
    class Short(Listed):
        def draw(self, state, n, rng):
            return list(self.tasks)

    with pytest.raises(DataError, match=r"2 tasks where 8"):
        runner(letters({"a": 1})).rollout(job(Short(SOURCE.tasks), Fixed(1), 8))


def test_impure_plans_and_sources_are_refused():
    count = {"n": 0}

    class Moody(Fixed):
        def __call__(self, task, group, state):
            count["n"] += 1
            return (Ask(n=count["n"]),)

    with pytest.raises(ConfigError, match="Moody"):
        runner(letters({"a": 1})).rollout(job(SOURCE, Moody(), 1))

    class Drifting(Listed):
        def draw(self, state, n, rng):
            count["n"] += 1
            return [replace(t, id=f"{t.id}{count['n']}") for t in self.tasks[:n]]

    with pytest.raises(ConfigError, match="Drifting"):
        runner(letters({"a": 1})).rollout(job(Drifting(SOURCE.tasks), Fixed(1), 1))

    class Endless(Fixed):
        def __call__(self, task, group, state):
            return (Ask(given=Given(text="x")),)

    with pytest.raises(ConfigError, match="Endless still asks"):
        runner(letters({"a": 1})).rollout(job(SOURCE, Endless(), 1))
