"""Does an environment keep its promises? Run this on a new one before training in it.

The oracle must earn the full reward and junk no more than the floor, without an exception. Equal
seeds and actions must give equal episodes where that is declared. Tasks and factories must survive
pickling, a saved game must go on as if it had not been saved, and nothing may use the network
unless it says so.
"""

from __future__ import annotations

import asyncio
import pickle
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

from posttrain.errors import EnvError
from posttrain.rollout.guard import GuardedEnv
from posttrain.rollout.waiting import run_sync
from posttrain.types.env import EnvFactory, Restorable, Step
from posttrain.types.message import Message, Task

Oracle = Callable[[Task, Sequence[Message]], str]
"""The task and everything said in the episode so far to the next action."""

JUNK = (
    "",
    " \n\t",
    "I do not know.",
    "a" * 20_000,
    "\x00\ufffd\u202e",
    "<guess><answer>[{(\"'",
    '{"name": "tool", "arguments": {"x": 1',
    "999999999999999999999999999999",
    "-1",
)
"""Actions nobody should be rewarded for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What an environment must pay, and within which limits."""

    full: float = 1.0
    """What the oracle earns in total."""
    floor: float = 0.0
    """The most that junk may earn in total."""
    max_turns: int = 32
    env_s: float = 10.0
    """Seconds for one answer."""
    network: bool = False
    """Whether it may open connections."""


@dataclass(frozen=True, slots=True)
class EnvironmentReport:
    """What was seen."""

    num_tasks: int
    oracle_turns: tuple[int, ...]
    """Turns the oracle needed, by task."""
    restorable: bool


@dataclass(frozen=True, slots=True)
class _Played:
    steps: tuple[Step, ...]
    actions: tuple[str, ...]

    @property
    def total(self) -> float:
        return sum(s.reward for s in self.steps if s.reward is not None)

    @property
    def terminated(self) -> bool:
        return self.steps[-1].terminated


def check_environment(
    make: EnvFactory,
    tasks: Sequence[Task],
    *,
    oracle: Oracle,
    junk: Sequence[str] = JUNK,
    expected: Expected | None = None,
) -> EnvironmentReport:
    """Check an environment on some tasks.

    Args:
        make: Its factory.
        tasks: A few tasks of each kind.
        oracle: Plays to win.
        junk: Actions that must not pay.
        expected: What it must pay, and the limits.

    Raises:
        EnvError: saying which promise was broken, on which task.
    """
    rules = expected or Expected()
    if not tasks:
        raise EnvError("check_environment needs at least one task to play.")
    turns = []
    restorable = False
    with _network(allowed=rules.network):
        for number, task in enumerate(tasks):
            seed = number + 1
            _pickles(make, task)
            best = _play(make, task, seed, oracle, rules)
            turns.append(len(best.actions))
            _oracle_wins(best, task, rules)
            for text in junk:
                _junk_earns_nothing(make, task, seed, text, rules)
            if make.deterministic:
                _repeats(make, task, seed, best, rules)
            restorable |= _restores(make, task, seed, best, rules)
    return EnvironmentReport(len(tasks), tuple(turns), restorable)


def _play(
    make: EnvFactory,
    task: Task,
    seed: int,
    player: Oracle,
    rules: Expected,
    *,
    saving: bool = False,
) -> _Played:
    """One episode; with ``saving`` the environment is saved and restored before every turn."""

    async def episode() -> _Played:
        env = GuardedEnv(make, task, seconds=rules.env_s)
        try:
            steps, actions = [await env.start(seed)], []
            prompt = task.prompt if not isinstance(task.prompt, str) else ()
            said = [*prompt, *steps[0].messages]
            while not steps[-1].terminated and len(actions) < rules.max_turns:
                if saving:
                    env = await _reborn(env, make, task, rules)
                action = Message("assistant", player(task, tuple(said)))
                actions.append(action.content)
                steps.append(await env.step(action))
                said += [action, *steps[-1].messages]
            return _Played(tuple(steps), tuple(actions))
        finally:
            await env.close()

    return run_sync(episode)


