"""How much an install brings: distributions resolved, bytes on disk, and time as a ratio.

Every subject goes into fresh virtual environments that already hold the same pinned packages, so
that what is counted is what the subject adds to them. The first round only fills pip's cache and is
not timed; in the timed rounds the order of the subjects alternates. Times are given as ratios to
the first subject of the same round, because seconds say more about the disk than about the package.

    python benchmarks/install_footprint.py --subject posttrain=. --subject trl=trl==1.16.0 \
        --pin torch==2.13.0 --out benchmarks/results/install-footprint.json
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
import venv
from pathlib import Path

INSTALLERS = {"pip", "setuptools", "wheel"}


def pip(python: Path, *args: str) -> str:
    """Standard output of one pip command in the environment of `python`."""
    quiet = ["--disable-pip-version-check", "--no-input"]
    done = subprocess.run(
        [python, "-m", "pip", *args, *quiet], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"pip {' '.join(args)} failed:\n{done.stderr[-2000:]}")
    return done.stdout


def distributions(python: Path) -> dict[str, str]:
    """Name and version of everything installed, the installers themselves left out."""
    rows = json.loads(pip(python, "list", "--format", "json"))
    return {row["name"]: row["version"] for row in rows if row["name"] not in INSTALLERS}


def installed_bytes(python: Path) -> int:
    """Bytes of the files in site-packages, compiled caches left out, a hard link counted once."""
    root = python.parent.parent / "lib"
    seen: dict[int, int] = {}
    for folder, _, names in os.walk(root):
        for name in names:
            if not name.endswith(".pyc"):
                status = (Path(folder) / name).lstat()
                seen[status.st_ino] = status.st_size
    return sum(seen.values())


def install(spec: str, pins: list[str]) -> dict[str, object]:
    """One fresh environment: the pins untimed, then the subject timed."""
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        if pins:
            pip(python, "install", *pins)
        before, bytes_before = distributions(python), installed_bytes(python)
        constraints = Path(folder) / "constraints.txt"
        constraints.write_text("\n".join(pins))
        start = time.perf_counter()
        pip(python, "install", spec, "--constraint", str(constraints))
        seconds = time.perf_counter() - start
        after = distributions(python)
        return {
            "seconds": seconds,
            "added": {name: after[name] for name in sorted(after.keys() - before.keys())},
            "total": len(after),
            "added_bytes": installed_bytes(python) - bytes_before,
        }


def measure(subjects: dict[str, str], pins: list[str], rounds: int) -> dict[str, object]:
    """All rounds; the subjects in turn, their order reversed in every second round."""
    names = list(subjects)
    runs: dict[str, list[dict[str, object]]] = {name: [] for name in names}
    for index in range(rounds + 1):
        for name in names if index % 2 == 0 else reversed(names):
            print(f"round {index}: {name}", file=sys.stderr)
            runs[name].append(install(subjects[name], pins))
    base = [float(run["seconds"]) for run in runs[names[0]][1:]]
    table = {}
    for name in names:
        last = runs[name][-1]
        ratios = [float(run["seconds"]) / b for run, b in zip(runs[name][1:], base, strict=True)]
        table[name] = {
            "spec": subjects[name],
            "distributions_added": len(last["added"]),
            "distributions_total": last["total"],
            "added_mib": round(int(last["added_bytes"]) / 2**20, 1),
            f"time_relative_to_{names[0]}": {
                "rounds": [round(r, 3) for r in ratios],
                "median": round(statistics.median(ratios), 3),
            },
            "added": last["added"],
        }
    return table


def pair(text: str) -> tuple[str, str]:
    """`name=spec` taken apart at the first equals sign."""
    name, found, spec = text.partition("=")
    if not found or not spec:
        raise argparse.ArgumentTypeError(f"expected NAME=SPEC, got {text!r}")
    return name, spec


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--subject", action="append", type=pair, required=True, metavar="NAME=SPEC")
    parser.add_argument("--pin", action="append", default=[], metavar="SPEC")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    table = measure(dict(args.subject), args.pin, args.rounds)
    result = {
        "command": shlex.join(["python", "benchmarks/install_footprint.py", *sys.argv[1:]]),
        "python": platform.python_version(),
        "platform": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
        "installer": pip(Path(sys.executable), "--version").split(" from ")[0],
        "pinned": args.pin,
        "timed_rounds": args.rounds,
        "subjects": table,
    }
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
