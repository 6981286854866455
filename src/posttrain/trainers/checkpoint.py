"""Checkpoints: a Hugging Face folder a model loads from, and ``state/`` that a run goes on from.

A checkpoint is written under a name that starts with a dot, listed file by file in
``state/manifest.json`` and renamed when all of it is on disk. One that lacks a listed file, or
whose sizes or hashes differ, is damaged: it is passed over with a warning, never loaded.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch

from posttrain.data.store import read_groups, write_groups
from posttrain.errors import CheckpointError
from posttrain.types.episode import Group
from posttrain.types.method import State

NAME = re.compile(r"step_(\d+)")
MANIFEST = Path("state") / "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run is, beside weights: all the loop needs to go on."""

    step: int = 0
    """Steps of the loop done, over all phases."""
    phase: int = 0
    phase_step: int = 0
    sampled_steps: int = 0
    """Steps of the phase whose batch has been sampled (more than ``phase_step`` under a lag)."""
    num_tokens: int = 0
    """Tokens sampled so far."""
    run_hash: str = ""
    latest: Mapping[str, float] = field(default_factory=dict)
    """Newest value of every metric of the phase, which decides when it ends."""
    ended: Mapping[str, float] = field(default_factory=dict)
    """The same of the phase that ended last."""
    best_step: int = -1
    """Checkpoint with the largest value of ``keep_best``; -1 for none."""
    best: float = float("-inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """What a checkpoint gives back."""

    position: Position
    state: State
    learner: Mapping[str, Any]
    pending: list[Group]
    """Groups sampled and not yet trained, in order."""


def write(
    folder: Path,
    *,
    position: Position,
    state: State,
    learner: Mapping[str, Any],
    pending: Sequence[Group],
    save_model: Callable[[Path], None],
) -> Path:
    """Write ``folder/step_NNNNNN`` and return it; an older one of that name is replaced.

    Raises:
        CheckpointError: the disk is full or cannot be written; nothing half-written stays.
    """
    final = folder / f"step_{position.step:06d}"
    aside = folder / f".writing_{final.name}"
    try:
        shutil.rmtree(aside, ignore_errors=True)
        (aside / "state").mkdir(parents=True)
        save_model(aside)
        torch.save(dict(learner), aside / "state" / "learner.pt")
        _write_tables(aside / "state" / "tables", state)
        write_groups(aside / "state" / "pending.parquet", pending)
        torch.save({"torch": torch.get_rng_state()}, aside / "state" / "rng.pt")
        _write_json(aside / "state" / "position.json", {f: getattr(position, f)
                    for f in position.__dataclass_fields__})  # fmt: skip
        _write_json(aside / MANIFEST, dict(_listing(aside)))
        _sync(aside)
        if final.exists():
            shutil.rmtree(final)
        aside.rename(final)
        _sync_folder(folder)
    except OSError as error:
        shutil.rmtree(aside, ignore_errors=True)
        raise CheckpointError(
            f"could not write the checkpoint {final}: {error}. Free space on that disk or give "
            "another folder, then go on with --resume; earlier checkpoints are untouched."
        ) from error
    return final


def _listing(folder: Path) -> Iterator[tuple[str, list[int | str]]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path != folder / MANIFEST:
            digest = hashlib.sha256(path.read_bytes()).hexdigest()
            yield str(path.relative_to(folder)), [path.stat().st_size, digest]


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n")


def _write_tables(folder: Path, state: State) -> None:
    folder.mkdir()
    for name, table in state.items():
        pq.write_table(table, folder / f"{name}.parquet")


def _sync(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def damage(folder: Path) -> str:
    """What is wrong with a checkpoint; empty if nothing is."""
    try:
        listed = json.loads((folder / MANIFEST).read_text())
    except (OSError, ValueError) as error:
        return f"its manifest cannot be read ({error})"
    for name, (size, digest) in listed.items():
        path = folder / name
        if not path.is_file():
            return f"{name} is missing"
        if path.stat().st_size != size:
            return f"{name} has {path.stat().st_size} bytes instead of {size}"
        if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            return f"{name} has other content than was written"
    return ""


def listed(folder: Path) -> list[Path]:
    """Checkpoints in a folder, by step number, damaged ones included."""
    found = [p for p in folder.glob("step_*") if p.is_dir() and NAME.fullmatch(p.name)]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step_")))


def latest(folder: Path, *, warn: Callable[[str], None]) -> Path | None:
    """The newest checkpoint that is whole; damaged ones are passed over with a warning."""
    for path in reversed(listed(folder)):
        wrong = damage(path)
        if not wrong:
            return path
        warn(f"checkpoint {path} is damaged and is passed over: {wrong}")
    return None


def read(folder: Path, *, run_hash: str) -> Saved:
    """Read a checkpoint of the run that has ``run_hash``.

    Raises:
        CheckpointError: it is damaged, or belongs to another run.
    """
    wrong = damage(folder)
    if wrong:
        raise CheckpointError(f"checkpoint {folder} is damaged: {wrong}.")
    position = Position(**json.loads((folder / "state" / "position.json").read_text()))
    if position.run_hash != run_hash:
        raise CheckpointError(
            f"checkpoint {folder} was written by another run (its hash is {position.run_hash}, "
            f"this run's is {run_hash}). Resume with the run.yaml beside it, or give this run a "
            "folder of its own."
        )
    tables = {p.stem: pq.read_table(p) for p in (folder / "state" / "tables").glob("*.parquet")}
    rng = torch.load(folder / "state" / "rng.pt", weights_only=True)
    torch.set_rng_state(rng["torch"])
    return Saved(
        position=position,
        state=dict(sorted(tables.items())),
        learner=torch.load(folder / "state" / "learner.pt", weights_only=True),
        pending=read_groups(folder / "state" / "pending.parquet"),
    )


def prune(folder: Path, *, keep_last: int, keep: set[Path]) -> None:
    """Delete all but the newest ``keep_last`` checkpoints and those in ``keep``."""
    whole = listed(folder)
    for path in whole[: max(0, len(whole) - max(1, keep_last))]:
        if path not in keep:
            doomed = path.with_name(f".deleting_{path.name}")
            with contextlib.suppress(OSError):
                path.rename(doomed)
                shutil.rmtree(doomed)


def empty_state() -> dict[str, pa.Table]:
    """The state of a run that has not begun."""
    return {"draws": pa.table({"count": pa.array([0], pa.int64())})}
