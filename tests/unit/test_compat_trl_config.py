"""GRPOConfig: TRL's fields, and what becomes of a value that is not TRL's default."""

from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

import pytest

from posttrain.compat.trl.config import GRPOConfig, default
from posttrain.compat.trl.fields import ALSO_SO, HONOURED, REFUSED, WITHOUT_EFFECT
from posttrain.errors import ConfigError

VECTORS = Path(__file__).parents[1] / "vectors" / "trl_grpo.json"


def test_names_order_and_defaults_are_those_of_trl():
    listed = json.loads(VECTORS.read_text())["fields"]
    assert {each.name: default(each) for each in fields(GRPOConfig)} == listed
    assert [each.name for each in fields(GRPOConfig)] == list(listed)


def test_every_field_is_honoured_without_effect_or_refused_and_only_one_of_them():
    names = [*HONOURED, *WITHOUT_EFFECT, *REFUSED]
    assert sorted(names) == sorted(each.name for each in fields(GRPOConfig))


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_a_refused_field_raises_its_name_its_value_and_what_to_do(name: str):
    with pytest.raises(ConfigError) as caught:
        GRPOConfig(**{name: "something else"})
    assert f"GRPOConfig.{name}='something else'" in str(caught.value)
    assert REFUSED[name] in str(caught.value)


@pytest.mark.parametrize("name", sorted(ALSO_SO))
def test_a_value_that_describes_what_happens_anyway_is_accepted(name: str):
    for value in ALSO_SO[name]:
        assert getattr(GRPOConfig(**{name: value}), name) == value


def test_an_unknown_name_is_refused_with_the_nearest_one():
    with pytest.raises(ConfigError, match=r"no field 'num_generation'\. Did you mean 'num_gen"):
        GRPOConfig(num_generation=4)


def test_the_output_folder_may_come_first_without_a_name():
    assert GRPOConfig("runs/a").output_dir == "runs/a"


@pytest.mark.parametrize(
    ("given", "slices", "size"),
    [
        ({}, 1, 8),
        ({"gradient_accumulation_steps": 3}, 3, 24),
        ({"steps_per_generation": 5}, 5, 40),
        ({"generation_batch_size": 48}, 6, 48),
        ({"generation_batch_size": 16, "steps_per_generation": 2}, 2, 16),
    ],
)
def test_the_sizes_of_a_generation_follow_from_one_another(
    given: dict[str, int], slices: int, size: int
):
    config = GRPOConfig(num_generations=2, **given)
    assert (config.steps_per_generation, config.generation_batch_size) == (slices, size)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"num_generations": 5}, "multiple of num_generations, got 8 and 5"),
        ({"num_generations": 1}, "num_generations must be >= 2, got 1"),
        ({"generation_batch_size": 20}, "multiple of per_device_train_batch_size, got 20 and 8"),
        ({"generation_batch_size": 16, "steps_per_generation": 3}, "=16 and .*=3 disagree"),
        (
            {"gradient_accumulation_steps": 2, "steps_per_generation": 3},
            "steps_per_generation must be a multiple of gradient_accumulation_steps, got 3 and 2",
        ),
        ({"loss_type": "gspo"}, "loss_type must be one of dapo, grpo.* got 'gspo'"),
        ({"loss_type": "bnpo", "gradient_accumulation_steps": 2}, "averages tokens within each"),
        ({"optim": "paged_adamw_8bit"}, "optim must be one of adamw_torch_fused, adamw_torch"),
        ({"report_to": ["wandb"]}, "report_to=.*only 'none' is.*metrics.jsonl"),
        ({"max_completion_length": None}, "max_completion_length must be a number of tokens"),
    ],
)
def test_a_value_without_meaning_is_refused(given: dict[str, object], words: str):
    with pytest.raises(ConfigError, match=words):
        GRPOConfig(**given)


def test_scale_rewards_takes_the_booleans_of_older_scripts():
    assert GRPOConfig(scale_rewards=True).scale_rewards == "group"
    assert GRPOConfig(scale_rewards=False).scale_rewards == "none"
