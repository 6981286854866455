"""Kill a run with SIGKILL at random moments of every stage, resume it, compare the final weights.

    python benchmarks/resume_kill.py --kills 10 --out benchmarks/results/resume-kill.json

Ten kills by default, and more until there are two in each of rollout, score, update and checkpoint.
After each the run goes on with resume=True. The hash of the final weights must equal an
uninterrupted run's.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

STAGES = ("rollout", "score", "update", "checkpoint")
DEADLINE_S = 300.0


@dataclass
class StageLog:
    """Writes the stage a run is in to a file, so that whoever kills it knows the moment."""

    path: Path

    def on(self, event: object) -> None:
        """Note the stage and step."""
        stage = getattr(event, "stage", None)
        if stage is not None:
            aside = self.path.with_suffix(".new")
            aside.write_text(f"{stage} {time.time()}")
            aside.rename(self.path)

    def close(self) -> None:
        """Nothing is held."""


def run(steps: int):
    """A small run of the embedded model: 4 tasks x 4 samples a step, a checkpoint every 2 steps."""
    from dataclasses import replace

    from posttrain.recipes.chains import rl_phase_run

    made = rl_phase_run(steps=steps)
    return replace(made, checkpoints=replace(made.checkpoints, every=2, keep_last=2))


def child(folder: Path, steps: int) -> None:
    """Train (or go on) and write the hash of the final weights."""
    import torch

    from posttrain.api import fit
    from posttrain.rollout.fingerprint import fingerprint
    from posttrain.trainers import checkpoint
    from posttrain.types.describe import tree_hash

    torch.set_num_threads(1)
    made = run(steps)
    result = fit(made, folder, resume=True, listeners=[StageLog(folder / "stage")])
    saved = checkpoint.read(result.model, run_hash=tree_hash(made))
    (folder / "final").write_text(fingerprint(saved.learner["policy"]["master"]))


def start(folder: Path, steps: int) -> subprocess.Popen[bytes]:
    """A child process that trains in ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, __file__, "--child", str(folder), "--steps", str(steps)]
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(command, stdout=log, stderr=log)


def kill_in(process: subprocess.Popen[bytes], folder: Path, stage: str, rng: random.Random) -> dict:
    """Wait until the run is in a stage (at a random one of its visits), then SIGKILL it."""
    visits = rng.randint(1, 3) if stage == "checkpoint" else rng.randint(2, 5)
    last = ""
    began = time.monotonic()
    while process.poll() is None and time.monotonic() - began < DEADLINE_S:
        try:
            now = (folder / "stage").read_text().split()[0]
        except (OSError, IndexError):
            now = ""
        if now != last and now == stage:
            visits -= 1
            if visits <= 0:
                time.sleep(0.0 if stage == "score" else rng.uniform(0, 0.02))  # scoring is short
                break
        last = now
        time.sleep(0.0005)
    process.send_signal(signal.SIGKILL)  # nothing happens if it has ended by itself
    ended = process.wait() == 0
    at = "none" if ended else (folder / "stage").read_text().split()[0]
    whole = sorted(p.name for p in (folder / "checkpoints").glob("step_*"))
    aside = sorted(p.name for p in (folder / "checkpoints").glob(".writing*"))
    return {"aimed_at": stage, "killed_in": at, "checkpoints": whole, "half_written": aside}


def wanted(kills: list[dict], num: int) -> str | None:
    """The stage to aim at next: in turn, then those with fewer than two; None when it is enough."""
    if len(kills) < num:
        return STAGES[len(kills) % 4]
    needed = min(2, num // 4)
    return next((s for s in STAGES if sum(k["killed_in"] == s for k in kills) < needed), None)


def finish(folder: Path, steps: int) -> str:
    """Let a run end and return the hash of its weights."""
    process = start(folder, steps)
    if process.wait(DEADLINE_S) != 0:
        raise SystemExit((folder / "log").read_text()[-3000:])
    return (folder / "final").read_text()


def main() -> None:
    """Parse the command line, kill and compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--child", type=Path)
    asked = parser.parse_args()
    if asked.child is not None:
        child(asked.child, asked.steps)
        return
    rng = random.Random(asked.seed)
    base = Path(tempfile.mkdtemp(prefix="resume-kill-"))
    expected = finish(base / "whole", asked.steps)
    kills = []
    for number in range(3 * asked.kills):
        stage = wanted(kills, asked.kills)
        if stage is None:
            break
        folder = base / f"killed{number}"
        record = kill_in(start(folder, asked.steps), folder, stage, rng)
        found = finish(folder, asked.steps)
        kills.append({**record, "final": found, "equal": found == expected})
        print(kills[-1])
        shutil.rmtree(folder)
    shutil.rmtree(base)
    report = {
        "command": "python " + " ".join(sys.argv),
        "what": "SIGKILL during a run on the CPU, then resume; final fp32 weights compared by hash",
        "steps": asked.steps,
        "uninterrupted": expected,
        "kills": kills,
        "by_stage": {s: sum(k["killed_in"] == s for k in kills) for s in STAGES},
        "all_equal": all(k["equal"] for k in kills),
    }
    if asked.out:
        asked.out.write_text(json.dumps(report, indent=1) + "\n")
    print(json.dumps({k: report[k] for k in ("by_stage", "all_equal")}))
    if not report["all_equal"]:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
