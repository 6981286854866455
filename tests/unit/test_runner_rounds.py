"""Plans of several rounds: what they read, own contexts, restarts; groups kept or drawn again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from rollout_kit import (
    CHAT,
    Counting,
    Fixed,
    Listed,
    Rounds,
    Says,
    ask_task,
    job,
    letters,
    replies,
    runner,
)

from posttrain.errors import ConfigError
from posttrain.testing.byte_chat import END
from posttrain.types.ask import Ask, Decode, Given
from posttrain.types.episode import Column, Group, Node, Origin, Said, Scope, Span, Stop
from posttrain.types.events import Warned
from posttrain.types.method import Keep, Plan
from posttrain.types.probe import Probe

SOURCE = Listed((ask_task("a", "1+1?", gold="2"), ask_task("b", "2+2?", gold="4")))


@dataclass(frozen=True)
class Then(Plan):
    """Asks by a function of the group."""

    asks: Callable[[Group], Sequence[Ask]]
    reads: Any = frozenset()  # pyright: ignore

    def __call__(self, task, group, state):
        return self.asks(group)


def test_a_plan_reads_what_it_says_it_reads_and_the_rest_comes_at_the_end():
    seen = []

    def asks(group):
        seen.append([(r.verifier, r.target) for r in group.rewards])
        return (Ask(n=2),) if group.round < 2 else ()

    graders = {"early": Says(), "late": Says()}
    source = Listed(SOURCE.tasks, graders=graders)
    plan = Then(asks, reads=frozenset({"early"}))
    (group,) = runner(letters({"2": 1})).rollout(job(source, plan, 1))
    first, second = [("early", 0), ("early", 1)], [("early", e) for e in range(4)]
    assert seen == [[], [], first, first, second, second]  # every question is asked twice
    assert [r.verifier for r in group.rewards] == ["early"] * 4 + ["late"] * 4
    assert [e.round for e in group.episodes] == [0, 0, 1, 1]
    assert group.round == 2


def test_a_plan_reads_probes_between_rounds():
    def probe(groups, probes):
        (group,) = groups
        new = [s for s, seg in enumerate(group.segments) if seg.trains and not seg.columns]
        return [
            group.with_columns(
                {s: {p.name: Column(np.full(group.segments[s].num_tokens, float(s), np.float32))
                     for p in probes} for s in new}
            )
        ]  # fmt: skip

    def asks(group):
        if group.round == 0:
            return (Ask(n=2),)
        best = max((1, 2), key=lambda s: group.segments[s].columns["doubt"].values.mean())
        return (Ask(tag=f"after {best}"),) if group.round == 1 else ()

    plan = Then(asks, reads=frozenset({"doubt"}))
    probes = (Probe("doubt"), Probe("unread"))
    work = job(SOURCE, plan, 1, probes=probes)
    (group,) = runner(letters({"2": 1}), probe=probe).rollout(work)
    assert group.episodes[2].tag == "after 2"
    assert set(group.segments[1].columns) == {"doubt"}
    with pytest.raises(ConfigError, match="probe="):
        runner(letters({"2": 1})).rollout(work)
    with pytest.raises(ConfigError, match=r"'doupt'.*'doubt'"):
        runner(letters({"2": 1})).rollout(
            job(SOURCE, Then(asks, reads=frozenset({"doupt"})), 1, probes=probes)
        )


def test_a_context_of_messages_is_one_prompt_shared_by_its_members():
    pieces = (Said("system", "Hint: 2."), Said("user", "1+1?"))
    plan = Rounds(((Ask(context=pieces, n=2),),))
    (group,) = runner(replies(lambda r: "2")).rollout(job(SOURCE, plan, 1))
    assert [e.segments for e in group.episodes] == [(1, 2), (1, 3)]
    prompt = group.segments[1]
    np.testing.assert_array_equal(prompt.ids, [257, *b"Hint: 2.", END, 258, *b"1+1?", END, 259])
    assert group.segments[2].context == (Span(1, prompt.num_tokens),)


def test_a_context_of_spans_and_messages_goes_on_after_what_was_said():
    pieces = (Span(0, -1), Span(1, -1), Said("user", "Sure?"))
    plan = Rounds(((Ask(),), (Ask(context=pieces),)))
    engine = replies(lambda r: "2" if len(r.ids) < 10 else "yes")
    (group,) = runner(engine).rollout(job(SOURCE, plan, 1))
    np.testing.assert_array_equal(
        engine.requests[1].ids,
        [258, *b"1+1?", END, 259, *b"2", END, 258, *b"Sure?", END, 259],
    )
    again = group.episodes[1]
    assert group.episode_text(1) == "yes"  # the first attempt is context, not its own words
    assert [group.segments[s].origin for s in again.segments] == [
        Origin.OBSERVED,
        Origin.OBSERVED,
        Origin.SAMPLED,
    ]
    last = group.segments[again.segments[-1]]
    assert [s.segment for s in last.context] == [0, 1, 2]


def test_a_context_that_ends_with_a_closed_turn_opens_the_next():
    plan = Rounds(((Ask(),), (Ask(context=(Span(0, -1), Span(1, -1))),)))
    engine = replies(lambda r: "2")
    runner(engine).rollout(job(SOURCE, plan, 1))
    np.testing.assert_array_equal(engine.requests[1].ids[-3:], [ord("2"), END, 259])


@pytest.mark.parametrize(
    ("ask", "says"),
    [
        (Ask(context=(Span(4, 1),)), "segment 4"),
        (Ask(context=(Span(0, 99),)), "99 tokens"),
        (Ask(at=Node(3, 1, 1)), "episode 3"),
        (Ask(at=Node(0, 2, 1)), "segment 2"),
        (Ask(at=Node(0, 1, 9)), "token 9"),
        (Ask(at=Node(0, 1, 2)), r"Node\(0, 1, 1\)"),  # the whole answer, which had ended
        (Ask(decode=Decode(mixture=("teacher", 0.5))), "mixture"),
    ],
)
def test_asks_that_cannot_be_met_are_named(ask, says):
    engine = replies(lambda r: "2", capabilities=frozenset())
    with pytest.raises(ConfigError, match=says):
        runner(engine).rollout(job(SOURCE, Rounds(((Ask(n=2),), (ask,))), 1))


def test_a_restart_within_an_answer_keeps_its_first_tokens():
    engine = replies(lambda r: "abcd" if r.ids[-1] == 259 else "YZ")
    plan = Rounds(((Ask(),), (Ask(at=Node(0, 1, 2), n=2, trains=False),), (Ask(at=Node(1, 2, 1)),)))
    (group,) = runner(engine).rollout(job(SOURCE, plan, 1))
    texts = [group.episode_text(e) for e in range(4)]
    assert texts == ["abcd", "abYZ", "abYZ", "abYYZ"]
    np.testing.assert_array_equal(engine.requests[1].ids[-3:], [259, ord("a"), ord("b")])
    np.testing.assert_array_equal(engine.requests[3].ids[-4:], [259, *b"abY"])
    branch = group.segments[2]
    assert branch.context == (Span(0, 7), Span(1, 2))
    assert not branch.trains
    assert group.segments[4].context == (Span(0, 7), Span(1, 2), Span(2, 1))
    assert [e.segments for e in group.episodes] == [(0, 1), (0, 1, 2), (0, 1, 3), (0, 1, 2, 4)]
    assert group.cuts(3) == {2: 1, 1: 2}
    assert group.episodes[1].start == Node(0, 1, 2)


def test_thinking_goes_on_where_a_plan_cuts_the_end_token():
    engine = replies(lambda r: "no" if r.ids[-1] == 259 else "yes")
    wait = Given(text=" wait ", ends_turn=False)
    plan = Rounds(((Ask(),), (Ask(at=Node(0, 1, 2), given=wait),)))
    (group,) = runner(engine).rollout(job(SOURCE, plan, 1))
    assert group.episode_text(1) == "no wait yes"
    assert [s.origin for s in group.segments[1:]] == [Origin.SAMPLED, Origin.GIVEN, Origin.SAMPLED]


@dataclass(frozen=True)
class After(Plan):
    """One episode, then ``n`` restarts at a place of its path."""

    position: int
    token: int
    n: int = 2

    def __call__(self, task, group, state):
        if group.round == 0:
            return (Ask(),)
        if group.round == 1:
            node = Node(0, group.episodes[0].segments[self.position], self.token)
            return (Ask(at=node, n=self.n),)
        return ()


def turns_source(**rules: Any) -> Listed:
    return Listed((ask_task("t", "go", env="w"),), graders={}, worlds={"w": Counting(**rules)})


@pytest.mark.parametrize("rules", [{"saves": True, "deterministic": False}, {"saves": False}])
@pytest.mark.parametrize(
    ("position", "token", "heard"),
    [
        (3, 1, "3:a/bB/C"),  # within the second turn
        (3, 2, "3:a/b/C"),  # at its end: the environment answers first
        (4, 8, "3:a/b/C"),  # after the environment's second answer
        (1, 1, "3:aB/B/C"),  # within the first turn
    ],
)
def test_restarts_put_the_environment_at_the_node(rules, position, token, heard):
    def reply(request):
        turn = int((request.ids == 259).sum()) - 1
        return "abc"[turn] if len(engine.requests) <= 3 else "BBC"[turn]

    engine = replies(reply)
    source = turns_source(turns=3, **rules)
    (group,) = runner(engine).rollout(job(source, After(position, token), 1))
    first, *restarted = group.episodes
    assert group.text(first.segments[-1]) == "3:a/b/c"
    assert [group.text(e.segments[-1]) for e in restarted] == [heard, heard]
    assert [group.total(e) for e in range(3)] == [6.0, 6.0, 6.0]
    turn_rows = [r.target for r in group.rewards if r.scope is Scope.TURN]
    assert len(turn_rows) == len(set(turn_rows))


def test_an_environment_that_cannot_go_back_is_refused_by_name():
    source = turns_source(turns=2, deterministic=False)
    with pytest.raises(ConfigError, match=r"'w'.*deterministic"):
        runner(replies(lambda r: "a")).rollout(job(source, After(3, 1), 1))


@dataclass(frozen=True)
class Wants(Keep):
    """Keeps groups of these tasks."""

    tasks: tuple[str, ...]
    max_redraws: int = 2

    def __call__(self, group, state):
        assert len(group.rewards) == len(group.episodes)  # verifiers come first
        return group.task.id in self.tasks


@dataclass
class Ears:
    heard: list[str] = field(default_factory=list)

    def __call__(self, event):
        if isinstance(event, Warned):
            self.heard.append(event.text)


def test_refused_groups_stay_and_their_places_are_drawn_again():
    tasks = tuple(ask_task(name, name) for name in "abcdefgh")
    work = job(Listed(tasks), Fixed(2), 3, keep=Wants(("b", "e", "f")))
    ears = Ears()
    groups = runner(letters({"2": 1}), emit=ears).rollout(work)
    # places: a b c -> a and c again as d e -> d again as f
    assert [(g.task.id, g.refused) for g in groups] == [
        ("a", True),
        ("b", False),
        ("c", True),
        ("d", True),
        ("e", False),
        ("f", False),
    ]
    assert [g.key[2] for g in groups] == [0, 1, 2, 3, 4, 5]
    assert ears.heard == []


def test_redraws_are_bounded_and_nothing_kept_is_told():
    ears = Ears()
    work = job(SOURCE, Fixed(2), 2, keep=Wants(()))
    groups = runner(letters({"x": 1}), emit=ears).rollout(work)
    assert len(groups) == 6
    assert all(g.refused for g in groups)
    (text,) = ears.heard
    for word in ("group", "reward", "3 attempts", "Wants", "[0, 0]"):
        assert word in text


def test_draws_of_a_step_follow_one_another_and_its_state():
    seen = []

    class Noted(Listed):
        def draw(self, state, n, rng):
            seen.append((state["draws"]["count"][0].as_py(), n))
            return super().draw(state, n, rng)

    work = job(Noted(SOURCE.tasks), Fixed(1), 2, keep=Wants(("b",)), step=3)
    runner(letters({"2": 1})).rollout(work)
    assert seen == [(0, 2), (2, 1), (3, 1)]


def test_the_rule_of_the_method_draws_from_the_source():
    class Backwards:
        def draw(self, source, state, n, rng):
            return source.draw(state, n, rng)[::-1]

    groups = runner(letters({"2": 1})).rollout(job(SOURCE, Fixed(1), 2, rule=Backwards()))
    assert [g.task.id for g in groups] == ["b", "a"]


def test_equal_prompts_stay_two_groups():
    twin = Listed((ask_task("a", "same"), ask_task("a", "same")))
    groups = runner(letters({"a": 1, "b": 1})).rollout(job(twin, Fixed(2), 2))
    assert [len(g.episodes) for g in groups] == [2, 2]
    assert groups[0].key != groups[1].key
    assert groups[0].episodes[0].seed != groups[1].episodes[0].seed
    assert CHAT.end_ids == (END,)
    assert groups[0].episodes[0].stop in (Stop.COMPLETED, Stop.MAX_TOKENS)
