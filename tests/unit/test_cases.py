"""The case runner: a key passed over is told, a wrong number fails, and the families answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from posttrain.errors import ConfigError, DataError
from posttrain.testing.case_file import (
    REFUSED,
    AtLeast,
    AtMost,
    Case,
    Either,
    Near,
    NotYetError,
    Status,
    Text,
    agrees,
    check,
    read_cases,
)
from posttrain.testing.cases import adapter_of, main, summary

CASES = Path(__file__).parents[1] / "cases" / "cases.jsonl"


def case(given: dict, expected: dict, kind: str = "toy") -> Case:
    return Case("a.case", kind, given, expected)


def adding(given, expected):
    return {"sum": given["a"] + given["b"], "late": lambda: given["c"]}


def test_a_case_passes_when_every_key_is_read_and_right():
    assert check(case({"a": 1, "b": 2}, {"sum": 3}), adding).status is Status.PASSED


def test_a_wrong_number_fails_with_both():
    result = check(case({"a": 1, "b": 2}, {"sum": 4}), adding)
    assert result.status is Status.FAILED
    assert result.notes == ["sum: expected 4, found 3"]


@pytest.mark.parametrize(
    ("given", "expected", "note"),
    [
        ({"a": 1, "b": 2, "c": 0}, {"sum": 3}, "unknown key of the input: 'c'"),
        ({"a": 1, "b": 2}, {"sum": 3, "difference": 1}, "unknown key of expected: 'difference'"),
        ({"a": 1}, {"sum": 3}, "the input has no key 'b'"),
        ({"a": 1, "b": 2}, {"late": 3}, "the input has no key 'c'"),
    ],
)
def test_a_key_passed_over_is_not_yet_with_the_key(given, expected, note):
    result = check(case(given, expected), adding)
    assert result.status is Status.NOT_YET
    assert list(result.notes) == [note]


def test_a_wrong_number_beside_an_unknown_key_fails():
    assert check(case({"a": 1, "b": 2, "c": 0}, {"sum": 4}), adding).status is Status.FAILED


def test_an_error_of_the_library_fails_and_a_refusal_may_pass():
    def raising(given, expected):
        raise ConfigError("no such thing")

    assert check(case({}, {"sum": 1}), raising).notes == ("ConfigError: no such thing",)
    refusing = case({}, {"sum": 1, "or_refused": True})
    assert check(refusing, lambda given, expected: {REFUSED: True}).status is Status.PASSED
    unsure = check(refusing, lambda given, expected: {"sum": 2})
    assert unsure.status is Status.FAILED


@pytest.mark.parametrize(
    ("fact", "expected", "right"),
    [
        (1.0, 1.00009, True),
        (1.0, 1.0002, False),
        (Near(1.0, 1e-2), 1.005, True),
        (float("nan"), 1.0, False),
        ([1, [2.0]], [1, [2]], True),
        ([1, 2], [1], False),
        (True, True, True),
        (1, True, False),
        (1.0, 1, True),
        ({"a": 1, "b": 2}, {"a": 1}, False),
        ({"a": 1}, {"a": 1}, True),
        (AtMost(3.0), 4, True),
        (AtMost(5.0), 4, False),
        (AtMost(float("nan")), 4, False),
        (AtLeast(3), 2, True),
        (AtLeast(1), 2, False),
        (Text("No chat template in X"), ["Chat Template"], True),
        (Text("No chat template in X"), ["tokenizer"], False),
        (Either([1, True]), True, True),
        ({"the name": True}, ["the name"], True),
        ({"the name": False}, ["the name"], False),
        ("left", "left", True),
    ],
)
def test_facts_against_what_is_expected(fact, expected, right):
    assert agrees(fact, expected) is right


def test_a_description_without_a_fact_is_not_yet():
    with pytest.raises(NotYetError, match="the option"):
        agrees({"the name": True}, ["the option"])


def test_a_damaged_file_names_the_line(tmp_path):
    path = tmp_path / "cases.jsonl"
    good = json.dumps({"id": "a", "kind": "toy", "input": {}, "expected": {}})
    path.write_text(f"{good}\n\n{{}}\n")
    with pytest.raises(DataError, match=r"line 3 of .*cases\.jsonl is no case"):
        read_cases(path)
    with pytest.raises(DataError, match="there is no file"):
        read_cases(tmp_path / "none.jsonl")


def test_the_command_prints_a_line_a_case_and_counts(tmp_path, capsys):
    rows = [
        {"id": "loss.a", "input": {"n": 4, "c": 1, "k": [1]}, "expected": {"pass_at_k": [0.25]}},
        {"id": "loss.b", "input": {"n": 4, "c": 1, "k": 2}, "expected": {"pass_at_k": 0.9}},
        {"id": "loss.c", "input": {"n": 4, "c": 1, "k": 2}, "expected": {"luck": 1}},
    ]
    path = tmp_path / "cases.jsonl"
    lines = [json.dumps({"kind": "loss_numerics", **r}) for r in rows]
    path.write_text("\n".join([*lines, json.dumps({**rows[0], "kind": "weather", "id": "w"})]))
    assert main([str(path)]) == 1
    out = capsys.readouterr().out
    assert "passed   loss.a" in out
    assert "failed   loss.b: pass_at_k: expected 0.9, found 0.5" in out
    assert "not yet  loss.c: unknown key of expected: 'luck'" in out
    assert "not yet  w: no adapter for cases of the kind 'weather'" in out
    assert "loss_numerics      3: 1 passed, 1 failed, 1 not yet" in out
    assert main([str(path), "--kind", "weather"]) == 0
    assert main([str(path), "--only", "loss.a"]) == 0
    assert main([str(tmp_path / "none.jsonl")]) == 2


@pytest.mark.parametrize("kind", ["loss_numerics", "token_mask"])
def test_the_cases_of_a_kind_pass(kind):
    results = [check(c, adapter_of(kind)) for c in read_cases(CASES) if c.kind == kind]
    assert [(r.case.id, r.notes) for r in results if r.status is not Status.PASSED] == []
    assert "0 failed" in summary(results)


LOSS_VARIANTS = [
    # sampled differently from the file: each is worked out by hand
    ({"rewards": [2, 0], "normalise": False}, {"advantages": [1, -1]}),
    ({"rewards": [3, 0, 0], "estimator": "leave-one-out"}, {"advantages": [3, -1.5, -1.5]}),
    ({"rewards": [1, "NaN", 0], "normalise": "none"}, {"advantages": [0.5, 0, -0.5]}),
    ({"rewards": [1, 0, 0, 0]}, {"winner_positive": True, "baseline": 0.25, "finite": True}),
    ({"rewards": [0, 1, 1, 1]}, {"loser_negative": True, "kept_rows": 4, "negative_index": 0}),
    ({"outcome": [0, 1], "shaped_reward": [0.0, 0.0]}, {"keep_group": True}),
    (
        {"token_loss": [[2.0], [4.0, 6.0]], "aggregate": "sequence mean", "microbatch_size": 1},
        {"loss": 3.5, "grad": [[0.5], [0.25, 0.25]], "same_gradient_as_full_batch": True},
    ),
    (
        {"token_loss": [[2.0, 2.0], [4.0, 6.0]], "aggregate": "constant length", "max_len": 4,
         "microbatches": 2},
        {"loss": 1.75, "same_gradient_as_full_batch": True},
    ),
    (
        {"token_loss": [[2.0, 2.0], [4.0, 6.0]], "aggregate": "token mean",
         "truncated": [True, False], "drop_truncated": True},
        {"loss": 5.0},
    ),
    ({"token_loss": [[2.0, 9.0], [4.0, 6.0]], "length": [1, 2], "aggregate": "token mean"},
     {"loss": 4.0}),
    (
        {"ratio": [1.5, 0.5], "advantage": [1, 1], "eps": 0.2},
        {"clipped": [True, False], "clip_fraction": 0.5, "loss": [-1.2, -0.5]},
    ),
    (
        {"logp": [[-1.0, -2.0]], "old_logp": [[-1.5, -2.5]], "advantage": [[1.0, 1.0]],
         "ratio_level": "sequence"},
        {"loss": -1.648721, "approx_kl": 0.106531, "signalled": False},
    ),
    ({"logp": [-1.0, -1.0], "ref_logp": [-1.5, -1.0], "kl": "k2", "beta": 1.0},
     {"k1": [0.5, 0], "k2": [0.125, 0], "kl_mean": 0.0625, "loss": 0.0625}),
    ({"sequence_reward": 2.0, "mask": [1, 0, 1], "gamma": 0.5}, {"returns_on_trainable": [1, 2]}),
    ({"per_function": [1.0, None], "weights": [1.0, 0.0]}, {"logged_reward": 1.0}),
    ({"rank_rewards": [[1.0], [0.0, 0.0, 1.0]]}, {"mean": 0.5}),
    ({"n": 3, "c": 1, "k": 2, "also": {"k": 5}},
     {"pass_at_k": 0.666667, "pass_at_3": 1.0, "k_greater_than_n": "raises"}),
    ({"logits": [0.0, 2.0], "token": 1, "temperature": 2.0}, {"prob": 0.731059}),
    (
        {"probs_after_position": [[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.2, 0.2, 0.6]],
         "tokens": [0, 1, 2]},
        {"logp_of_tokens_1_and_2": [-1.386294, -0.223144]},
    ),
    ({"lengths": [6, 7, 9], "max_len": 8, "cache": 2}, {"penalty": [0, -0.5, -1]}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), LOSS_VARIANTS)
def test_a_loss_case_unlike_those_of_the_file(given, expected):
    result = check(case(given, expected, "loss_numerics"), adapter_of("loss_numerics"))
    assert (result.status, list(result.notes)) == (Status.PASSED, [])


TOKEN_VARIANTS = [
    ({"turn1_prompt": [1, 2], "turn1_completion": [7, 8], "turn2_prompt": [1, 2, 7, 8, 5],
      "turn2_completion": [3]},
     {"rows": 1, "detected": False, "silent_training": False, "trained_ids": [[7, 8, 3]],
      "training_ids": [1, 2, 7, 8, 5, 3], "loss_mask": [0, 0, 1, 1, 0, 1]}),
    ({"turn1_prompt": [1], "turn1_completion": [7], "turn2_prompt": [1, 7, 5],
      "turn2_completion": [3], "turn3_prompt": [9], "turn3_completion": [4]},
     {"rows": 2, "detected": True, "trained_ids": [[7, 3], [4]]}),
    ({"segments": [["prompt", 2], ["assistant", 1], ["user", 1], ["assistant", 3]]},
     {"loss_mask": [0, 0, 1, 0, 1, 1, 1], "trainable": 4}),
    ({"segments": [["assistant", "The answer: 9"], ["tool", "ok"]], "gold": "9"},
     {"text_scored": "The answer: 9", "reward": 1, "reward_position": "last assistant token"}),
    ({"completion": [5, 3, 6, 4, 0, 0], "eos_ids": [3, 4], "pad": 0},
     {"mask": [1, 1, 0, 0, 0, 0], "truncated": False, "length": 2}),
    ({"completion": [5, 6, 7, 8, 9], "eos": 2, "max_completion": 3},
     {"mask": [1, 1, 1, 0, 0], "truncated": True, "trainable": 3}),
    ({"sampled": [5, 6, 7], "stop_reason": "length", "library_appends": 3},
     {"ids": [5, 6, 7, 3], "loss_mask": [1, 1, 1, 0]}),
    ({"assistant_text_ids": [7], "end_of_turn": [8, 9], "next_turn_header": [3, 4]},
     {"ids": [7, 8, 9, 3, 4], "mask": [1, 1, 1, 0, 0]}),
    ({"sampled_len": 4, "reencoded_len": 3}, {"len_ids": 4, "len_logprobs": 4, "len_mask": 4}),
    ({"sampled_ids": [4, 5, 6], "decoded": "add it", "reencoded_ids": [8]},
     {"training_ids": [4, 5, 6]}),
    ({"response": [5, 6, 0, 0], "eos": 2, "pad": 0, "score": -1.0},
     {"token_rewards": [0, -1.0, 0, 0]}),
    ({"attention_mask": [1, 1, 1, 0]}, {"position_ids_on_real_tokens": [0, 1, 2]}),
    ({"lengths": [3, 7, 5], "padding": "left", "model": "any tiny model"},
     {"max_abs_logp_difference": 1e-4}),
    ({"prompts": ["A", "B", "A"], "samples_per_prompt": 3}, {"completions": 9, "groups": 3}),
    ({"prompt_len": 30, "max_prompt": 40}, {"silently_cut": False, "raises": False}),
    ({"sampled_ids": [5, 1, 1, 6], "special_ids": [1, 6]}, {"len_ids": 4, "len_mask": 4}),
    ({"old_tokens": [5, 6, 7], "old_mask": [1, 0, 1], "new_tokens": [8]},
     {"loss_mask": [1, 0, 1, 1], "ids": [5, 6, 7, 8], "rows": 1}),
    ({"prompts": 4, "rows_needing_tool_round": [1, 3]},
     {"continuation_source": {"1": 1, "3": 3}, "completions": 6}),
    ({"rows_needing_tool_round": [0, 2]}, {"continuation_source": [0, 2]}),
    ({"think_open": 8, "think_close": 9, "turn1_completion": [8, 5, 9, 8, 6],
      "stop_reason": "length", "then": "tool result"},
     {"open_block_in_next_prompt": False, "added_tokens_trained": False}),
    ({"template_has_assistant_markers": True, "train_on": "assistant only"},
     {"raises_or_derives_mask": True, "all_zero_mask_used": False}),
    ({"tokenizer": "base model without a chat template", "data": "plain strings"},
     {"raises": False}),
    ({"labels_before": [-100, 1, -100, 0, 2]}, {"labels_after": [-100, 1, -100, 0, 2],
                                              "dtype": "int", "labels_len": 5}),
    ({"tool_mask": [1, 1, 0, 1, 0]}, {"loss_mask": [1, 1, 0, 1, 0], "trainable": 3}),
]  # fmt: skip


@pytest.mark.parametrize(("given", "expected"), TOKEN_VARIANTS)
def test_a_token_case_unlike_those_of_the_file(given, expected):
    result = check(case(given, expected, "token_mask"), adapter_of("token_mask"))
    assert (result.status, list(result.notes)) == (Status.PASSED, [])


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"completion": [5, 2, 2], "eos": 2, "pad": 2}, {"mask": [1, 1, 1]}),
        ({"turn1_prompt": [1], "turn1_completion": [7], "turn2_prompt": [1]}, {"detected": False}),
        ({"response": [5, 2, 0], "eos": 2, "pad": 0, "score": 1}, {"token_rewards": [0, 0, 1]}),
        ({"sampled_ids": [5, 6], "reencoded_ids": [7], "decoded": "ab"}, {"training_ids": [7]}),
    ],
)
def test_a_token_case_that_is_wrong_fails(given, expected):
    result = check(case(given, expected, "token_mask"), adapter_of("token_mask"))
    assert result.status is Status.FAILED
