"""The quickstart on several seeds, each in a process of its own, as a user starts it.

    python benchmarks/quickstart.py --seeds 0 1 2 3 4 --out benchmarks/results/quickstart.json

Writes every summary, the seconds of the whole process (imports included), and whether each seed met
the target: sampled held-out accuracy from below 40% to above 80% within 180 s.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET = {"before_below": 0.4, "after_above": 0.8, "seconds_below": 180.0}


def one(seed: int) -> dict[str, object]:
    """The summary of one seed, with the seconds of the whole process."""
    with tempfile.TemporaryDirectory() as folder:
        where = Path(folder) / "quickstart"
        command = [sys.executable, "-m", "posttrain.cli", "quickstart"]
        began = time.perf_counter()
        subprocess.run([*command, "--folder", str(where), "--seed", str(seed)], check=True)
        seconds = time.perf_counter() - began
        summary = json.loads((where / "summary.json").read_text())
    before, after = (summary[f"accuracy_{when}"]["mean"] for when in ("before", "after"))
    met = before < TARGET["before_below"] and after > TARGET["after_above"]
    summary["process_seconds"] = seconds
    summary["greedy_gain"] = summary["greedy_after"]["mean"] - summary["greedy_before"]["mean"]
    summary["met"] = met and seconds < TARGET["seconds_below"]
    return summary


def main() -> None:
    """Run the seeds and write the file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    runs = []
    for seed in asked.seeds:
        runs.append(one(seed))
        print(json.dumps(runs[-1]))
    import torch
    import transformers

    gains = [float(str(r["greedy_gain"])) for r in runs]
    report = {
        "command": "python " + " ".join(sys.argv),
        "hardware": {
            "machine": platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        },
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "target": TARGET,
        "met_by": sum(bool(r["met"]) for r in runs),
        "greedy_gain": {"median": statistics.median(gains), "lowest": min(gains)},
        "runs": runs,
    }
    if asked.out:
        asked.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
