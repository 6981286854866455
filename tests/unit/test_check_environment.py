"""The conformance check, on a game that keeps its promises and on games that do not."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from posttrain.envs.games.guess_number import (
    GuessNumber,
    GuessNumbers,
    guess_task,
    parse_guess,
    verdict,
)
from posttrain.errors import ConfigError, EnvError
from posttrain.testing.environments import Expected, check_environment
from posttrain.types.env import EnvFactory, Step
from posttrain.types.message import Message, Task


def halving(task: Task, said: Sequence[Message]) -> str:
    """Plays the game by halving, from what was said alone."""
    low, high = 1, int(re.findall(r"from 1 to (\d+)", said[0].content)[0])
    for action, answer in zip(said[1::2], said[2::2], strict=True):
        guess = int(re.findall(r"\d+", action.content)[0])
        low, high = (guess + 1, high) if answer.content == "higher" else (low, guess - 1)
    return f"<guess>{(low + high) // 2}</guess>"


def test_the_guessing_game_keeps_its_promises():
    tasks = [guess_task(t, limit=100) for t in (1, 37, 50, 100)]
    report = check_environment(GuessNumber(), tasks, oracle=halving)
    assert report.num_tasks == 4
    assert max(report.oracle_turns) <= 7  # 2**7 > 100
    assert report.oracle_turns[2] == 1


def test_the_referee_and_the_parser():
    assert [verdict(g, 5) for g in (4, 5, 6)] == ["higher", "correct", "lower"]
    assert parse_guess("so <guess> 12 </guess>") == 12
    for none in ("12", "<guess>1</guess><guess>2</guess>", "<guess>-1</guess>", "<guess>x</guess>"):
        assert parse_guess(none) is None


def test_games_are_drawn_from_the_generator():
    source = GuessNumbers(limit=9)
    drawn = [source.draw({}, 40, np.random.default_rng(s)) for s in (1, 1, 2)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert {t.gold for t in drawn[0]} <= set(range(1, 10))
    assert set(source.envs) == {drawn[0][0].env}
    with pytest.raises(ConfigError, match="limit"):
        GuessNumbers(limit=0)


@dataclass(frozen=True)
class Broken(EnvFactory):
    """A one-turn game that pays for "win", with something wrong."""

    how: str = ""
    deterministic: bool = True
    unequal: float = field(default_factory=time.perf_counter, compare=False)

    def __call__(self, task: Task) -> Any:
        return (_Saved if self.how == "forgets" else _Broken)(self.how)


class _Broken:
    def __init__(self, how: str) -> None:
        self.how, self.noise = how, 0

    async def start(self, rng: np.random.Generator) -> Step:
        self.noise = int(rng.integers(1000))
        if self.how == "moody":
            self.noise = time.perf_counter_ns()
        if self.how == "online":
            with socket.socket() as s:
                s.connect(("192.0.2.1", 80))
        return Step()

    async def step(self, action: Message) -> Step:
        if self.how == "fragile":
            int(action.content == "win" or action.content)
        pays = action.content == "win" or (self.how == "generous" and action.content == "")
        over = self.how != "endless"
        messages = (Message("user", str(self.noise)),)
        reward = float(pays) if over else float(pays) / 3
        return Step(messages=messages, reward=reward, terminated=over)

    async def close(self) -> None:
        pass


class _Saved(_Broken):
    def save(self) -> bytes:
        return b"nothing"

    def restore(self, state: bytes) -> None:
        self.noise = -1


def win(task: Task, said: Sequence[Message]) -> str:
    return "win"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ("fragile", r"junk .* broke .*ValueError"),
        ("generous", r"junk '' earned 1"),
        ("moody", r"declared deterministic"),
        ("endless", r"goes on after 3 turns"),
        ("online", r"192\.0\.2\.1.*network=True"),
        ("forgets", r"save\(\) must hold"),
    ],
)
def test_broken_promises_are_named(how: str, says: str):
    task = Task(id="t", prompt="play")
    check_environment(Broken(), [task], oracle=win)
    with pytest.raises(EnvError, match=says):
        check_environment(Broken(how), [task], oracle=win, expected=Expected(max_turns=3))


def test_a_bad_oracle_or_task_is_named():
    task = Task(id="t", prompt="play")
    with pytest.raises(EnvError, match="earned 0 on task 't'"):
        check_environment(Broken(), [task], oracle=lambda _task, _said: "lose")
    closure: Callable[[], int] = lambda: 1  # noqa: E731
    held = Task(id="u", prompt="play", columns={"f": closure})  # pyright: ignore
    with pytest.raises(EnvError, match="'u' cannot be pickled"):
        check_environment(Broken(), [held], oracle=win)
    with pytest.raises(EnvError, match="at least one task"):
        check_environment(Broken(), [], oracle=win)
