"""Trackers: TensorBoard by reading its files, the others by the calls they get."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest

from posttrain.errors import MissingExtraError
from posttrain.monitor.mlflow import MLflow
from posttrain.monitor.tensorboard import TensorBoard
from posttrain.monitor.trackio import Trackio
from posttrain.monitor.wandb import WandB

ROWS = [(1, {"reward": 0.25, "loss": 2.0}), (2, {"reward": 0.5, "loss": 1.0})]


def written(sink, folder, rows=ROWS):
    sink.check()
    writer = sink.open(folder, folder.name, {"seed": 3})
    for row in rows:
        writer.write(*row)
    writer.close()


class Calls(list):
    """Records calls by name."""

    def named(self, name, *, gives=None):
        def call(*args, **keywords):
            self.append((name, args, keywords))
            return gives

        return call


def module(monkeypatch, name, **members):
    made = ModuleType(name)
    made.__dict__.update(members)
    monkeypatch.setitem(sys.modules, name, made)


def test_tensorboard_holds_each_metric_by_step(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    written(TensorBoard(), tmp_path)
    written(TensorBoard(), tmp_path, [(2, {"reward": 0.75})])  # resumed after step 1
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, e.value) for e in events.Scalars("reward")] == [(1, 0.25), (2, 0.75)]
    assert [(e.step, e.value) for e in events.Scalars("loss")] == [(1, 2.0)]


def test_wandb_gets_the_run_and_its_steps_and_goes_on_with_it(tmp_path, monkeypatch):
    calls = Calls()
    run = SimpleNamespace(id="abc", log=calls.named("log"), finish=calls.named("finish"))
    module(monkeypatch, "wandb", init=calls.named("init", gives=run))
    sink = WandB(project="p", mode="offline")
    written(sink, tmp_path)
    (_, _, begun), first, second, last = calls
    assert (begun["project"], begun["name"], begun["mode"]) == ("p", tmp_path.name, "offline")
    assert (begun["id"], begun["config"]) == (None, {"seed": 3})
    assert first == ("log", ({"reward": 0.25, "loss": 2.0},), {"step": 1})
    assert (second[2], last[0]) == ({"step": 2}, "finish")
    written(sink, tmp_path)
    assert calls[4][2]["id"] == "abc"


def test_mlflow_gets_the_run_and_its_steps_and_goes_on_with_it(tmp_path, monkeypatch):
    calls = Calls()
    client = SimpleNamespace(
        get_experiment_by_name=calls.named("get"),
        create_experiment=calls.named("experiment", gives="7"),
        create_run=calls.named("run", gives=SimpleNamespace(info=SimpleNamespace(run_id="r"))),
        update_run=calls.named("update"),
        log_dict=calls.named("dict"),
        log_batch=calls.named("batch"),
        set_terminated=calls.named("end"),
    )
    module(
        monkeypatch,
        "mlflow",
        MlflowClient=calls.named("client", gives=client),
        entities=SimpleNamespace(Metric=lambda *row: row),
    )
    written(MLflow(uri="file:x"), tmp_path)
    names = [name for name, _, _ in calls]
    assert names == ["client", "get", "experiment", "run", "dict", "batch", "batch", "end"]
    assert calls[0][2] == {"tracking_uri": "file:x"}
    assert calls[3][1:] == (("7",), {"run_name": tmp_path.name})
    _, args, keywords = calls[6]
    assert args == ("r",)
    assert [(n, v, s) for n, v, _, s in keywords["metrics"]] == [
        ("reward", 0.5, 2),
        ("loss", 1.0, 2),
    ]
    calls.clear()
    written(MLflow(), tmp_path, [])
    assert [name for name, _, _ in calls] == ["client", "update", "end"]


def test_trackio_gets_the_run_and_its_steps(tmp_path, monkeypatch):
    calls = Calls()
    run = SimpleNamespace(log=calls.named("log"), finish=calls.named("finish"))
    module(monkeypatch, "trackio", init=calls.named("init", gives=run))
    written(Trackio(name="n"), tmp_path)
    assert calls[0][2]["name"] == "n"
    assert calls[0][2]["resume"] == "allow"
    assert [c[0] for c in calls] == ["init", "log", "log", "finish"]
    assert calls[2][2] == {"step": 2}


@pytest.mark.parametrize(
    ("sink", "package"),
    [(WandB(), "wandb"), (MLflow(), "mlflow"), (Trackio(), "trackio"),
     (TensorBoard(), "torch.utils.tensorboard")],
)  # fmt: skip
def test_a_tracker_that_is_not_installed_names_its_extra(sink, package, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    name = package.rpartition(".")[2]
    with pytest.raises(MissingExtraError, match=rf'pip install "posttrain\[{name}\]"'):
        sink.check()
