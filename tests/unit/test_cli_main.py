"""The command line without a model: overview, flags, exit statuses, methods and map."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from posttrain.cli.main import VERBS, main, split
from posttrain.cli.train import Train
from posttrain.errors import ConfigError


def printed(capsys, *words):
    assert main(words) == 0
    return capsys.readouterr().out


def test_the_overview_names_every_verb_and_loads_nothing_heavy(capsys):
    for words in ((), ("--help",), ("-h",)):
        assert all(f"  {verb} " in printed(capsys, *words) for verb in VERBS)
    code = (
        "import sys; from posttrain.cli import main; main(['--help']);"
        "print([m for m in ('torch', 'tyro', 'rich', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")


def test_every_verb_has_help_and_at_most_six_flags(capsys):
    for verb in VERBS:
        with pytest.raises(SystemExit) as ended:
            main([verb, "--help"])
        assert ended.value.code == 0
        text = capsys.readouterr().out
        flags = [line for line in text.splitlines() if line.startswith("│ --")]
        assert len(flags) <= 6, verb
        assert f"posttrain {verb}" in text


def test_a_users_mistake_is_one_line_and_status_2(capsys):
    assert main(["trian"]) == 2
    assert "Did you mean 'train'?" in capsys.readouterr().err
    assert main(["train", "no-such-recipe"]) == 2
    told = capsys.readouterr()
    assert told.err.startswith("posttrain: there is no recipe 'no-such-recipe'")
    assert "Traceback" not in told.err
    assert told.out == ""


def test_a_bug_keeps_its_traceback(monkeypatch):
    monkeypatch.setattr("posttrain.recipes.load.load_recipe", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["train", "anything"])


def test_an_interruption_says_how_to_go_on(monkeypatch, capsys, tmp_path):
    def interrupted(*_args, **_more):
        raise KeyboardInterrupt

    monkeypatch.setattr("posttrain.api.fit", interrupted)
    folder = tmp_path / "out"
    words = ["train", "tests.unit.test_config:run_grpo", "--folder", str(folder)]
    assert main(words) == 130
    assert f"posttrain train {folder}/run.yaml --resume" in capsys.readouterr().err


def test_options_are_the_verbs_own_or_the_runs():
    own, overrides = split(
        ["x", "--resume", "--seed", "-3", "--folder", "f", "--decode.top_p=1", "--dry-run"], Train
    )
    assert own == ["x", "--resume", "--folder", "f", "--dry-run"]
    assert overrides == ["--seed", "-3", "--decode.top_p=1"]
    with pytest.raises(ConfigError, match=r"--resum\. Did you mean '--resume'"):
        split(["x", "--resum"], Train)


def test_methods_are_listed_shown_and_compared(capsys):
    assert "dr_grpo" in printed(capsys, "methods")
    assert "2402.03300" in printed(capsys, "methods", "grpo")
    assert json.loads(printed(capsys, "methods", "grpo", "--json"))["state"] == "built"
    rows = json.loads(printed(capsys, "methods", "grpo", "--against", "dr_grpo", "--json"))
    credit = next(row for row in rows if row["part"] == "credit")
    assert (credit["grpo"], credit["dr_grpo"]) == ("GroupStandardised", "GroupMean")
    assert "term of policy" not in [row["part"] for row in rows]  # the same in both
    assert main(["methods", "grppo"]) == 2
    assert "'grpo'" in capsys.readouterr().err


def test_the_map_is_searched(capsys):
    found = json.loads(printed(capsys, "map", "dr.", "grpo", "--json"))
    assert "2503.20783" in [paper["arxiv"] for paper in found]
    route = json.loads(printed(capsys, "map", "--direction", "agentic rl", "--route", "--json"))
    assert route[0]["arxiv"] == "2503.09516"
    assert "papers. Search" in printed(capsys, "map")
    assert "no paper has all these words" in printed(capsys, "map", "zzzzz")
    assert main(["map", "--route"]) == 2
