"""A TRL script runs after changing its import: `GRPOTrainer` on a tiny model."""

from __future__ import annotations

import json
import math
from functools import partial

import numpy as np
import pytest
import torch
from peft import LoraConfig
from tests.unit.build import tiny_llama
from transformers import AutoModelForCausalLM, TrainerCallback

from posttrain.compat.trl import GRPOConfig, GRPOTrainer
from posttrain.errors import CheckpointError, ConfigError, DataError
from posttrain.rewards.functions import SampleFunction
from posttrain.testing.toy import byte_tokenizer
from posttrain.types.message import Task
from posttrain.types.method import Source

ROWS = [{"prompt": f"{i}+1=", "answer": str(i + 1)} for i in range(5)]


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model")
    tokenizer = byte_tokenizer()
    model = tiny_llama(vocab=len(tokenizer))
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def config(folder, **fields):
    usual = {
        "output_dir": str(folder),
        "per_device_train_batch_size": 6,
        "num_generations": 3,
        "max_completion_length": 5,
        "max_steps": 2,
        "learning_rate": 1e-2,
        "logging_steps": 1,
        "bf16": False,
        "use_cpu": True,
        "gradient_checkpointing": False,
        "disable_tqdm": True,
    }
    return GRPOConfig(**{**usual, **fields})


def reward_len(completions, **kwargs):
    return [float(len(text)) for text in completions]


def weights(path):
    return AutoModelForCausalLM.from_pretrained(path).state_dict()


def changed(before, after):
    return any(not torch.equal(before[n], after[n]) for n in before)


def test_a_script_trains_logs_and_saves(model_folder, tmp_path):
    calls = []

    def reward_answer(prompts, completions, completion_ids, answer, **kwargs):
        calls.append((prompts, completions, completion_ids, answer, sorted(kwargs)))
        return [float(text.startswith(a)) for text, a in zip(completions, answer, strict=True)]

    async def reward_async(completions, log_metric, **kwargs):
        log_metric("shortest", min(len(text) for text in completions))
        return [0.5 for _ in completions]

    trainer = GRPOTrainer(
        model=model_folder,
        args=config(tmp_path, reward_weights=[1.0, 0.5, 2.0]),
        reward_funcs=[reward_len, reward_answer, reward_async],
        train_dataset=ROWS,
    )
    output = trainer.train()
    trainer.save_model(str(tmp_path / "final"))

    assert output.global_step == 2
    assert trainer.state.global_step == 2
    assert [entry["step"] for entry in trainer.state.log_history] == [1, 2]
    logged = trainer.state.log_history[0]
    assert logged["rewards/reward_async/mean"] == 0.5
    assert math.isfinite(logged["loss"])
    assert logged["shortest"] >= 0.0
    weighted = logged["rewards/reward_len/mean"] + 0.5 * logged["rewards/reward_answer/mean"] + 1.0
    assert logged["reward"] == pytest.approx(weighted)
    assert logged["learning_rate"] == pytest.approx(1e-2)
    assert trainer.state.log_history[1]["learning_rate"] == pytest.approx(0.5e-2)
    assert changed(weights(model_folder), weights(tmp_path / "final"))

    assert len(calls) == 4  # two prompts a step, each graded once
    prompts, completions, ids, answer, others = calls[0]
    assert prompts == [prompts[0]] * 3
    assert {"prompt": prompts[0], "answer": answer[0]} in ROWS
    assert all(1 <= len(i) <= 5 for i in ids)
    assert all(isinstance(text, str) for text in completions)
    assert {"trainer_state", "log_extra", "log_metric"} <= set(others)


def test_conversations_of_a_data_set_give_assistant_messages(model_folder, tmp_path):
    datasets = pytest.importorskip("datasets")
    rows = [{"prompt": [{"role": "user", "content": f"say {c}"}]} for c in "abcd"]
    seen = []

    def reward(prompts, completions, **kwargs):
        seen.extend(zip(prompts, completions, strict=True))
        return [float(len(c[0]["content"])) for c in completions]

    GRPOTrainer(
        model=model_folder,
        args=config(tmp_path, max_steps=1),
        reward_funcs=reward,
        train_dataset=datasets.Dataset.from_list(rows),
    ).train()

    assert len(seen) == 6
    for prompt, completion in seen:
        assert {"prompt": prompt} in rows
        assert [m["role"] for m in completion] == ["assistant"]
        assert "<|im_end|>" not in completion[0]["content"]


