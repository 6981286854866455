"""Train a real model with RL on two cores and measure it on held-out problems before and after.

    python benchmarks/real_model.py --model PATH --name SmolLM2-135M-Instruct \\
        --out benchmarks/results/smollm2-largest.json

PATH is a folder, a hub id or a GGUF file. The result holds accuracies with 95% intervals (Wilson),
the best constant answer, the curve of training rewards, the settings, and episodes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from posttrain.api import fit, rollout
from posttrain.data.store import write_groups
from posttrain.monitor.metrics_file import read_metrics
from posttrain.recipes.largest import held_out, largest
from posttrain.trainers.evaluate import scores_of
from posttrain.types.describe import describe


def measured(run, num_tasks: int) -> tuple[dict[str, object], list]:
    """Accuracy sampled and greedy, and the sampled groups."""
    found: dict[str, object] = {}
    kept = []
    for label in ("sampled", "greedy"):
        groups = rollout(run, held_out(num_tasks=num_tasks, greedy=label == "greedy"))
        scores = scores_of(groups)
        low, high = scores.accuracy.low, scores.accuracy.high
        found[label] = {"mean": scores.accuracy.estimate, "low": low, "high": high,
                        "n": scores.num_problems}  # fmt: skip
        kept = kept or groups
        print(label, found[label], flush=True)
    return found, kept


def main() -> None:
    """Measure, train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--num-tasks", type=int, default=200)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    asked = parser.parse_args()
    if asked.threads:
        import torch

        torch.set_num_threads(asked.threads)
    began = time.perf_counter()
    run = largest(asked.model, seed=asked.seed, steps=asked.steps)
    before, first = measured(run, asked.num_tasks)
    folder = Path(tempfile.mkdtemp())
    trained = fit(run, folder / "run")
    seconds = time.perf_counter() - began
    after_run = largest(str(trained.model), seed=asked.seed)
    after, last = measured(after_run, asked.num_tasks)
    golds = Counter(str(g.task.gold) for g in first)
    rows = list(read_metrics(folder / "run" / "metrics.jsonl"))
    settings = json.loads(json.dumps(describe(run)).replace(asked.model, "PATH"))
    report = {
        "command": "python " + " ".join(sys.argv).replace(asked.model, "PATH"),
        "model": asked.name,
        "what": "held-out problems, one answer each; none of them can be drawn in training",
        "before": before,
        "after": after,
        "best_constant_answer": max(golds.values()) / sum(golds.values()),
        "curve": [{k: r[k] for k in ("step", "reward", "entropy", "completions/mean_length",
                                     "step_time") if k in r} for r in rows],
        "seconds": {"until_trained": seconds, "all": time.perf_counter() - began},
        "threads": asked.threads or "all",
        "episodes": [
            {"question": str(a.task.prompt).splitlines()[-1], "gold": a.task.gold,
             "before": a.episode_text(0), "after": b.episode_text(0)}
            for a, b in zip(first[:20], last[:20], strict=True)
        ],
        "run": settings,
    }  # fmt: skip
    asked.out.write_text(json.dumps(report, indent=1) + "\n")
    write_groups(asked.out.with_suffix(".before.parquet"), first[:40])
    write_groups(asked.out.with_suffix(".after.parquet"), last[:40])
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
