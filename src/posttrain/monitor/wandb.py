"""Metrics to Weights & Biases; the extra ``wandb``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from typing_extensions import override

from posttrain.errors import MissingExtraError
from posttrain.types.run import SinkSpec, SinkWriter

ID_FILE = "wandb_run.txt"
"""In the run's folder: the tracker's run, so that a resumed run goes on with it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WandB(SinkSpec):
    """A run of a project; a resumed run goes on with the same one."""

    project: str = "posttrain"
    entity: str | None = None
    """User or team; None is the account's own."""
    name: str = ""
    """The run's name there; the folder's name if empty."""
    mode: Literal["online", "offline"] = "online"

    @override
    def check(self) -> None:
        """Raise MissingExtraError if the package is not installed."""
        _package()

    @override
    def open(self, folder: Path, name: str, description: Mapping[str, object]) -> SinkWriter:
        """Begin or go on with the tracker's run."""
        note = folder / ID_FILE
        known = note.read_text(encoding="utf-8").strip() if note.is_file() else None
        run = _package().init(
            project=self.project,
            entity=self.entity,
            name=self.name or name,
            id=known,
            resume="allow",
            dir=str(folder),
            config=dict(description),
            mode=self.mode,
        )
        note.write_text(run.id, encoding="utf-8")
        return _Writer(run)


class _Writer:
    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step; evaluations of the same step join it."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """End the tracker's run."""
        self._run.finish()


def _package() -> Any:
    try:
        import wandb
    except ImportError as error:
        raise MissingExtraError(
            "wandb", extra="wandb", purpose="logging to Weights & Biases"
        ) from error
    return wandb