def test_the_embedded_model_needs_no_folder(tmp_path):
    rows = [{"prompt": [{"role": "user", "content": f"{i}+2:"}]} for i in range(2)]
    trainer = GRPOTrainer(
        model="tiny", args=config(tmp_path), reward_funcs=[reward_chars], train_dataset=rows
    )
    before = {n: t.clone() for n, t in trainer.model.state_dict().items()}
    trainer.train()
    assert changed(before, trainer.model.state_dict())


def reward_chars(completions, **kwargs):
    return [float(len(c[0]["content"])) for c in completions]


class Letters(Source):
    """A posttrain source with a verifier of its own."""

    @property
    def verifiers(self):
        return {"never": SampleFunction(never)}

    def draw(self, state, n, rng):
        first = int(state["draws"]["count"][0].as_py())
        return [Task(id=str(i), prompt=f"{i} ", gold="x") for i in range(first, first + n)]


def never(answer, gold):
    return 0.0


def test_a_posttrain_source_is_a_data_set_too(model_folder, tmp_path):
    seen = []

    def reward(completions, gold, **kwargs):
        seen.extend(gold)
        return [float(len(text)) for text in completions]

    trainer = GRPOTrainer(
        model=model_folder, args=config(tmp_path), reward_funcs=reward, train_dataset=Letters()
    )
    trainer.train()
    assert seen == ["x"] * 12
    assert trainer.state.log_history[0]["rewards/never/mean"] == 0.0


def test_none_leaves_out_and_a_wrong_number_of_rewards_is_refused(model_folder, tmp_path):
    def half(completions, **kwargs):
        return [float(len(c)) if i else None for i, c in enumerate(completions)]

    trainer = GRPOTrainer(
        model=model_folder,
        args=config(tmp_path / "a", max_steps=1),
        reward_funcs=half,
        train_dataset=ROWS,
    )
    trainer.train()
    assert trainer.state.log_history[0]["episodes/unscored"] == 2.0  # one of each prompt

    short = GRPOTrainer(
        model=model_folder,
        args=config(tmp_path / "b"),
        reward_funcs=lambda completions, **kwargs: [1.0] * 2,
        train_dataset=ROWS,
    )
    with pytest.raises(DataError, match="gave 2 rewards for 3 completions"):
        short.train()


def test_a_reward_that_raises_ends_the_run(model_folder, tmp_path):
    def broken(completions, **kwargs):
        return [1 / 0]

    trainer = GRPOTrainer(
        model=model_folder, args=config(tmp_path), reward_funcs=broken, train_dataset=ROWS
    )
    with pytest.raises(DataError, match="'broken' raised ZeroDivisionError"):
        trainer.train()


class Recorder(TrainerCallback):
    """Writes down what is called, and may ask to stop."""

    def __init__(self, stop_at=None):
        self.calls = []
        self.stop_at = stop_at

    def on_train_begin(self, args, state, control, **kwargs):
        self.calls.append(("begin", state.max_steps))

    def on_step_end(self, args, state, control, **kwargs):
        self.calls.append(("step", state.global_step))
        control.should_training_stop = state.global_step == self.stop_at

    def on_log(self, args, state, control, logs=None, **kwargs):
        self.calls.append(("log", round(logs["epoch"], 3)))

    def on_save(self, args, state, control, **kwargs):
        self.calls.append(("save", state.global_step))

    def on_train_end(self, args, state, control, **kwargs):
        self.calls.append(("end", state.global_step))


