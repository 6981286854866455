"""A known optimum is reached through the public door, and a killed run ends with the same bits."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from posttrain import AdamW, Checkpoints, Decode, Local, Phase, Run, Steps, Trained, fit
from posttrain.data.sources import Rows
from posttrain.methods import METHODS
from posttrain.monitor.metrics_file import read_metrics
from posttrain.rewards.functions import SampleFunction

ROOT = Path(__file__).parents[2]


def is_plain(answer: str, gold: object) -> float:
    """1 if the first character is printable ASCII: the optimum is a reward of 1."""
    del gold
    return float(bool(answer) and " " <= answer[0] <= "~")


@pytest.mark.learning
@pytest.mark.parametrize("name", ["dr_grpo", "rloo", "reinforce"])
def test_a_policy_reaches_the_best_reward(tmp_path, name):
    extra = {"dr_grpo": {"max_tokens": 1}, "rloo": {"beta": 0.0}}.get(name, {})
    rows = tuple({"prompt": f"{i}?", "answer": ""} for i in range(6))
    run = Run(
        models={"policy": Trained(path="tiny", optimiser=AdamW(lr=5e-3), compute="float32")},
        phases=(
            Phase(
                METHODS[name](group_size=16, **extra),
                Rows(rows, verifiers={"plain": SampleFunction(is_plain)}),
                Steps(40),
            ),
        ),
        decode=Decode(max_tokens=1),
        trainer=Local(groups_per_step=4),
        checkpoints=Checkpoints(every=0, episodes=False),
    )
    fit(run, tmp_path / "run", listeners=[])
    rewards = [row["reward"] for row in read_metrics(tmp_path / "run" / "metrics.jsonl")]
    assert rewards[0] < 0.6
    assert min(rewards[-5:]) > 0.95


@pytest.mark.slow
def test_a_killed_run_resumes_to_the_same_weights(tmp_path):
    out = tmp_path / "kills.json"
    script = ROOT / "benchmarks" / "resume_kill.py"
    command = [sys.executable, str(script), "--kills", "2", "--steps", "6", "--out", str(out)]
    subprocess.run(command, check=True, timeout=280, capture_output=True)
    report = json.loads(out.read_text())
    assert report["all_equal"]
    assert len(report["kills"]) == 2
