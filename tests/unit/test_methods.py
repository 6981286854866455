import ast
import inspect
from dataclasses import replace
from pathlib import Path

import fixture_f
import pytest
import torch
from group_fixture import group, observed, sampled

import posttrain.methods as methods
from posttrain.errors import ConfigError
from posttrain.methods import METHODS, dr_grpo, grpo, reinforce, rloo, sft
from posttrain.parts.credit import RewardItself, RunningMean
from posttrain.parts.memory import RememberMeanReward
from posttrain.parts.probes import old_logprobs
from posttrain.types.method import Updates

REQUIRED = {"dr_grpo": {"max_tokens": 4}}


def loss_of(method, batch=None):
    """The policy's whole loss on the fixture, with its slopes."""
    model = fixture_f.model()
    total = torch.zeros(())
    for term in method.terms["policy"]:
        total = total + term(batch or fixture_f.batch(), model, fixture_f.COUNTS, None).loss
    total.backward()
    assert model.policy_logprobs.grad is not None
    return total.item(), fixture_f.rows_of(model.policy_logprobs.grad).tolist()


def test_grpo_on_the_fixture():
    loss, _ = loss_of(grpo(beta=0.0))
    assert loss == pytest.approx(-0.015300, abs=2e-6)
    loss, slopes = loss_of(grpo())
    assert loss == pytest.approx(-0.013066, abs=2e-6)
    # policy slope + 0.04 * (1 - e^-d), over 2 rows of 3 and of 2 tokens
    policy = [-1.105171, 0.0, -0.818731, 1.221403, 0.0]
    kl = [0.259182, 0.095163, -0.105171, 0.259182, -0.648721]
    lengths = [3, 3, 3, 2, 2]
    expected = [(p + 0.04 * k) / (2 * n) for p, k, n in zip(policy, kl, lengths, strict=True)]
    assert slopes == pytest.approx(expected, abs=2e-6)


def test_dr_grpo_on_the_fixture():
    loss, slopes = loss_of(dr_grpo(max_tokens=4))
    assert loss == pytest.approx(-0.137812, abs=2e-6)
    assert slopes == pytest.approx(
        [v / 8 for v in (-1.105171, 0, -0.818731, 1.221403, 0)], abs=2e-6
    )


@pytest.mark.parametrize("method", [reinforce(), rloo()])
def test_reinforce_and_rloo_on_the_fixture(method):
    loss, slopes = loss_of(method)
    assert loss == pytest.approx(0.15, abs=2e-6)
    assert slopes == pytest.approx([-0.5, -0.5, -0.5, 0.5, 0.5])


def test_sft_on_the_fixture():
    loss, slopes = loss_of(sft())
    assert loss == pytest.approx(4.9 / 5)
    assert slopes == pytest.approx([-0.2] * 5)


def test_credit_of_each_method():
    segments = [observed(2), *[sampled(1, old_logprobs=-1.0, ref_logprobs=-2.0)] * 4]
    four = group([1.0, 0.0, 0.0, 1.0], segments=segments)

    def first(method):
        assert method.credit is not None
        return float(method.credit([four], {})["advantages"][1][0])

    assert first(grpo()) == pytest.approx(0.866024, abs=2e-6)
    assert first(dr_grpo(max_tokens=4)) == pytest.approx(0.5)
    assert first(rloo()) == pytest.approx(2 / 3)  # the same KL everywhere cancels
    assert first(reinforce()) == pytest.approx(0.5)
    assert first(reinforce(baseline=RewardItself(), beta=0.25)) == pytest.approx(0.75)


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_builds_under_its_own_name(name):
    method = METHODS[name](**REQUIRED.get(name, {}))
    assert method.name == name
    assert METHODS[name].__module__ == f"posttrain.methods.{name}"


@pytest.mark.parametrize("name", METHODS)
def test_every_preset_is_compared_by_value(name):
    keywords = REQUIRED.get(name, {})
    assert METHODS[name](**keywords) == METHODS[name](**keywords)


def test_no_reference_without_a_penalty():
    for method in (grpo(beta=0.0), rloo(beta=0.0), dr_grpo(max_tokens=4), reinforce()):
        assert [p.model for p in method.probes if p.model != "policy"] == []
    assert [p.name for p in grpo().probes] == ["old_logprobs", "ref_logprobs"]
    assert [p.name for p in rloo().probes] == ["old_logprobs", "ref_logprobs"]
    assert [p.name for p in reinforce(beta=0.1).probes] == ["old_logprobs", "ref_logprobs"]


def test_a_running_baseline_brings_its_memory():
    assert reinforce(baseline=RunningMean()).observe == (RememberMeanReward(),)
    assert reinforce().observe == ()


@pytest.mark.parametrize("make", [grpo, rloo])
def test_a_group_of_one_is_refused(make):
    with pytest.raises(ConfigError, match="Raise the group size"):
        make(group_size=1)
    assert reinforce(group_size=1).plan.group_size == 1


def test_a_penalty_without_its_reference_is_refused():
    with pytest.raises(ConfigError, match="KLPenalty reads the column 'ref_logprobs'"):
        replace(grpo(), probes=(old_logprobs(),))
    with pytest.raises(ConfigError, match="KLInReward reads the column 'ref_logprobs'"):
        replace(rloo(), probes=(old_logprobs(),))
    with pytest.raises(ConfigError, match="PolicyGradient reads the column 'advantages'"):
        replace(dr_grpo(max_tokens=4), credit=None)


def test_updates_are_passed_on():
    assert grpo(updates=Updates(minibatches=4)).updates.num_steps == 4


def test_methods_never_import_each_other():
    folder = Path(inspect.getfile(methods)).parent
    for path in folder.glob("*.py"):
        if path.stem not in METHODS:
            continue
        names = [
            node.module or ""
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.ImportFrom)
        ]
        assert not [n for n in names if n.startswith("posttrain.methods")], path.name
        assert len(path.read_text(encoding="utf-8").splitlines()) <= 120
