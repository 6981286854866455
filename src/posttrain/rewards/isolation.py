"""Calls that may hang, crash or eat memory, in worker processes that can be killed.

A worker is a fresh interpreter that reads calls as JSON lines and answers them; it knows nothing
of the caller's modules, threads or file handles. A call that passes its deadline costs the
deadline: its worker is killed and another one starts meanwhile. There are no timers or signal
handlers in the caller, so calls work from any thread and from a running event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import json
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from posttrain.errors import DeadlineError, VerifierError

_START_S = 120.0
"""Longest wait for a new worker's imports on a busy machine."""
_QUEUE_S = 600.0
"""Longest wait for a free worker."""
_CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a call."""

    status: Literal["done", "raised", "timeout", "crashed"]
    value: object = None
    """What the function returned, as JSON data."""
    note: str = ""
    """Why there is no value."""
    seconds: float = 0.0


class _Worker:
    """One process and the pipes to it."""

    def __init__(self, *, memory_bytes: int, preload: str) -> None:
        code = "from posttrain.rewards.worker import serve; serve()"
        paths = [p for p in sys.path if p]
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, str(memory_bytes), preload],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        self.ready = False
        self._rest = b""

    def answer(self, request: bytes, deadline_s: float) -> dict[str, object] | None:
        """The reply to a request, or None when the deadline passes first.

        Raises:
            OSError: the process died.
        """
        if self.process.stdin is None:
            raise BrokenPipeError("the worker has no input")
        self.process.stdin.write(request)
        self.process.stdin.flush()
        return self.read(deadline_s)

    def read(self, deadline_s: float) -> dict[str, object] | None:
        """The next line, or None when the deadline passes first.

        Raises:
            OSError: the process died.
        """
        if self.process.stdout is None:
            raise BrokenPipeError("the worker has no output")
        output, end = self.process.stdout.fileno(), time.monotonic() + deadline_s
        poll = select.poll()
        poll.register(output, select.POLLIN)
        while b"\n" not in self._rest:
            left = end - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                return None
            data = os.read(output, _CHUNK_BYTES)
            if not data:
                raise BrokenPipeError("the worker died")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return json.loads(line)

    def kill(self) -> None:
        """End the process at once and reap it."""
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except BrokenPipeError:
                    continue
        self.process.wait()


class Workers:
    """A pool of warm worker processes; made as they are needed, kept until ``close``."""

    def __init__(self, *, size: int, memory_bytes: int = 512 << 20, preload: str = "json") -> None:
        """Nothing is started yet.

        Args:
            size: Most workers at a time.
            memory_bytes: What a worker may hold beyond what it holds after its imports.
            preload: Module a worker imports before its first call.
        """
        self._owner = os.getpid()
        self._memory_bytes = memory_bytes
        self._preload = preload
        self._slots = threading.Semaphore(size)
        self._lock = threading.Lock()
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    def call(self, function: str, *arguments: object, deadline_s: float) -> Outcome:
        """Call ``module:name`` with JSON arguments in a worker.

        Raises:
            DeadlineError: no worker became free.
            VerifierError: workers cannot be started here.
        """
        if not self._slots.acquire(timeout=_QUEUE_S):
            raise DeadlineError(f"waited {_QUEUE_S:.0f} s for a free grading process.")
        try:
            return self._call(function, arguments, deadline_s)
        finally:
            self._slots.release()

    async def call_async(self, function: str, *arguments: object, deadline_s: float) -> Outcome:
        """As ``call``, without holding up the event loop."""
        return await asyncio.to_thread(self.call, function, *arguments, deadline_s=deadline_s)

    def close(self) -> None:
        """Kill every worker; in a forked child, which only inherited them, do nothing."""
        if os.getpid() != self._owner:
            return
        with self._lock:
            workers, self._idle, self._all = list(self._all), [], set()
        for worker in workers:
            worker.kill()

    def _call(self, function: str, arguments: Sequence[object], deadline_s: float) -> Outcome:
        worker = self._take()
        request = json.dumps([function, list(arguments), deadline_s]).encode() + b"\n"
        start = time.monotonic()
        try:
            reply = worker.answer(request, deadline_s)
        except OSError as error:
            self._replace(worker)
            return Outcome("crashed", note=str(error), seconds=time.monotonic() - start)
        seconds = time.monotonic() - start
        if reply is None:
            self._replace(worker)
            return Outcome("timeout", note=f"took longer than {deadline_s} s", seconds=seconds)
        with self._lock:
            self._idle.append(worker)
        if "error" in reply:
            return Outcome("raised", note=str(reply["error"]), seconds=seconds)
        return Outcome("done", reply["value"], seconds=seconds)

    def _take(self) -> _Worker:
        with self._lock:
            worker = self._idle.pop() if self._idle else self._start()
        if not worker.ready:
            try:
                worker.ready = worker.read(_START_S) is not None
            except OSError as error:
                self._drop(worker)
                raise VerifierError(f"a grading process could not be started: {error}") from error
            if not worker.ready:
                self._drop(worker)
                raise DeadlineError(f"waited {_START_S:.0f} s for a grading process to start.")
        return worker

    def _start(self) -> _Worker:
        worker = _Worker(memory_bytes=self._memory_bytes, preload=self._preload)
        self._all.add(worker)
        return worker

    def _drop(self, worker: _Worker) -> None:
        worker.kill()
        with self._lock:
            self._all.discard(worker)

    def _replace(self, worker: _Worker) -> None:
        self._drop(worker)
        with self._lock:
            self._idle.append(self._start())


def shared_workers(*, preload: str = "posttrain.rewards.expressions") -> Workers:
    """The pool of this process whose workers have a module imported."""
    return _pool(os.getpid(), preload)


@lru_cache(maxsize=4)
def _pool(process_id: int, preload: str) -> Workers:  # noqa: ARG001  a fork must not share pipes
    pool = Workers(size=max(2, min(4, os.cpu_count() or 2)), preload=preload)
    atexit.register(pool.close)
    return pool
