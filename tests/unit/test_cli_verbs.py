"""Every verb that needs a model, on the tiny one."""

from __future__ import annotations

import json

import pytest
from tests.unit.loop_kit import Letters

from posttrain.cli.main import main
from posttrain.methods import reinforce
from posttrain.types.ask import Decode
from posttrain.types.models import AdamW, Trained
from posttrain.types.run import Checkpoints, Evaluation, Local, Phase, Run, Steps

RECIPE = "tests.unit.test_cli_verbs:tiny"


def tiny() -> Run:
    """Two steps on letters."""
    plan = Evaluation(source=Letters(), every=0, num_tasks=3, samples=2)
    phase = Phase(method=reinforce(), source=Letters(), until=Steps(2), evaluation=plan)
    return Run(
        models={"policy": Trained(path="tiny", optimiser=AdamW(lr=1e-3), compute="float32")},
        phases=(phase,),
        decode=Decode(max_tokens=4),
        trainer=Local(groups_per_step=2, microbatch_tokens=256, device="cpu"),
        checkpoints=Checkpoints(every=1),
    )


def always_right(answer: str, gold: str) -> float:
    """1 for anything."""
    return 1.0


def printed(capsys, *words):
    assert main([str(word) for word in words]) == 0
    return capsys.readouterr().out


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli") / "tiny"
    assert main(["train", RECIPE, "--seed", "5", "--folder", str(folder)]) == 0
    return folder


def test_train_leaves_a_run_that_can_go_on(trained, capsys):
    assert (trained / "run.yaml").is_file()
    lines = (trained / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2, 2]
    assert main(["train", RECIPE, "--folder", str(trained)]) == 2
    assert "--resume" in capsys.readouterr().err
    saved = (trained / "run.yaml").read_text()
    assert main(["train", str(trained / "run.yaml"), "--resume"]) == 0
    assert (trained / "run.yaml").read_text() == saved
    assert "step_000002" in capsys.readouterr().out


def test_eval_scores_the_newest_checkpoint_or_a_named_model(trained, capsys):
    found = json.loads(printed(capsys, "eval", trained, "--k", 1, 2, "--json"))
    assert found["model"].endswith("step_000002")
    assert (found["num_problems"], found["num_samples"]) == (3, 2)
    assert set(found["pass_at"]) == {"1", "2"}
    model = trained / "checkpoints" / "step_000001"
    text = printed(capsys, "eval", RECIPE, "--model", model, "--tasks", 2, "--decode.top_k", 3)
    assert "pass@2" in text
    assert "2 problems" in text


def test_episodes_are_written_graded_again_and_replayed(trained, capsys, tmp_path):
    out = tmp_path / "episodes.parquet"
    text = printed(capsys, "rollout", RECIPE, "--out", out, "--show", 1)
    assert "rewards/starts_early/mean" in text
    text = printed(capsys, "rescore", out, "--reward", "tests.unit.test_cli_verbs:always_right")
    assert "1.000" in text
    text = printed(capsys, "rescore", trained / "episodes", "--recipe", trained)
    assert "0 episodes changed" in text
    step = trained / "episodes" / "step_000001.parquet"
    text = printed(capsys, "replay", RECIPE, step, "--out", tmp_path / "replayed.parquet")
    assert "grad_norm" in text
    assert (tmp_path / "replayed.parquet").is_file()
    assert main(["rescore", str(out)]) == 2
    assert main(["rescore", str(tmp_path / "nothing"), "--recipe", RECIPE]) == 2


def test_the_doctor_looks_at_everything(capsys):
    text = printed(capsys, "doctor", RECIPE, "--tasks", 2, "--samples", 2)
    for word in ("MiB", "a turn ends with token", "in brackets", "starts_early", "mean difference"):
        assert word in text


def test_a_dry_run_prints_the_run_and_writes_nothing(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = printed(capsys, "train", RECIPE, "--dry-run", "--decode.top_k", 7)
    assert "top_k: 7" in text
    assert "hash " in text
    assert not list(tmp_path.iterdir())
