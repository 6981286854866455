"""Calls in worker processes: a hang, a crash or a flood costs that call and nothing else."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from posttrain.rewards.isolation import Workers, shared_workers


@pytest.fixture(scope="module")
def workers():
    pool = Workers(size=2, memory_bytes=256 << 20)
    pool.call("operator:neg", 1, deadline_s=30)
    yield pool
    pool.close()


def test_a_value_comes_back(workers):
    outcome = workers.call("operator:add", [1, "ü"], [2.5], deadline_s=10)
    assert (outcome.status, outcome.value) == ("done", [1, "ü", 2.5])


def test_an_exception_is_a_status(workers):
    outcome = workers.call("operator:truediv", 1, 0, deadline_s=10)
    assert outcome.status == "raised"
    assert outcome.note == "ZeroDivisionError: division by zero"


def test_what_a_function_prints_is_not_a_reply(workers):
    outcome = workers.call("builtins:print", '{"value": 1}', deadline_s=10)
    assert (outcome.status, outcome.value) == ("done", None)


def test_a_hang_costs_its_deadline_and_its_process():
    pool = Workers(size=1)
    pid = pool.call("os:getpid", deadline_s=10).value
    start = time.monotonic()
    outcome = pool.call("time:sleep", 600, deadline_s=0.5)
    assert 0.4 < time.monotonic() - start < 5.0
    assert (outcome.status, outcome.note) == ("timeout", "took longer than 0.5 s")
    assert not Path(f"/proc/{pid}").exists()
    assert pool.call("operator:neg", 3, deadline_s=10).value == -3
    pool.close()


def test_a_crash_is_a_status(workers):
    assert workers.call("os:_exit", 3, deadline_s=10).status == "crashed"
    assert workers.call("operator:neg", 4, deadline_s=10).value == -4


def test_memory_beyond_the_limit_is_refused(workers):
    outcome = workers.call("operator:mul", "a", 1 << 30, deadline_s=10)
    assert outcome.status == "raised"
    assert outcome.note.startswith("MemoryError")


def test_calls_from_threads_share_the_processes(workers):
    def one(n: int) -> object:
        assert threading.current_thread() is not threading.main_thread()
        return workers.call("operator:neg", n, deadline_s=20).value

    with ThreadPoolExecutor(5) as threads:
        assert list(threads.map(one, range(20))) == [-n for n in range(20)]


def test_a_running_event_loop_goes_on(workers):
    async def both() -> tuple[object, int]:
        ticks = 0
        call = asyncio.create_task(workers.call_async("time:sleep", 0.3, deadline_s=10))
        while not call.done():
            await asyncio.sleep(0.02)
            ticks += 1
        return (await call).status, ticks

    status, ticks = asyncio.run(both())
    assert status == "done"
    assert ticks >= 5


def test_close_ends_every_process():
    pool = Workers(size=1)
    pid = pool.call("os:getpid", deadline_s=30).value
    pool.close()
    assert not Path(f"/proc/{pid}").exists()


def test_the_pool_of_a_process_is_shared():
    assert shared_workers() is shared_workers()
