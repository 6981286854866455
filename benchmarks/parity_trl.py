"""Vectors of TRL's GRPO loss, written by TRL's own trainer on a tiny random model in float32.

Run it with the Python of an environment that holds TRL; posttrain is not imported. A real
`GRPOTrainer` is built for every setting. Its rollout function hands in stored tokens, its own code
turns stored rewards into advantages, and its own `compute_loss` and autograd give the loss, the
slope at every token log-prob and the gradient of every parameter. `tests/parity/test_trl_grpo.py`
recomputes all of them with posttrain.

    python benchmarks/parity_trl.py --out tests/vectors/trl_grpo.json
"""

from __future__ import annotations

import argparse
import base64
import json
import os
import tempfile
from dataclasses import MISSING, Field, fields
from enum import Enum
from importlib.metadata import version
from inspect import signature
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers import PreTrainedTokenizerFast as Fast
from trl import GRPOConfig, GRPOTrainer
from trl.trainer.utils import split_tensor_dict

MODEL = {
    "vocab_size": 13,
    "hidden_size": 8,
    "intermediate_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 4,
    "max_position_embeddings": 32,
    "tie_word_embeddings": False,
    "initializer_range": 0.4,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": 0,
}
GROUP, CAP = 3, 9  # completions a prompt; max_completion_length, which dr_grpo divides by
# Two prompts of unequal length and three completions each; a zero in `MASKS` is a token some tool
# wrote, which is attended to and never trained.
PROMPTS = [[4, 9, 3, 7], [8, 5]]
COMPLETIONS = [
    [6, 2, 11, 1],
    [12, 3, 3, 9, 10, 5, 1],
    [7, 4],
    [5, 10, 2, 8, 1],
    [9, 11, 6],
    [2, 12, 7, 4, 1],
]
MASKS = [[1, 1, 1, 1], [1, 1, 0, 0, 1, 1, 1], [1, 1], [1, 1, 1, 1, 1], [1, 0, 1], [1, 1, 1, 1, 1]]
REWARDS = [[1.0], [0.0], [0.25], [0.0], [1.0], [0.5]]  # a row a completion, a column a function

