"""Small sources, plans, verifiers and environments for tests of the runner."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pyarrow as pa

from posttrain.rollout.runner import Job, Runner
from posttrain.rollout.scripted import ScriptedEngine
from posttrain.testing.byte_chat import VOCABULARY, ByteChat
from posttrain.types.ask import Ask, Decode
from posttrain.types.env import EnvFactory, Step
from posttrain.types.episode import Group, RewardRow, Scope
from posttrain.types.message import Message, Task
from posttrain.types.method import Plan, Source, Verifier
from posttrain.types.models import Seat
from posttrain.types.run import Limits

CHAT = ByteChat()


@dataclass(frozen=True)
class Fixed(Plan):
    """``n`` episodes in one round."""

    n: int = 2
    trains: bool = True
    decode: Decode | None = None

    def __call__(self, task: Task, group: Group, state: Any) -> Sequence[Ask]:
        return () if group.round else (Ask(n=self.n, trains=self.trains, decode=self.decode),)


@dataclass(frozen=True)
class Rounds(Plan):
    """Asks given round by round."""

    rounds: tuple[tuple[Ask, ...], ...]

    def __call__(self, task: Task, group: Group, state: Any) -> Sequence[Ask]:
        return self.rounds[group.round] if group.round < len(self.rounds) else ()


@dataclass(frozen=True)
class Says(Verifier):
    """1 if the episode's text holds the gold answer."""

    name = "says"

    def grade(self, task: Task, group: Group, episodes: Sequence[int]) -> list[RewardRow]:
        return [
            RewardRow(Scope.EPISODE, e, "says", float(str(task.gold) in group.episode_text(e)))
            for e in episodes
        ]


@dataclass(frozen=True)
class Listed(Source):
    """Tasks in order, again and again."""

    tasks: tuple[Task, ...]
    graders: Mapping[str, Verifier] = field(default_factory=lambda: {"says": Says()})
    worlds: Mapping[str, EnvFactory] = field(default_factory=dict)

    @property
    def verifiers(self) -> Mapping[str, Verifier]:
        return self.graders

    @property
    def envs(self) -> Mapping[str, EnvFactory]:
        return self.worlds

    def draw(self, state: Any, n: int, rng: np.random.Generator) -> list[Task]:
        first = state["draws"]["count"][0].as_py()
        return [self.tasks[(first + i) % len(self.tasks)] for i in range(n)]


def ask_task(id: str, prompt: str, *, gold: str = "", env: str = "") -> Task:
    return Task(id=id, prompt=(Message("user", prompt),), gold=gold, env=env)


def draws(count: int = 0) -> dict[str, pa.Table]:
    return {"draws": pa.table({"count": pa.array([count], pa.int64())})}


def job(source: Source, plan: Plan, num_groups: int, **more: Any) -> Job:
    base = Job(phase=0, step=0, num_groups=num_groups, source=source, plan=plan, state=draws())
    return replace(base, **more)


def runner(engine: Any, *, exact: bool = True, **more: Any) -> Runner:
    settings: dict[str, Any] = {
        "renderers": {"policy": CHAT},
        "seats": {"policy": Seat()},
        "decode": Decode(max_tokens=12),
        "limits": Limits(),
        "seed": 7,
        "exact": exact,
    }
    return Runner(engine=engine, **{**settings, **more})


def replies(reply: Callable[[Any], Any], **more: Any) -> ScriptedEngine:
    return ScriptedEngine(
        reply=reply,
        encode=lambda text: [*text.encode()],
        decode=lambda ids: CHAT.decode(np.array(ids))[0],
        **more,
    )


def letters(weights: Mapping[str, float], end: float = 0.2) -> ScriptedEngine:
    """Draws letters with these weights, and the end token with probability ``end``."""
    probs = np.zeros(VOCABULARY)
    for letter, weight in weights.items():
        probs[ord(letter)] = weight * (1 - end) / sum(weights.values())
    probs[256] = end
    return ScriptedEngine(
        next_token=lambda _: probs, decode=lambda ids: CHAT.decode(np.array(ids))[0]
    )


@dataclass(frozen=True)
class Counting(EnvFactory):
    """Ends after ``turns`` actions; each earns its number; may fail, stall or be restorable."""

    turns: int = 2
    deterministic: bool = True
    saves: bool = False
    fails_at: int = -1
    fails_for: str = ""
    opening: str = ""

    def __call__(self, task: Task) -> Any:
        return (_Saved if self.saves else _Counting)(self, task)


class _Counting:
    def __init__(self, rules: Counting, task: Task) -> None:
        self.rules, self.task, self.heard = rules, task, []

    async def start(self, rng: np.random.Generator) -> Step:
        self.secret = int(rng.integers(1000))
        opening = (Message("user", self.rules.opening),) if self.rules.opening else ()
        return Step(messages=opening)

    async def step(self, action: Message) -> Step:
        if len(self.heard) == self.rules.fails_at and self.rules.fails_for in action.content:
            raise OSError("the disk is gone")
        self.heard.append(action.content)
        number = len(self.heard)
        return Step(
            messages=(Message("user", f"{number}:{'/'.join(self.heard)}"),),
            reward=float(number),
            terminated=number >= self.rules.turns,
        )

    async def close(self) -> None:
        pass


class _Saved(_Counting):
    def save(self) -> bytes:
        return json.dumps([self.heard, self.secret]).encode()

    def restore(self, state: bytes) -> None:
        self.heard, self.secret = json.loads(state)


def same_groups(one: Sequence[Group], other: Sequence[Group]) -> None:
    """Every field and every array of two lists of groups is equal (seconds aside)."""
    assert [g.key for g in one] == [g.key for g in other]
    for a, b in zip(one, other, strict=True):
        assert a.episodes == b.episodes
        assert (a.round, a.finished, a.refused, a.task) == (b.round, b.finished, b.refused, b.task)
        timeless = [[replace(r, seconds=0.0) for r in g.rewards] for g in (a, b)]
        assert timeless[0] == timeless[1]
        assert len(a.segments) == len(b.segments)
        for s, t in zip(a.segments, b.segments, strict=True):
            for name in ("ids", "action_mask", "rollout_logprobs", "version", "char_ends"):
                np.testing.assert_array_equal(getattr(s, name), getattr(t, name))
            for name in ("context", "seat", "model", "role", "turn", "trains", "origin", "stop",
                         "temperature", "tag", "text"):  # fmt: skip
                assert getattr(s, name) == getattr(t, name), name
            assert s.columns.keys() == t.columns.keys()
            for name, column in s.columns.items():
                np.testing.assert_array_equal(column.values, t.columns[name].values)
