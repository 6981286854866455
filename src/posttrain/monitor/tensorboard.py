"""Metrics to TensorBoard event files in the run's folder; the extra ``tensorboard``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from typing_extensions import override

from posttrain.errors import MissingExtraError
from posttrain.types.run import SinkSpec, SinkWriter

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBoard(SinkSpec):
    """Look at them with ``tensorboard --logdir RUN``."""

    subfolder: str = "tensorboard"
    """Of the run's folder."""
    flush_s: int = 30
    """Seconds after which what was logged is on disk at the latest."""

    @override
    def check(self) -> None:
        """Raise MissingExtraError if the package is not installed."""
        _writer_class()

    @override
    def open(self, folder: Path, name: str, description: Mapping[str, object]) -> SinkWriter:
        """A writer of event files."""
        return _Writer(folder / self.subfolder, self.flush_s)


class _Writer:
    """Opens its file at the first step, so that what a resumed run repeats replaces the old."""

    def __init__(self, folder: Path, flush_s: int) -> None:
        self._folder, self._flush_s = folder, flush_s
        self._made: SummaryWriter | None = None

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """One scalar a metric."""
        if self._made is None:
            kind = _writer_class()
            self._made = kind(str(self._folder), purge_step=step, flush_secs=self._flush_s)
        for name, value in metrics.items():
            self._made.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush."""
        if self._made is not None:
            self._made.close()


def _writer_class() -> type[SummaryWriter]:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise MissingExtraError(
            "tensorboard", extra="tensorboard", purpose="logging to TensorBoard"
        ) from error
    return SummaryWriter
