"""Whoever listens may fail or hang: the run goes on, is not slowed, and says so once."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field

import pytest
from typing_extensions import override

from posttrain.errors import MissingExtraError
from posttrain.monitor.hub import Hub
from posttrain.monitor.metrics_file import MetricsFile, read_metrics
from posttrain.types.events import Evaluated, RunStarted, StepFinished, Warned
from posttrain.types.run import SinkSpec


def step(n):
    return StepFinished(step=n, phase="rl", metrics={"reward": n / 10})


@dataclass
class Heard:
    events: list = field(default_factory=list)

    def on(self, event):
        self.events.append(event)

    def close(self):
        self.events.append("closed")

    @property
    def warnings(self):
        return [e.text for e in self.events if isinstance(e, Warned)]


@dataclass(frozen=True)
class Sink(SinkSpec):
    """Keeps what it gets, and does something at chosen steps."""

    act: object = None
    opening: object = None
    rows: list = field(default_factory=list)

    @override
    def check(self):
        pass

    @override
    def open(self, folder, name, description):
        if self.opening:
            self.opening()
        self.rows.append((folder.name, name, dict(description)))
        return self

    def write(self, step, metrics):
        if self.act:
            self.act(step)
        self.rows.append((step, dict(metrics)))

    def close(self):
        self.rows.append("closed")


def test_a_sink_gets_steps_and_evaluations_in_order(tmp_path):
    sink = Sink()
    with Hub([], sinks=[sink], folder=tmp_path / "run-a", description={"seed": 1}) as hub:
        hub(step(1))
        hub(Evaluated(step=1, metrics={"eval/accuracy": 0.5}))
    assert sink.rows == [
        ("run-a", "run-a", {"seed": 1}),
        (1, {"reward": 0.1}),
        (1, {"eval/accuracy": 0.5}),
        "closed",
    ]


def test_a_sink_that_raises_at_step_3_loses_that_step_alone(tmp_path):
    def act(n):
        if n == 3:
            raise RuntimeError("tracker is down")

    sink, heard = Sink(act), Heard()
    with Hub([MetricsFile(tmp_path), heard], sinks=[sink], folder=tmp_path) as hub:
        for n in range(1, 6):
            hub(step(n))
    assert [row[0] for row in sink.rows[1:-1]] == [1, 2, 4, 5]
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl")] == [1, 2, 3, 4, 5]
    assert len(heard.warnings) == 1
    assert "step 3" in heard.warnings[0]
    assert "tracker is down" in heard.warnings[0]


def test_a_sink_that_hangs_delays_a_run_by_two_seconds_at_most(tmp_path):
    release = threading.Event()
    sink, heard = Sink(lambda n: release.wait(60)), Heard()
    began = time.monotonic()
    hub = Hub([MetricsFile(tmp_path), heard], sinks=[sink, sink], folder=tmp_path)
    for n in range(1, 1500):  # more than the queue holds
        hub(step(n))
    stepped = time.monotonic() - began
    closing = time.monotonic()
    hub.close()
    closed = time.monotonic() - closing
    release.set()
    assert closed < 2.5, f"{stepped} and {closed} s"
    assert len(list(read_metrics(tmp_path / "metrics.jsonl"))) == 1499
    told = " ".join(heard.warnings)
    assert "does not keep up" in told
    assert "left behind" in told


def test_a_sink_that_cannot_open_is_left_out(tmp_path):
    sink, heard, good = Sink(opening=lambda: 1 / 0), Heard(), Sink()
    with Hub([heard], sinks=[sink, good], folder=tmp_path) as hub:
        hub(step(1))
    assert sink.rows == []
    assert good.rows[-1] == "closed"
    assert ["could not start" in text for text in heard.warnings] == [True]


def test_a_missing_package_is_said_before_anything_begins(tmp_path):
    class Missing(Sink):
        @override
        def check(self):
            raise MissingExtraError("nothing", extra="nothing", purpose="this test")

    opened = Sink()
    with pytest.raises(MissingExtraError, match=r"posttrain\[nothing\]"):
        Hub([], sinks=[opened, Missing()], folder=tmp_path)
    assert opened.rows == []


def test_a_listener_that_raises_is_left_out_and_said_once(tmp_path):
    class Broken(Heard):
        def on(self, event):
            super().on(event)
            raise ValueError("cannot draw")

    broken, heard = Broken(), Heard()
    with Hub([broken, heard]) as hub:
        hub(step(1))
        hub(step(2))
        hub(Warned(text="twice"))
        hub(Warned(text="twice"))
    assert len(broken.events) == 1
    left_out = "Broken failed and is left out from here on: ValueError('cannot draw')"
    assert heard.warnings == [left_out, "twice"]
    assert heard.events[-1] == "closed"


def test_the_metrics_file_is_cut_back_on_resume(tmp_path):
    file = MetricsFile(tmp_path)
    for n in (1, 2, 3):
        file.on(step(n))
    with file.path.open("a") as damaged:
        damaged.write('{"step": 4, "rew')
    file.on(RunStarted(folder="", total_steps=5, resumed_from=2, description={}))
    file.on(StepFinished(step=3, phase="rl", metrics={"reward": float("nan")}))
    rows = list(read_metrics(file.path))
    assert [row["step"] for row in rows] == [1, 2, 3]
    assert rows[-1]["reward"] is None
    file.on(RunStarted(folder="", total_steps=5, resumed_from=None, description={}))
    assert list(read_metrics(file.path)) == []
