"""Events to whoever listens. Nobody who listens can stop or slow a run.

Listeners of our own (metrics file, console) are called in turn; if one raises, it is warned about
once and left out. Sinks (trackers over a network) run in a thread each, behind a bounded queue: a
sink that hangs loses metrics, which is counted and said, and costs the run no time.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol

from posttrain.types.describe import Plain
from posttrain.types.events import Evaluated, Event, RunStarted, StepFinished, Warned
from posttrain.types.run import SinkSpec

LOG = logging.getLogger("posttrain")
LOG.addHandler(logging.NullHandler())  # else Python prints what a listener has shown already
QUEUED = 1000
"""Steps a hanging sink may owe before it loses some."""
CLOSE_S = 2.0
"""Seconds all sinks together may take at the end of a run."""


class Listener(Protocol):
    """Takes events in the run's own thread; should be quick."""

    def on(self, event: Event) -> None:
        """Take one event."""
        ...

    def close(self) -> None:
        """The run ended."""
        ...


class Hub:
    """Passes every event on; itself an ``Emit``.

    Raises:
        MissingExtraError: a sink's package is not installed; raised before anything begins.
    """

    def __init__(
        self,
        listeners: Sequence[Listener],
        *,
        sinks: Sequence[SinkSpec] = (),
        folder: Path | None = None,
        description: Mapping[str, Plain] | None = None,
    ) -> None:
        self._listeners = list(listeners)
        self._said: set[str] = set()
        for sink in sinks:
            sink.check()
        where = folder or Path()
        self._threads = [_SinkThread(s, where, description or {}, self._warn) for s in sinks]

    def __call__(self, event: Event, /) -> None:
        """Pass an event on; a warning is shown once a text."""
        if isinstance(event, Warned):
            if event.text in self._said:
                return
            self._said.add(event.text)
            LOG.warning(event.text)
        for listener in tuple(self._listeners):
            try:
                listener.on(event)
            except Exception as error:  # noqa: BLE001 (the boundary: a listener must not stop a run)
                self._listeners.remove(listener)
                self._warn(
                    f"{type(listener).__name__} failed and is left out from here on: {error!r}"
                )
        for thread in self._threads:
            thread.on(event)

    def _warn(self, text: str) -> None:
        self(Warned(text=text))

    def close(self) -> None:
        """End listeners and sinks, the latter within CLOSE_S seconds."""
        deadline = time.monotonic() + CLOSE_S
        for thread in self._threads:
            thread.close(deadline)
        for listener in tuple(self._listeners):
            try:
                listener.close()
            except Exception as error:  # noqa: BLE001 (as above)
                LOG.warning("%s failed at the end: %r", type(listener).__name__, error)

    def __enter__(self) -> Hub:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _SinkThread:
    """One sink behind a queue, in a daemon thread of its own."""

    def __init__(
        self, spec: SinkSpec, folder: Path, description: Mapping[str, Plain], warn: object
    ) -> None:
        self._spec = spec
        self._folder = folder
        self._description = description
        self._warn = warn if callable(warn) else print
        self._queue: queue.Queue[tuple[int, Mapping[str, float]] | None] = queue.Queue(QUEUED)
        self._trouble: list[str] = []
        self._thread = threading.Thread(
            target=self._work, name=f"sink {type(spec).__name__}", daemon=True
        )
        self._thread.start()

    def on(self, event: Event) -> None:
        """Queue the metrics of a step; never waits."""
        if isinstance(event, StepFinished | Evaluated):
            try:
                self._queue.put_nowait((event.step, event.metrics))
            except queue.Full:
                self._trouble.append(
                    f"{self._name} does not keep up: metrics are lost there (metrics.jsonl has all)"
                )
        if not isinstance(event, Warned | RunStarted):
            while self._trouble:
                self._warn(self._trouble.pop())

    @property
    def _name(self) -> str:
        return f"sink {type(self._spec).__name__}"

    def _work(self) -> None:
        try:
            writer = self._spec.open(self._folder, self._folder.name, self._description)
        except Exception as error:  # noqa: BLE001 (the boundary: trackers raise anything)
            self._trouble.append(f"{self._name} could not start, so nothing goes there: {error!r}")
            return
        failed = 0
        while (item := self._queue.get()) is not None:
            try:
                writer.write(*item)
            except Exception as error:  # noqa: BLE001 (as above)
                failed += 1
                if failed == 1:
                    self._trouble.append(f"{self._name} failed at step {item[0]}: {error!r}")
        try:
            writer.close()
        except Exception as error:  # noqa: BLE001 (as above)
            self._trouble.append(f"{self._name} failed at the end: {error!r}")

    def close(self, deadline: float) -> None:
        """Let the thread finish until the deadline; then leave it behind."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            self._trouble.append(f"{self._name} still owed {QUEUED} steps when the run ended")
        self._thread.join(max(0.0, deadline - time.monotonic()))
        if self._thread.is_alive():
            self._trouble.append(f"{self._name} did not end in time and was left behind")
        while self._trouble:
            self._warn(self._trouble.pop())