LOSSES: dict[str, dict[str, Any]] = {
    # name: options of GRPOConfig; `accumulate` micro-batches and `on_policy`, `sampler` are ours
    "grpo": {"loss_type": "grpo"},
    "dapo": {"loss_type": "dapo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "grpo_clip_higher": {"loss_type": "grpo", "epsilon_high": 0.28},
    "dapo_clip_higher": {"loss_type": "dapo", "epsilon_high": 0.28},
    "dr_grpo_clip_higher": {"loss_type": "dr_grpo", "epsilon_high": 0.28},
    "bnpo_clip_higher": {"loss_type": "bnpo", "epsilon_high": 0.28},
    "grpo_kl": {"loss_type": "grpo", "beta": 0.04, "use_bias_correction_kl": False},
    "dapo_kl": {"loss_type": "dapo", "beta": 0.04, "use_bias_correction_kl": False},
    "dr_grpo_kl": {"loss_type": "dr_grpo", "beta": 0.04, "use_bias_correction_kl": False},
    "bnpo_kl": {"loss_type": "bnpo", "beta": 0.04, "use_bias_correction_kl": False},
    "grpo_kl_corrected": {"loss_type": "grpo", "beta": 0.04},
    "dapo_kl_corrected": {"loss_type": "dapo", "beta": 0.04, "epsilon_high": 0.28},
    "dr_grpo_kl_corrected": {"loss_type": "dr_grpo", "beta": 0.04, "scale_rewards": "none"},
    "bnpo_kl_corrected": {"loss_type": "bnpo", "beta": 0.04, "scale_rewards": "batch"},
    "grpo_unscaled": {"loss_type": "grpo", "scale_rewards": "none"},
    "dapo_batch_scaled": {"loss_type": "dapo", "scale_rewards": "batch"},
    "dapo_on_policy": {"loss_type": "dapo", "on_policy": True},
    "dapo_temperature": {"loss_type": "dapo", "temperature": 0.7, "on_policy": True},
    "grpo_accumulated": {"loss_type": "grpo", "accumulate": 3},
    "dapo_accumulated": {"loss_type": "dapo", "accumulate": 3},
    "dr_grpo_accumulated": {"loss_type": "dr_grpo", "accumulate": 3},
    "bnpo_accumulated": {"loss_type": "bnpo", "accumulate": 3},
    "dapo_kl_accumulated": {"loss_type": "dapo", "beta": 0.04, "accumulate": 3},
    "gspo": {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.05},
    "cispo": {"loss_type": "cispo", "epsilon_high": 1.1},
    "sapo": {"loss_type": "sapo"},
    "delta": {"loss_type": "grpo", "delta": 1.3},
    "luspo": {"loss_type": "luspo", "importance_sampling_level": "sequence", "epsilon": 0.05},
    "vespo": {"loss_type": "vespo"},
    "off_policy_mask": {"loss_type": "dapo", "off_policy_mask_threshold": 0.05},
    "masked_truncated": {"loss_type": "dapo", "mask_truncated_completions": True},
    "entropy_bonus": {"loss_type": "dapo", "entropy_coef": 0.02},
    "top_entropy": {"loss_type": "dapo", "top_entropy_quantile": 0.3},
    "sequence_mask": {
        "sampler": True,
        "vllm_importance_sampling_mode": "sequence_mask",
        "vllm_importance_sampling_clip_max": 1.5,
    },
    "token_truncate": {
        "sampler": True,
        "vllm_importance_sampling_mode": "token_truncate",
        "vllm_importance_sampling_clip_max": 1.2,
    },
    "token_mask": {
        "sampler": True,
        "vllm_importance_sampling_mode": "token_mask",
        "vllm_importance_sampling_clip_min": 0.8,
        "vllm_importance_sampling_clip_max": 1.25,
    },
    "sequence_truncate": {
        "sampler": True,
        "vllm_importance_sampling_mode": "sequence_truncate",
        "vllm_importance_sampling_clip_max": 1.1,
    },
}

N = None  # a completion the function did not score
ADVANTAGES: dict[str, dict[str, Any]] = {
    "group": {"rewards": REWARDS},
    "none": {"rewards": REWARDS, "scale_rewards": "none"},
    "batch": {"rewards": REWARDS, "scale_rewards": "batch"},
    "equal_group": {"rewards": [[1.0], [1.0], [1.0], [0.0], [1.0], [0.5]]},
    "unscored": {"rewards": [[1.0], [N], [0.0], [0.0], [1.0], [0.5]]},
    "unscored_none": {"rewards": [[1.0], [N], [0.0], [N], [1.0], [0.5]], "scale_rewards": "none"},
    "unscored_batch": {"rewards": [[1.0], [N], [0.0], [N], [1.0], [0.5]], "scale_rewards": "batch"},
    "one_scored": {"rewards": [[1.0], [N], [N], [0.0], [1.0], [0.5]]},
    "weighted": {
        "rewards": [[1.0, 0.5], [0.0, -1.0], [0.0, N], [1.0, 0.0], [N, N], [0.0, 2.0]],
        "reward_weights": [0.7, 0.3],
    },
    "normalize_then_sum": {
        "rewards": [[1.0, 0.5], [0.0, -1.0], [0.0, 0.0], [1.0, 0.0], [0.0, 0.5], [0.0, 2.0]],
        "reward_weights": [0.7, 0.3],
        "multi_objective_aggregation": "normalize_then_sum",
    },
}
OURS = {"accumulate", "on_policy", "sampler", "rewards"}


def packed(tensor: torch.Tensor) -> str:
    """Base64 of the little-endian float32 values in row-major order."""
    return base64.b64encode(tensor.detach().float().contiguous().numpy().tobytes()).decode()


def ragged(table: torch.Tensor, rows: list[list[int]]) -> list[list[float]]:
    """The unpadded part of each row, as the shortest decimals that give back the same float32."""
    kept = [table[i, : len(row)].tolist() for i, row in enumerate(rows)]
    return [[float(f"{value:.9g}") for value in row] for row in kept]


def padded(rows: list[list[float]]) -> torch.Tensor:
    """Rows filled with zeros to the longest."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row) for row in rows], batch_first=True)


def write_model(folder: str) -> None:
    """The tiny model and a tokenizer of one word an id, as a folder that TRL can load."""
    torch.manual_seed(7)
    LlamaForCausalLM(LlamaConfig(**MODEL)).save_pretrained(folder)
    vocabulary = {"<pad>": 0, "<eos>": 1} | {f"w{i}": i for i in range(2, MODEL["vocab_size"])}
    words = Tokenizer(models.WordLevel(vocabulary, unk_token="<pad>"))
    Fast(tokenizer_object=words, pad_token="<pad>", eos_token="<eos>").save_pretrained(folder)


def rollout(sampled: list[list[float]]):
    """A TRL rollout function that hands in the stored completions."""

    def hand_in(prompts: list[str], _trainer: GRPOTrainer) -> dict[str, Any]:
        return {
            "prompt_ids": [PROMPTS[row // GROUP] for row in range(len(prompts))],
            "completion_ids": COMPLETIONS,
            "logprobs": sampled,
            "env_mask": MASKS,
        }

    return hand_in


def column(rewards: list[list[float | None]], index: int):
    """The reward function that returns one stored column."""

    def reward(**_: object) -> list[float | None]:
        return [row[index] for row in rewards]

    reward.__name__ = f"column_{index}"
    return reward


def build(folder: str, setting: dict[str, Any], sampled: list[list[float]]) -> GRPOTrainer:
    """A trainer as a user would build it, in float32 on the CPU."""
    accumulate = setting.get("accumulate", 1)
    rewards = setting.get("rewards", REWARDS)
    config = GRPOConfig(
        output_dir=folder,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        num_generations=GROUP,
        max_completion_length=CAP,
        per_device_train_batch_size=len(COMPLETIONS) // accumulate,
        gradient_accumulation_steps=accumulate,
        model_init_kwargs={"dtype": torch.float32},
        **{key: value for key, value in setting.items() if key not in OURS},
    )
    trainer = GRPOTrainer(
        model=folder,
        reward_funcs=[column(rewards, index) for index in range(len(rewards[0]))],
        args=config,
        train_dataset=Dataset.from_dict({"prompt": ["w4", "w8"]}),
        rollout_func=rollout(sampled),
    )
    trainer.model.train()
    trainer.current_gradient_accumulation_steps = accumulate
    if setting.get("sampler"):  # the correction without the engine
        trainer.use_vllm, trainer._last_loaded_step = True, 0
    return trainer


def scored(trainer: GRPOTrainer) -> dict[str, torch.Tensor]:
    """What TRL's own code makes of the stored completions and rewards."""
    rows = [{"prompt": prompt} for prompt in ("w4", "w8") for _ in range(GROUP)]
    return trainer._generate_and_score_completions(rows)


def watch_logprobs(trainer: GRPOTrainer) -> list[torch.Tensor]:
    """Collect the token log-probs of every later forward pass, keeping their gradients."""
    seen: list[torch.Tensor] = []
    inner = trainer._get_per_token_logps_and_entropies

    def outer(*args: Any, **kwargs: Any):
        logprobs, *rest = inner(*args, **kwargs)
        if logprobs.requires_grad:
            logprobs.retain_grad()
        seen.append(logprobs)
        return logprobs, *rest

    trainer._get_per_token_logps_and_entropies = outer
    return seen


def one_loss(folder: str, setting: dict[str, Any], stored: dict[str, Any]) -> dict[str, Any]:
    """Loss, token slopes and parameter gradients of one optimiser step under one setting."""
    trainer = build(folder, setting, stored["rollout_logprobs"])
    inputs = scored(trainer)
    if not setting.get("sampler"):  # as with TRL's own generation, which reports no log-probs
        del inputs["sampling_per_token_logps"]
    if not (setting.get("on_policy") or setting.get("sampler")):
        inputs["old_per_token_logps"] = padded(stored["old_logprobs"])
    if setting.get("beta"):
        inputs["ref_per_token_logps"] = padded(stored["ref_logprobs"])
    tokens = inputs.pop("num_items_in_batch")
    seen = watch_logprobs(trainer)
    trainer.model.zero_grad()
    losses = []
    for part in split_tensor_dict(inputs, setting.get("accumulate", 1)):
        loss = trainer.compute_loss(trainer.model, part | {"num_items_in_batch": tokens})
        loss.backward()
        losses.append(loss.item())
    slopes = torch.cat([logprobs.grad for logprobs in seen])
    gradient = {name: packed(value.grad) for name, value in trainer.model.named_parameters()}
    result = {"setting": setting, "advantages": inputs["advantages"].tolist(), "loss": sum(losses)}
    if setting.get("sampler"):
        weights = inputs["importance_sampling_ratio"].expand_as(slopes)
        result["importance_weights"] = ragged(weights, COMPLETIONS)
    return result | {"slopes": ragged(slopes, COMPLETIONS), "gradient": gradient}


def stored_batch(folder: str) -> dict[str, Any]:
    """Tokens, masks, and log-probs: the policy's own, and three sets at a seeded distance."""
    trainer = build(folder, {}, [[0.0] * len(row) for row in COMPLETIONS])
    inputs = scored(trainer)
    seen = watch_logprobs(trainer)
    trainer.compute_loss(trainer.model, inputs)
    policy = seen[0].detach()
    noise = torch.Generator().manual_seed(11)
    drawn = {"old": 0.3, "ref": 0.5, "rollout": 0.2}  # standard deviation of the distance, nats
    shifted = {
        f"{name}_logprobs": policy + spread * torch.randn(policy.shape, generator=noise)
        for name, spread in drawn.items()
    }
    tables = {"policy_logprobs": policy} | shifted
    return {
        "prompts": PROMPTS,
        "group_size": GROUP,
        "completions": COMPLETIONS,
        "masks": MASKS,
        "max_completion_length": CAP,
        "rewards": REWARDS,
    } | {name: ragged(table, COMPLETIONS) for name, table in tables.items()}


def one_advantage(folder: str, setting: dict[str, Any]) -> dict[str, Any]:
    """TRL's advantages for a table of rewards."""
    trainer = build(folder, setting, [[0.0] * len(row) for row in COMPLETIONS])
    return setting | {"advantages": scored(trainer)["advantages"].tolist()}


def default(each: Field) -> Any:
    """A field's default."""
    return each.default if each.default_factory is MISSING else each.default_factory()


def plain(value: Any) -> Any:
    """An enumeration's own text; anything else as it is."""
    return value.value if isinstance(value, Enum) else value


def vectors(folder: str) -> dict[str, Any]:
    """Everything that goes into the file but how it was made."""
    stored = stored_batch(folder)
    weights = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).named_parameters()
    return {
        "fields": {each.name: plain(default(each)) for each in fields(GRPOConfig)},
        "parameters": list(signature(GRPOTrainer.__init__).parameters)[1:],
        "model": {
            "architecture": "LlamaForCausalLM",
            "config": MODEL,
            "weights": {name: {"shape": list(w.shape), "f32": packed(w)} for name, w in weights},
        },
        "batch": stored,
        "losses": {name: one_loss(folder, each, stored) for name, each in LOSSES.items()},
        "advantages": {name: one_advantage(folder, each) for name, each in ADVANTAGES.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        write_model(folder)
        found = vectors(folder)
    made = {
        "source": "huggingface/trl, release 1.16.0 (Apache-2.0), run and not copied",
        "command": f"python benchmarks/parity_trl.py --out {args.out.as_posix()}",
        "versions": {name: version(name) for name in ("trl", "torch", "transformers")},
    }
    args.out.write_text(json.dumps(made | found) + "\n")


if __name__ == "__main__":
    main()