def test_callbacks_are_called_in_order_and_may_stop_the_run(model_folder, tmp_path):
    recorder = Recorder(stop_at=3)
    trainer = GRPOTrainer(
        model=model_folder,
        args=config(tmp_path, max_steps=8, logging_steps=2, save_steps=2),
        reward_funcs=reward_len,
        train_dataset=ROWS,
        callbacks=[recorder],
    )
    output = trainer.train()
    assert output.global_step == 3
    # 5 prompts, 2 a step: a pass is 2 steps and leaves one prompt out.
    assert recorder.calls == [
        ("begin", 8),
        ("step", 1),
        ("step", 2),
        ("log", 1.0),
        ("save", 2),
        ("step", 3),
        ("save", 3),
        ("log", 1.5),
        ("end", 3),
    ]


def test_what_a_callback_raises_comes_out(model_folder, tmp_path):
    class Broken(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            raise KeyError("mine")

    trainer = GRPOTrainer(
        model=model_folder, args=config(tmp_path), reward_funcs=reward_len, train_dataset=ROWS
    )
    trainer.add_callback(Broken)
    with pytest.raises(KeyError, match="mine"):
        trainer.train()
    assert trainer.state.global_step == 1


def test_evaluation_while_training_and_afterwards(model_folder, tmp_path):
    trainer = GRPOTrainer(
        model=model_folder,
        args=config(tmp_path, eval_strategy="steps", eval_steps=1, num_generations_eval=2),
        reward_funcs=reward_len,
        train_dataset=ROWS,
        eval_dataset=ROWS[:3],
    )
    trainer.train()
    evaluated = [entry for entry in trainer.state.log_history if "eval_reward" in entry]
    assert [entry["step"] for entry in evaluated] == [1, 2]
    again = trainer.evaluate(metric_key_prefix="test")
    assert again["test_reward"] == pytest.approx(evaluated[-1]["eval_reward"])
    assert again["test_problems"] == 3.0


def test_an_instance_is_trained_in_place(model_folder, tmp_path):
    model = AutoModelForCausalLM.from_pretrained(model_folder)
    before = {n: t.clone() for n, t in model.state_dict().items()}
    trainer = GRPOTrainer(
        model=model,
        args=config(tmp_path),
        reward_funcs=reward_len,
        train_dataset=ROWS,
        processing_class=byte_tokenizer(),
    )
    trainer.train()
    assert trainer.model is model
    assert changed(before, model.state_dict())


def test_a_reference_updates_and_several_passes(model_folder, tmp_path):
    args = config(
        tmp_path,
        beta=0.1,
        loss_type="grpo",
        steps_per_generation=2,
        num_iterations=2,
        per_device_train_batch_size=3,
        max_steps=8,
    )
    recorder = Recorder()
    trainer = GRPOTrainer(
        model=model_folder,
        args=args,
        reward_funcs=reward_len,
        train_dataset=ROWS,
        callbacks=[recorder],
    )
    trainer.train()
    assert [n for what, n in recorder.calls if what == "step"] == list(range(1, 9))
    first, last = trainer.state.log_history[0], trainer.state.log_history[-1]
    assert (first["step"], last["step"]) == (4, 8)  # one entry a generation of 4 updates
    assert first["num_updates"] == 4.0
    assert last["kl"] > 0.0


def test_a_lora_is_trained_and_saved_alone(model_folder, tmp_path):
    trainer = GRPOTrainer(
        model=model_folder,
        args=config(tmp_path),
        reward_funcs=reward_len,
        train_dataset=ROWS,
        peft_config=LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"]),
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    saved = json.loads((tmp_path / "final" / "adapter_config.json").read_text())
    assert (saved["r"], saved["lora_alpha"]) == (2, 4)
    assert changed(weights(model_folder), trainer.model.state_dict())


class LengthUntil:
    """A reward that fails once it has been asked too often: two groups a step."""

    def __init__(self, calls):
        self.calls = calls

    def __call__(self, completions, **kwargs):
        self.calls -= 1
        if self.calls < 0:
            raise RuntimeError("killed")
        return [float(len(text)) for text in completions]


def test_a_run_goes_on_from_its_checkpoint_and_is_never_overwritten(model_folder, tmp_path):
    def trainer(folder, calls):
        return GRPOTrainer(
            model=model_folder,
            args=config(folder, max_steps=4, save_steps=2),
            reward_funcs=LengthUntil(calls),
            train_dataset=ROWS,
        )

    trainer(tmp_path / "whole", 8).train()
    with pytest.raises(DataError, match="killed"):
        trainer(tmp_path / "parts", 5).train()
    with pytest.raises(CheckpointError, match="already holds checkpoints"):
        trainer(tmp_path / "parts", 8).train()
    resumed = trainer(tmp_path / "parts", 4)
    with pytest.raises(ConfigError, match=r"is not the newest checkpoint of .*step_000002"):
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole"))
    resumed.train(resume_from_checkpoint=True)
    assert resumed.state.global_step == 4
    whole = weights(tmp_path / "whole" / "checkpoints" / "step_000004")
    parts = weights(tmp_path / "parts" / "checkpoints" / "step_000004")
    assert not changed(whole, parts)


def test_a_run_that_a_callback_ended_says_that_it_is_over(model_folder, tmp_path):
    def trainer(*callbacks):
        return GRPOTrainer(
            model=model_folder,
            args=config(tmp_path),
            reward_funcs=reward_len,
            train_dataset=ROWS,
            callbacks=callbacks,
        )

    trainer(Recorder(stop_at=1)).train()
    with pytest.raises(CheckpointError, match="ended by a callback after 1 optimiser steps"):
        trainer().train(resume_from_checkpoint=True)


def test_completions_are_printed_with_their_rewards(model_folder, tmp_path, capsys):
    def reward(completions, log_extra, **kwargs):
        log_extra("length", [len(c) for c in completions])
        return [float(len(c)) for c in completions]

    GRPOTrainer(
        model=model_folder,
        args=config(tmp_path, max_steps=1, log_completions=True, num_completions_to_print=2),
        reward_funcs=reward,
        train_dataset=ROWS,
    ).train()
    printed = capsys.readouterr().out
    for word in ("Prompt", "Completion", "reward", "length", "Advantage", "Step 1"):
        assert word in printed


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"tools": [len]}, r"GRPOTrainer\(tools=\.\.\.\) is not honoured"),
        ({"optimizers": (object(), None)}, r"GRPOTrainer\(optimizers=\.\.\.\) is not honoured"),
        ({"reward_funcs": "org/reward-model"}, "reward_funcs takes functions"),
        ({"train_dataset": [{"text": "no prompt"}]}, "row 0 of the data set has no column"),
        ({"train_dataset": ROWS[:1]}, "has 1 prompts and one generation takes 2"),
        ({"train_dataset": None}, "train_dataset must be given"),
        ({"processing_class": byte_tokenizer(name="other")}, "was loaded from 'other'"),
        ({"peft_config": LoraConfig(use_dora=True)}, "LoraConfig.use_dora=True is not honoured"),
        ({"callbacks": [], "args": GRPOConfig(reward_weights=[1.0, 2.0])}, "has 2 numbers for 1"),
    ],
)
def test_an_argument_that_is_not_honoured_is_refused(model_folder, given, words):
    usual = {
        "model": model_folder,
        "reward_funcs": reward_len,
        "train_dataset": ROWS,
        "args": GRPOConfig(per_device_train_batch_size=16, use_cpu=True),
    }
    with pytest.raises((ConfigError, DataError), match=words):
        GRPOTrainer(**{**usual, **given})


def test_a_partial_and_two_functions_of_one_name_keep_apart(model_folder, tmp_path):
    trainer = GRPOTrainer(
        model=model_folder,
        args=config(tmp_path, max_steps=1),
        reward_funcs=[partial(constant, value=1.0), partial(constant, value=3.0)],
        train_dataset=ROWS,
    )
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["rewards/constant/mean"] == 1.0
    assert logged["rewards/constant#2/mean"] == 3.0
    assert logged["reward"] == 4.0


def constant(completions, value, **kwargs):
    return np.full(len(completions), value)
