"""Metrics to Trackio, on this machine or in a Space; the extra ``trackio``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from posttrain.errors import MissingExtraError
from posttrain.types.run import SinkSpec, SinkWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class Trackio(SinkSpec):
    """A run of a project; a resumed run goes on with the one of its name."""

    project: str = "posttrain"
    name: str = ""
    """The run's name there; the folder's name if empty."""
    space: str | None = None
    """A Hugging Face Space to log to, ``owner/name``; None stays on this machine."""

    @override
    def check(self) -> None:
        """Raise MissingExtraError if the package is not installed."""
        _package()

    @override
    def open(self, folder: Path, name: str, description: Mapping[str, object]) -> SinkWriter:
        """Begin or go on with the tracker's run."""
        run = _package().init(
            project=self.project,
            name=self.name or name,
            space_id=self.space,
            config=dict(description),
            resume="allow",
            embed=False,
        )
        return _Writer(run)


class _Writer:
    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Log a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """End the tracker's run."""
        self._run.finish()


def _package() -> Any:
    try:
        import trackio
    except ImportError as error:
        raise MissingExtraError("trackio", extra="trackio", purpose="logging to Trackio") from error
    return trackio
