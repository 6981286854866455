"""Overrides of a run's fields, recipes from anywhere, and saved runs."""

from __future__ import annotations

import textwrap

import pytest
import yaml
from tests.unit.loop_kit import run_of

from posttrain.errors import ConfigError
from posttrain.methods import grpo, reinforce
from posttrain.monitor.tensorboard import TensorBoard
from posttrain.parts.credit import GroupMean
from posttrain.parts.trust import ClippedRatio, Unconstrained
from posttrain.recipes.load import load_recipe
from posttrain.recipes.override import merged, override
from posttrain.recipes.saved import save_run
from posttrain.types.describe import tree_hash
from posttrain.types.models import Frozen
from posttrain.types.run import Lag, Reached

FILE = """
from posttrain.methods import grpo
from posttrain.types.models import Trained
from posttrain.types.run import Phase, Run, Steps
from tests.unit.loop_kit import Letters

def helper(n: int) -> int:
    return n

def letters() -> Run:
    method = grpo(group_size={size}, beta=0.0)
    phase = Phase(method=method, source=Letters(), until=Steps(helper(3)))
    return Run(models={{"policy": Trained(path="tiny")}}, phases=(phase,))
"""


def run_grpo():
    """A recipe for ``module:function``."""
    return run_of(grpo(group_size=4, beta=0.0))


def write_file(folder, name, *, size=5):
    path = folder / f"{name}.py"
    path.write_text(textwrap.dedent(FILE.format(size=size)))
    return path


TERM = "--phases.0.method.terms.policy.0"


@pytest.mark.parametrize(
    ("words", "read", "expected"),
    [
        ("--seed 7", lambda r: r.seed, 7),
        ("--seed=-7", lambda r: r.seed, -7),
        ("--models.policy.optimiser.lr 1e-5", lambda r: r.models["policy"].optimiser.lr, 1e-5),
        (
            "--models.policy.optimiser.betas 0.8,0.95",
            lambda r: r.models["policy"].optimiser.betas,
            (0.8, 0.95),
        ),
        (
            "--models.policy.optimiser.betas.1 0.9",
            lambda r: r.models["policy"].optimiser.betas,
            (0.9, 0.9),
        ),
        ("--trainer.exact none", lambda r: r.trainer.exact, None),
        ("--trainer.groups-per-step 9", lambda r: r.trainer.groups_per_step, 9),
        ("--checkpoints.episodes false", lambda r: r.checkpoints.episodes, False),
        ("--decode.stop [</a>,b]", lambda r: r.decode.stop, ("</a>", "b")),
        ("--engine.compute bfloat16", lambda r: r.engine.compute, "bfloat16"),
        (f"{TERM}.trust.high 0.3", lambda r: policy_term(r).trust, ClippedRatio(high=0.3)),
        (f"{TERM}.trust Unconstrained", lambda r: policy_term(r).trust, Unconstrained()),
        (
            f"{TERM}.trust ClippedRatio {TERM}.trust.low 0.1",
            lambda r: policy_term(r).trust,
            ClippedRatio(low=0.1),
        ),
        ("--phases.0.method.credit GroupMean", lambda r: r.phases[0].method.credit, GroupMean()),
        ("--schedule Lag --schedule.k 2", lambda r: r.schedule, Lag(2)),
        (
            "--phases.0.until Reached --phases.0.until.metric reward --phases.0.until.level 0.5 "
            "--phases.0.until.at_most 8",
            lambda r: r.phases[0].until,
            Reached(metric="reward", level=0.5, at_most=8),
        ),
        ("--models.ref Frozen --models.ref.of policy", lambda r: r.models.get("ref"), Frozen()),
        ("--sinks.0 TensorBoard", lambda r: r.sinks, (TensorBoard(),)),
        ("--phases.0.source.num 3", lambda r: r.phases[0].source.num, 3),
    ],
)
def test_override_sets_one_field(words, read, expected):
    run = run_of(grpo(group_size=4, beta=0.0))
    changed = override(run, words.split())
    assert read(changed) == expected
    assert read(run) != expected


def policy_term(run):
    return run.phases[0].method.terms["policy"][0]


