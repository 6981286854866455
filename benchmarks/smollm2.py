"""SmolLM2-135M-Instruct on sums, before and after Dr. GRPO, on a processor.

    python benchmarks/smollm2.py --model PATH

Writes ``smollm2-sums.json`` (settings, held-out accuracy before, on the way and after, sample
answers, seconds, tokens) and ``smollm2-sums.parquet`` (the sampled held-out episodes, first those
before, then those after).
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch
import transformers

from posttrain.api import fit, rollout
from posttrain.data.baselines import best_constant
from posttrain.data.store import write_groups
from posttrain.recipes.smollm2 import held_out_sums, numbers, smollm2_sums, sum_task
from posttrain.trainers.evaluate import scores_of
from posttrain.types.describe import describe
from posttrain.types.episode import Group
from posttrain.types.message import Message
from posttrain.types.run import Run

NUM_TEXTS = 10


def accuracy(groups: list[Group]) -> dict[str, float | int]:
    """``{mean, low, high, n}``: Wilson's 95% interval over problems."""
    scores = scores_of(groups)
    found = scores.accuracy
    return {
        "mean": found.estimate,
        "low": found.low,
        "high": found.high,
        "n": scores.num_problems,
    }


def measure(path: str, run: Run) -> dict[str, list[Group]]:
    """Held-out episodes of a model, sampled and greedy."""
    policy = replace(run.models["policy"], path=path)
    at = replace(run, models={"policy": policy})
    found = {}
    for name in ("sampled", "greedy"):
        found[name] = rollout(at, held_out_sums(greedy=name == "greedy"))
        print(name, accuracy(found[name]), habits(found[name]), flush=True)
    return found


def shown(groups: list[Group]) -> list[dict[str, object]]:
    """The first texts: the question, what the model said, the reward."""
    return [
        {
            "question": g.task.id,
            "answer": g.episode_text(0),
            "gold": g.task.gold,
            "reward": g.total(0),
        }
        for g in groups[:NUM_TEXTS]
    ]


def habits(groups: list[Group]) -> dict[str, float]:
    """How the answers look: whether they are numbers, and how near the sum."""
    said = [g.episode_text(0).strip() for g in groups]
    golds = [int(str(g.task.gold)) for g in groups]
    values = [(int(s), gold) for s, gold in zip(said, golds, strict=True) if s.isdecimal()]
    near = sum(abs(number - gold) <= 1 for number, gold in values)
    return {
        "is_a_number": len(values) / len(said),
        "within_one": near / len(said),
    }


def summarise(episodes: dict[str, list[Group]]) -> dict[str, object]:
    """Accuracies, habits and texts of one model."""
    return {
        name: {"accuracy": accuracy(g), "habits": habits(g), "texts": shown(g)}
        for name, g in episodes.items()
    }


def curve(folder: Path) -> list[dict[str, float]]:
    """Evaluations and training rewards by step, from the run's metrics."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def conclusion(before: dict[str, list[Group]], after: dict[str, list[Group]]) -> dict[str, object]:
    """Whether the intervals are apart, and what share of the gain greedy decoding had before."""
    found: dict[str, object] = {}
    for name in before:
        a, b = accuracy(before[name]), accuracy(after[name])
        found[f"{name}_gain"] = b["mean"] - a["mean"]
        found[f"{name}_intervals_apart"] = b["low"] > a["high"]
    return found


def main() -> None:
    """Measure, train, measure, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--lr", type=float, default=4e-5)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    parser.add_argument("--folder", type=Path, help="keep the run here")
    asked = parser.parse_args()
    torch.set_num_threads(asked.threads)
    with tempfile.TemporaryDirectory() as scratch:
        report = benchmark(asked, asked.folder or Path(scratch) / "run")
    (asked.out / "smollm2-sums.json").write_text(json.dumps(report, indent=1) + "\n")


def benchmark(asked: argparse.Namespace, folder: Path) -> dict[str, object]:
    """The whole report."""
    began = time.perf_counter()
    run = smollm2_sums(asked.model, seed=asked.seed, steps=asked.steps, lr=asked.lr)
    before = measure(asked.model, run)
    measured = time.perf_counter()
    trained = fit(run, folder)
    fitted = time.perf_counter()
    after = measure(str(trained.model), run)
    write_groups(asked.out / "smollm2-sums.parquet", [*before["sampled"], *after["sampled"]])
    constant, share = best_constant([sum_task(a) for a in numbers("heldout")])
    named = smollm2_sums(seed=asked.seed, steps=asked.steps, lr=asked.lr)
    return {
        "command": "python benchmarks/smollm2.py --model PATH"
        f" --steps {asked.steps} --lr {asked.lr} --seed {asked.seed} --threads {asked.threads}",
        "model": "SmolLM2-135M-Instruct",
        "weights": Path(asked.model).suffix.removeprefix(".") or "safetensors",
        "hardware": {
            "machine": platform.machine(),
            "threads": asked.threads,
            "vector_instructions": torch.backends.cpu.get_cpu_capability(),
        },
        "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
        "problems": {"train": len(numbers("train")), "held_out": len(numbers("heldout"))},
        "prompt": [[m.role, m.content] for m in sum_task(34).prompt if isinstance(m, Message)],
        "best_constant": {"answer": constant, "accuracy": share},
        "before": summarise(before),
        "after": summarise(after),
        "conclusion": conclusion(before, after),
        "curve": curve(folder),
        "sampled_tokens": int(trained.metrics["num_tokens"]),
        "seconds": {
            "measure_before": measured - began,
            "train": fitted - measured,
            "all": time.perf_counter() - began,
        },
        "run": describe(named),
    }


if __name__ == "__main__":
    main()
