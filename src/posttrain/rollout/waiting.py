"""Waits that end: each has a deadline and says what it waits for.

Work that cannot be cancelled (a verifier in a thread) is left to its daemon thread when its time
is over, so that nothing here, nor the end of the process, waits for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from posttrain.errors import DeadlineError

T = TypeVar("T")


async def within(work: Awaitable[T], seconds: float, what: str) -> T:
    """The result of ``work``.

    Raises:
        DeadlineError: it took longer than ``seconds``; the message names ``what``.
    """
    scope = asyncio.timeout(seconds)
    try:
        async with scope:
            return await work
    except TimeoutError as error:
        if not scope.expired():
            raise
        raise DeadlineError(f"waited {seconds:g} s for {what}, in vain.") from error


async def together(works: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """Results of coroutines run side by side; the first failure cancels the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _start_thread(work: Callable[[], T], name: str) -> Future[T]:
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def body() -> None:
        try:
            result = work()
        except BaseException as error:  # noqa: BLE001  carried to whoever awaits the future
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=body, name=name, daemon=True).start()
    return future


async def in_thread(work: Callable[[], T], name: str) -> T:
    """The result of a blocking call, run in a daemon thread of its own."""
    return await asyncio.wrap_future(_start_thread(work, name))


def run_sync(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of a coroutine, also when called from a running event loop (a notebook)."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return _run(work)
    return _start_thread(lambda: _run(work), "posttrain-rollout").result()


def _run(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """``asyncio.run``, but its task returns nothing: asyncio prints the task's result, unseen."""
    results: list[T] = []

    async def keep() -> None:
        results.append(await work())

    asyncio.run(keep())
    return results[0]
