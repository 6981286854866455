"""Metrics to an MLflow server or folder; the extra ``mlflow``."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from posttrain.errors import MissingExtraError
from posttrain.types.run import SinkSpec, SinkWriter

ID_FILE = "mlflow_run.txt"
"""In the run's folder: the tracker's run, so that a resumed run goes on with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MLflow(SinkSpec):
    """A run of an experiment; a resumed run goes on with the same one."""

    experiment: str = "posttrain"
    uri: str | None = None
    """The tracking server; None is what MLFLOW_TRACKING_URI says, or MLflow's own default."""
    name: str = ""
    """The run's name there; the folder's name if empty."""

    @override
    def check(self) -> None:
        """Raise MissingExtraError if the package is not installed."""
        _package()

    @override
    def open(self, folder: Path, name: str, description: Mapping[str, object]) -> SinkWriter:
        """Begin or go on with the tracker's run, by a client of its own: nothing global is set."""
        package = _package()
        client = package.MlflowClient(tracking_uri=self.uri)
        note = folder / ID_FILE
        if note.is_file():
            run_id = note.read_text(encoding="utf-8").strip()
            client.update_run(run_id, status="RUNNING")
        else:
            found = client.get_experiment_by_name(self.experiment)
            experiment = (
                client.create_experiment(self.experiment) if found is None else found.experiment_id
            )
            run_id = client.create_run(experiment, run_name=self.name or name).info.run_id
            note.write_text(run_id, encoding="utf-8")
            if description:
                client.log_dict(run_id, dict(description), "run.json")
        return _Writer(client, run_id, package.entities.Metric)


class _Writer:
    def __init__(self, client: Any, run_id: str, metric: Any) -> None:
        self._client, self._run_id, self._metric = client, run_id, metric

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log all metrics of a step in one request."""
        now = int(time.time() * 1000)
        rows = [self._metric(name, value, now, step) for name, value in metrics.items()]
        self._client.log_batch(self._run_id, metrics=rows)

    def close(self) -> None:
        """End the tracker's run."""
        self._client.set_terminated(self._run_id)


def _package() -> Any:
    try:
        import mlflow
    except ImportError as error:
        raise MissingExtraError("mlflow", extra="mlflow", purpose="logging to MLflow") from error
    return mlflow
