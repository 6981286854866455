"""Time and memory of one call, the processes it starts included."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from posttrain.testing.case_file import NotYetError

T = TypeVar("T")
_PROC = Path("/proc")
_EVERY_S = 0.02


@dataclass(frozen=True, slots=True)
class Measured(Generic[T]):
    """What a call gave and took."""

    value: T
    seconds: float
    extra_mb: float
    """Most memory above the level before, over this process and its descendants."""


def measured(call: Callable[[], T]) -> Measured[T]:
    """Run a call and watch it.

    Raises:
        NotYetError: this system has no /proc to read memory from.
    """
    if not (_PROC / "self" / "statm").exists():
        raise NotYetError("memory is read from /proc, which this system does not have")
    before, peak = resident_mb(), [0.0]
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_EVERY_S):
            peak[0] = max(peak[0], resident_mb())

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    started = time.monotonic()
    try:
        value = call()
    finally:
        seconds = time.monotonic() - started
        done.set()
        watcher.join()
    return Measured(value, seconds, max(0.0, peak[0] - before, resident_mb() - before))


def resident_mb() -> float:
    """Resident memory of this process and its descendants."""
    page = os.sysconf("SC_PAGE_SIZE")
    pages = sum(_pages(pid) for pid in (os.getpid(), *descendants(os.getpid())))
    return pages * page / 2**20


def _pages(pid: int) -> int:
    try:
        return int((_PROC / str(pid) / "statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0  # it ended while it was looked at


def descendants(pid: int) -> list[int]:
    """Processes started by a process, and by those; ended ones not yet waited for included."""
    parents: dict[int, list[int]] = {}
    for entry in _PROC.iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents.setdefault(int(fields[1]), []).append(int(entry.name))
    found: list[int] = []
    queue = [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found
