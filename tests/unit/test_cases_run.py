"""Robustness cases: the file's own, and others of their families."""

from __future__ import annotations

from pathlib import Path

import pytest

from posttrain.testing.case_file import Case, Status, check, read_cases
from posttrain.testing.cases import adapter_of

CASES = [
    case
    for case in read_cases(Path(__file__).parents[1] / "cases" / "cases.jsonl")
    if case.kind == "robustness"
]
MISSING = {"run.tools.malformed-arguments"}


def outcome(given: dict, expected: dict) -> tuple[Status, list[str]]:
    result = check(Case("case", "robustness", given, expected), adapter_of("robustness"))
    return result.status, list(result.notes)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_case_of_the_file(case):
    result = check(case, adapter_of("robustness"))
    wanted = Status.NOT_YET if case.id in MISSING else Status.PASSED
    assert (result.status, result.notes if wanted is Status.PASSED else ()) == (wanted, ())


QUICK = [
    ({"checkpoints": {"step_5": "complete", "step_40": "empty", "step_30": "complete"}},
     {"resumes_from": 30, "warns": True}),
    ({"checkpoints": {"step_7": "partly written"}}, {"resumes_from": None, "warns": True}),
    ({"config": {"learning_rate": 0.001}}, {"raises": False}),
    ({"config": {"betta": 0.1}}, {"raises": True, "message_mentions": ["betta", "beta"]}),
    ({"config": {"optimiser": {"lr": 0.1}}},
     {"raises": True, "message_mentions": ["optimiser", "models.policy.optimiser"],
      "valid_path": "models.policy.optimiser"}),
    ({"config": {"max_completion_length": None}}, {"raises_or_warns": True}),
    ({"group_size": 2, "baseline": "group mean"}, {"raises_or_warns": False}),
    ({"samples": 7, "workers": 7}, {"total": 7, "sizes_differ_by_at_most": 0}),
    ({"samples": 2, "workers": 3},
     {"total": 2, "sizes_differ_by_at_most": 1, "order_preserved": True}),
    ({"prompts": 300, "filter": "by token length", "characters_each": 20},
     {"processed": 300, "cached_or_lazy": True, "max_seconds": 30}),
    ({"trainable_parameters": 1}, {"raises": False}),
    ({"completions": 2, "rewards_returned": 5}, {"raises": True, "message_mentions": ["2", "5"]}),
    ({"completions": [[1], [2]], "rewards_returned": 2}, {"raises": False, "parsed": [1.0, 1.0]}),
    ({"rewards_returned": ["numpy int64 3", "NaN", "False", "torch float32 0.25"]},
     {"parsed": [3.0, "unscored", 0.0, 0.25]}),
    ({"policy": "uniform over 5 tokens", "completion_length": 3, "samples_per_prompt": 6,
      "seed": 9, "temperature": 0.7}, {"distinct_at_least": 2, "same_on_rerun": True}),
    ({"shared_prefix": 9, "weights_change_between_calls": True},
     {"cached_prefix_reused": False, "rollout_weights_changed": True}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), QUICK)
def test_a_case_unlike_those_of_the_file(given, expected):
    assert outcome(given, expected) == (Status.PASSED, [])


SLOW = [
    ({"items": 7, "batch": 2, "stop_at_item": 5, "shuffle_seed": 1},
     {"property": "the order is that of the uninterrupted run", "skipped": 0, "trained_twice": 0,
      "never_seen": 0}),
    ({"items": 6, "batch": 2, "total": 8, "stop_at": 4, "checkpoint_at": 3,
      "schedule": "cosine with 2 warm-up steps"},
     {"lr_at_step_6_equals_uninterrupted": True, "first_step_after_resume": 4,
      "max_abs_loss_difference": 1e-6}),
    ({"yielded": 9, "trained": 3, "in_flight": 6}, {"skipped": 0, "trained_twice": 0}),
    ({"max_lag": 2, "batch": 2, "version_at_resume": 1},
     {"max_new_samples_before_next_update": 6}),
    ({"tracker": "log() hangs", "steps": 2}, {"steps_completed": 2, "warned": True}),
    ({"tracker": "init raises", "steps": 2}, {"steps_completed": 2, "warned": True}),
    ({"prompts": 1, "batch": 4}, {"zero_steps_silently": False, "processed": 4}),
    ({"all_rewards": 1, "dynamic_sampling": True, "max_attempts": 2},
     {"terminates": True, "attempts": 2, "message_mentions": ["group", "reward"]}),
    ({"rollouts": 4, "failing": 3},
     {"step_completed": True, "failed_count_logged": 3, "failed_row_gradient": 0}),
    ({"completions": [[], [], [5]], "rewards": [0, 0, 1]}, {"loss_finite": True}),
    ({"producer": "raises after 1 batch", "trainer_needs": 3},
     {"trainer_raises": True, "max_wait_s": 30, "reported_as_success": False,
      "message_mentions": ["the sampling process died"]}),
    ({"adapter_training": False, "updates": 2},
     {"rollout_weights_changed": True, "checked_by_library": True}),
    ({"reward_function": "raises an exception"},
     {"step_completed": True, "counted": True, "warned": True, "raises": False}),
    ({"reward_function": "returns NaN"}, {"step_completed": True, "counted": True}),
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("given", "expected"), SLOW)
def test_a_run_unlike_those_of_the_file(given, expected):
    assert outcome(given, expected) == (Status.PASSED, [])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"checkpoints": ["step_9", "step_10"]}, {"resumes_from": 9}),
        ({"samples": 7, "workers": 3}, {"sizes_differ_by_at_most": 0}),
        ({"rewards_returned": ["True"]}, {"parsed": ["unscored"]}),
        ({"group_size": 1, "baseline": "group mean"}, {"raises_or_warns": False}),
    ],
)
def test_a_case_that_is_wrong_fails(given, expected):
    assert outcome(given, expected)[0] is Status.FAILED


@pytest.mark.parametrize(
    "given",
    [
        {"weather": "rain"},
        {"tracker": "sings", "steps": 1},
        {"policy": "a poem", "completion_length": 1, "samples_per_prompt": 2, "seed": 1},
    ],
)
def test_an_unknown_set_up_is_not_yet(given):
    assert outcome(given, {})[0] is Status.NOT_YET
