"""The other side of ``isolation``: a process that answers calls until its input ends."""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
from pathlib import Path
from typing import BinaryIO

_ORPHAN_S = 10
"""Seconds of work beyond its deadline after which a forgotten call is ended by the system."""


def serve() -> None:
    """Answer JSON lines from standard input on standard output; nothing else is written there."""
    replies = os.fdopen(os.dup(1), "wb")
    with Path(os.devnull).open("r+b") as nothing:
        os.dup2(nothing.fileno(), 1)
    sys.set_int_max_str_digits(0)
    importlib.import_module(sys.argv[2])
    limit_memory(int(sys.argv[1]))
    _send(replies, {"ready": True})
    for line in sys.stdin.buffer:
        function, arguments, deadline_s = json.loads(line)
        limit_time(deadline_s)
        _send(replies, reply_to(function, arguments))


def limit_memory(extra_bytes: int) -> None:
    """Refuse memory beyond what the process holds now by more than ``extra_bytes``."""
    pages = Path("/proc/self/statm")
    held = int(pages.read_text().split()[0]) * resource.getpagesize() if pages.exists() else 0
    if held:
        resource.setrlimit(resource.RLIMIT_AS, (held + extra_bytes, held + extra_bytes))


def limit_time(deadline_s: float) -> None:
    """Let the system end the process should nobody be there to do it."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    seconds = int(used.ru_utime + used.ru_stime + deadline_s) + _ORPHAN_S
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def reply_to(function: str, arguments: list[object]) -> dict[str, object]:
    """What the function returned, or what it raised."""
    module, _, name = function.partition(":")
    try:
        value = getattr(importlib.import_module(module), name)(*arguments)
        return {"value": value}
    except Exception as error:  # noqa: BLE001  the boundary: everything becomes a status
        return {"error": f"{type(error).__name__}: {error}"[:500]}


def _send(replies: BinaryIO, reply: dict[str, object]) -> None:
    replies.write(json.dumps(reply).encode() + b"\n")
    replies.flush()