async def _reborn(env: GuardedEnv, make: EnvFactory, task: Task, rules: Expected) -> GuardedEnv:
    state = env.save()
    await env.close()
    other = GuardedEnv(make, task, seconds=rules.env_s)
    other.restore(state if state is not None else b"")
    return other


def _replayed(played: _Played) -> Oracle:
    rest = iter(played.actions)
    return lambda _task, _said: next(rest, "")


def _pickles(make: EnvFactory, task: Task) -> None:
    for thing, what in ((task, f"task {task.id!r}"), (make, type(make).__name__)):
        try:
            back = pickle.loads(pickle.dumps(thing))
        except Exception as error:
            raise EnvError(
                f"{what} cannot be pickled, so no worker could get it: {error}"
            ) from error
        if back != thing:
            raise EnvError(
                f"{what} is not equal to itself after pickling. Make it a frozen dataclass of "
                "plain data."
            )


def _oracle_wins(best: _Played, task: Task, rules: Expected) -> None:
    if abs(best.total - rules.full) > 1e-9:
        raise EnvError(
            f"the oracle earned {best.total:g} on task {task.id!r} in {len(best.actions)} turns, "
            f"not {rules.full:g}; it said {list(best.actions)[-3:]}. Either the oracle or the "
            "reward is wrong."
        )
    if not best.terminated:
        raise EnvError(
            f"task {task.id!r} goes on after {rules.max_turns} turns of the oracle: an environment "
            "must say terminated=True when it is over."
        )


def _junk_earns_nothing(
    make: EnvFactory, task: Task, seed: int, text: str, rules: Expected
) -> None:
    try:
        played = _play(make, task, seed, lambda _task, _said: text, rules)
    except EnvError as error:
        raise EnvError(f"junk {text[:40]!r} broke task {task.id!r}: {error}") from error
    if played.total > rules.floor + 1e-9:
        raise EnvError(
            f"junk {text[:40]!r} earned {played.total:g} on task {task.id!r}; the floor is "
            f"{rules.floor:g}."
        )


def _repeats(make: EnvFactory, task: Task, seed: int, best: _Played, rules: Expected) -> None:
    again = _play(make, task, seed, _replayed(best), rules)
    for turn, (one, other) in enumerate(zip(best.steps, again.steps, strict=False)):
        if one != other:
            raise EnvError(
                f"{type(make).__name__} is declared deterministic, but on task {task.id!r} equal "
                f"seeds and actions gave {one} and then {other} in turn {turn}. Draw from the "
                "generator that start() is given, or set deterministic = False."
            )


def _restores(make: EnvFactory, task: Task, seed: int, best: _Played, rules: Expected) -> bool:
    env = make(task)
    if not isinstance(env, Restorable):
        return False
    asyncio.run(env.close())
    again = _play(make, task, seed, _replayed(best), rules, saving=True)
    if again.steps != best.steps:
        raise EnvError(
            f"task {task.id!r} goes on otherwise after save() and restore() than without: "
            f"{again.steps[-1]} instead of {best.steps[-1]}. save() must hold the whole state, "
            "the random generator's included."
        )
    return True


@contextmanager
def _network(*, allowed: bool) -> Iterator[None]:
    """Refuse connections other than local sockets."""
    if allowed:
        yield
        return
    connect = socket.socket.connect

    def refuse(own: socket.socket, address: object) -> None:
        if own.family == socket.AF_UNIX:
            connect(own, address)  # pyright: ignore[reportArgumentType]
            return
        raise EnvError(
            f"it opened a connection to {address!r}. Declare it with Expected(network=True), or "
            "keep the environment offline."
        )

    with mock.patch.object(socket.socket, "connect", refuse):
        yield