def test_fields_that_only_fit_together_are_set_together():
    # without a ratio there is nothing to clip: either change alone is refused
    run = run_of(grpo(group_size=4, beta=0.0))
    words = [f"{TERM}.ratio", "NoRatio", f"{TERM}.trust", "Unconstrained"]
    with pytest.raises(ConfigError, match="bounds a ratio"):
        override(run, words[:2])
    assert policy_term(override(run, words)).trust == Unconstrained()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("--learnign_rate 1", ["learnign_rate", "learning_rate", "--models.policy.optimiser.lr"]),
        (
            "--models.policy.optimiser.learning_rate 1",
            ["'learning_rate'", "That is --models.policy.optimiser.lr"],
        ),
        ("--models.policy.optimsier.lr 1", ["optimsier", "'optimiser'"]),
        ("--decode.temprature 1", ["temprature", "'temperature'"]),
        ("--models.polcy.path x", ["polcy", "'policy'"]),
        ("--phases.1.name x", ["places 0 to 0", "'1'"]),
        ("--seed x", ["--seed", "a whole number", "'x'"]),
        ("--decode.top_p x", ["a number", "'x'"]),
        ("--decode.top_p 3", ["top_p", "(0, 1]", "3"]),
        ("--trainer.exact maybe", ["true or false, or none", "'maybe'"]),
        ("--engine.compute bfloat61", ["float32", "'bfloat16'"]),
        ("--models.policy.optimiser.betas 0.9", ["2 values"]),
        (f"{TERM}.trust Unconstraind", ["DualClip", "'Unconstrained'"]),
        (f"{TERM} KLPenalty", ["KLPenalty needs beta", f"{TERM}.beta"]),
        ("--phases.0.evaluation.every 3", ["--phases.0.evaluation is None", "Evaluation"]),
        ("--seed.x 3", ["--seed is 0"]),
        ("--seed", ["needs a value"]),
        ("seed 3", ["'seed'"]),
        ("--seed 3 --seed 4", ["twice"]),
    ],
)
def test_a_wrong_option_is_refused_with_what_is_allowed(words, told):
    with pytest.raises(ConfigError) as caught:
        override(run_of(grpo(group_size=4, beta=0.0)), words.split())
    for word in told:
        assert word in str(caught.value)


def test_new_options_replace_old_ones_and_what_is_below_them():
    old = ["--seed", "1", f"{TERM}.trust.low", "0.1"]
    assert merged(old, [f"{TERM}.trust=Unconstrained"]) == (
        "--seed", "1", f"{TERM}.trust", "Unconstrained")  # fmt: skip


def test_recipes_from_a_function_and_a_file(tmp_path):
    run, origin = load_recipe("tests.unit.test_config:run_grpo", ["--seed", "4"])
    assert (run.seed, origin.name) == (4, "run_grpo")
    path = write_file(tmp_path, "recipe_one")
    for word in (str(path), f"{path}:letters"):
        run, origin = load_recipe(word)
        assert run.phases[0].until.steps == 3
        assert origin.recipe == "recipe_one.py:letters"


@pytest.mark.parametrize(
    ("word", "told"),
    [
        ("nothing", "no recipe 'nothing'"),
        ("nothing.py", "no recipe file"),
        ("tests.unit.nothing:run", "cannot be imported"),
        ("tests.unit.test_config:run_grp", "'run_grpo'"),
        ("tests.unit.test_config:policy_term", "needs the arguments"),
        ("nothing.yaml", "cannot be read"),
    ],
)
def test_no_such_recipe(word, told):
    with pytest.raises(ConfigError, match=told):
        load_recipe(word)


def test_a_saved_run_is_built_again_with_its_file_and_overrides(tmp_path):
    recipe = write_file(tmp_path, "recipe_two")
    run, origin = load_recipe(str(recipe), ["--seed", "3", "--decode.top_p", "0.9"])
    path = save_run(tmp_path / "out", run, origin)
    recipe.unlink()
    for word in (path, path.parent):
        again, where = load_recipe(str(word))
        assert tree_hash(again) == tree_hash(run)
        assert where.folder == tmp_path / "out"
    changed, where = load_recipe(str(path), ["--seed", "5"])
    assert (changed.seed, changed.decode.top_p) == (5, 0.9)
    saved = yaml.safe_load(save_run(tmp_path / "two", changed, where).read_text())
    assert saved["overrides"] == ["--decode.top_p", "0.9", "--seed", "5"]
    assert load_recipe(str(tmp_path / "two"))[0] == changed


def test_a_saved_run_refuses_to_become_another(tmp_path, monkeypatch):
    run, origin = load_recipe("tests.unit.test_config:run_grpo")
    path = save_run(tmp_path, run, origin)
    monkeypatch.setattr(
        "tests.unit.test_config.run_grpo", lambda: run_of(reinforce(), decode=run.decode)
    )
    with pytest.raises(ConfigError, match=r"phases\.0\.method\.name: 'grpo' in the file"):
        load_recipe(str(path))


def test_an_edited_tree_or_file_is_refused(tmp_path):
    run, origin = load_recipe("tests.unit.test_config:run_grpo")
    path = save_run(tmp_path, run, origin)
    path.write_text(path.read_text().replace("top_k: 0", "top_k: 5"))
    with pytest.raises(ConfigError, match=r"decode\.top_k: 5 in the file, 0 now"):
        load_recipe(str(path))
    run, origin = load_recipe(str(write_file(tmp_path, "recipe_three")))
    path = save_run(tmp_path / "out", run, origin)
    write_file(tmp_path / "out", "recipe_three", size=6)
    with pytest.raises(ConfigError, match="was changed since"):
        load_recipe(str(path))
