"""Unfinished groups of a rollout, stored now and then so that a killed run need not repeat them."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from posttrain.data.store import read_groups, write_groups
from posttrain.types.episode import Group

EVERY_S = 30.0
"""Seconds between two writes, so that short rollouts are not slowed."""


@dataclass(slots=True)
class Inflight:
    """One batch on its way; usable only for the same step and the same weights."""

    folder: Path
    key: tuple[int, int]
    """(phase, step)."""
    weights: str
    every_s: float = EVERY_S
    _last: float = field(default_factory=time.monotonic)

    @property
    def _file(self) -> Path:
        return self.folder / "inflight.parquet"

    @property
    def _note(self) -> Path:
        return self.folder / "inflight.json"

    def write(self, groups: Sequence[Group]) -> None:
        """Store the groups if the last time is long enough ago."""
        if time.monotonic() - self._last < self.every_s:
            return
        write_groups(self._file, groups)
        note = {"key": list(self.key), "weights": self.weights, "sha256": self._hash()}
        aside = self._note.with_suffix(".writing")
        aside.write_text(json.dumps(note))
        aside.rename(self._note)
        self._last = time.monotonic()

    def read(self) -> list[Group]:
        """The stored groups, if they belong to this step and these weights; else none."""
        try:
            note = json.loads(self._note.read_text())
            same = note["key"] == list(self.key) and note["weights"] == self.weights
            whole = same and note["sha256"] == self._hash()
        except (OSError, ValueError, KeyError):
            return []
        return read_groups(self._file) if whole else []

    def clear(self) -> None:
        """Forget the stored groups: the batch is complete."""
        self._note.unlink(missing_ok=True)
        self._file.unlink(missing_ok=True)

    def _hash(self) -> str:
        return hashlib.sha256(self._file.read_bytes()).hexdigest()
