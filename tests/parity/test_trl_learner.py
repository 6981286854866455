"""The whole path from stored groups to parameter gradients against TRL 1.16.0.

Credit, terms and learner are those that ``compat.trl`` composes; batch, weights and gradients are
the vectors of ``benchmarks/parity_trl.py``.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.compat.trl.config import GRPOConfig
from posttrain.compat.trl.method import grpo_method
from posttrain.trainers.batch import build_rows, collate, count, split
from posttrain.trainers.learner import LocalLearner
from posttrain.trainers.stages import credit_stage
from posttrain.types.episode import (
    Column,
    Episode,
    Group,
    RewardRow,
    Scope,
    Segment,
    Span,
    Stop,
    Verdict,
)
from posttrain.types.message import Task
from posttrain.types.models import AdamW, Trained

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "trl_grpo.json").read_text())
BATCH = VECTORS["batch"]
SIZE = BATCH["group_size"]
NOT_COMPOSED = {"cispo", "sapo", "vespo", "off_policy_mask", "top_entropy"}
NOT_COMPOSED |= {"bnpo_accumulated"}  # refused: its gradient depends on the micro-batches
CASES = [
    name
    for name, case in VECTORS["losses"].items()
    if name not in NOT_COMPOSED and "sampler" not in case["setting"]
]
OURS = {"accumulate", "on_policy"}


def unpacked(text: str) -> np.ndarray:
    return np.frombuffer(base64.b64decode(text), "<f4")


def tiny_model() -> LlamaForCausalLM:
    """The stored model, in float32."""
    model = LlamaForCausalLM(LlamaConfig(**VECTORS["model"]["config"]))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            stored = VECTORS["model"]["weights"][name]
            parameter.copy_(torch.from_numpy(unpacked(stored["f32"]).copy()).view(stored["shape"]))
    return model


def learner() -> LocalLearner:
    """The learner with that model, computing in float32."""
    made = LocalLearner()
    spec = Trained(path="stored", compute="float32", optimiser=AdamW(max_grad_norm=0.0))
    made.add("policy", spec, tiny_model())
    return made


def config(setting: dict[str, Any]) -> GRPOConfig:
    """The options as a user gives them."""
    accumulate = setting.get("accumulate", 1)
    return GRPOConfig(
        num_generations=SIZE,
        per_device_train_batch_size=len(BATCH["completions"]) // accumulate,
        gradient_accumulation_steps=accumulate,
        max_completion_length=BATCH["max_completion_length"],
        **{key: value for key, value in setting.items() if key not in OURS},
    )


def segment(ids: list[int], **more: Any) -> Segment:
    """A block that nobody trains unless told so."""
    nothing = np.full(len(ids), np.nan, np.float32)
    made: dict[str, Any] = {
        "ids": np.array(ids, np.int32),
        "action_mask": np.zeros(len(ids), bool),
        "rollout_logprobs": nothing,
        "version": np.full(len(ids), -1, np.int32),
    }
    return Segment(**(made | more))


def sampled(row: int, prompt: Span, *, temperature: float) -> Segment:
    """One stored completion: tool tokens are not the policy's, and hold NaN everywhere."""
    mask = np.array(BATCH["masks"][row], bool)
    columns = {
        name: Column(np.where(mask, np.array(BATCH[name][row], np.float32), np.nan))
        for name in ("old_logprobs", "ref_logprobs")
    }
    drawn = np.where(mask, np.array(BATCH["rollout_logprobs"][row], np.float32), np.nan)
    return segment(
        BATCH["completions"][row],
        action_mask=mask,
        rollout_logprobs=drawn.astype(np.float32),
        context=(prompt,),
        seat="policy",
        trains=True,
        temperature=temperature,
        columns=columns,
    )


def groups(temperature: float) -> list[Group]:
    """The stored batch: a prompt and its completions a group, rewarded."""
    made = []
    for number, prompt in enumerate(BATCH["prompts"]):
        rows = range(number * SIZE, number * SIZE + SIZE)
        before = Span(0, len(prompt))
        answers = [sampled(row, before, temperature=temperature) for row in rows]
        ended = [BATCH["completions"][row][-1] == 1 for row in rows]
        made.append(
            Group(
                key=(0, 0, number),
                task=Task(id=str(number), prompt="stored"),
                segments=(segment(prompt), *answers),
                episodes=tuple(
                    Episode(
                        episode_id=f"{number}-{member}",
                        segments=(0, member + 1),
                        stop=Stop.COMPLETED if whole else Stop.MAX_TOKENS,
                    )
                    for member, whole in enumerate(ended)
                ),
                rewards=tuple(
                    reward(member, "column_0", BATCH["rewards"][row][0])
                    for member, row in enumerate(rows)
                ),
            )
        )
    return made


def reward(episode: int, name: str, value: float | None, weight: float = 1.0) -> RewardRow:
    verdict = Verdict.GRADED if value is not None else Verdict.NOT_APPLICABLE
    return RewardRow(Scope.EPISODE, episode, name, value, weight=weight, verdict=verdict)


def step(setting: dict[str, Any], *, max_tokens: int) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of one optimiser step, cut into micro-batches of `max_tokens`."""
    method = grpo_method(config(setting))
    found = groups(setting.get("temperature", 1.0))
    if setting.get("on_policy"):  # the columns the update's own first pass serves
        for group in found:
            for each in group.segments:
                each.columns.pop("old_logprobs", None)
    found = credit_stage(found, method.credit, {})
    terms = method.terms["policy"]
    rows = [r for r in build_rows(found, terms, model="policy") if r.num_trained]
    made, counts, loss = learner(), [count(rows)] * len(terms), 0.0
    current = frozenset({"old_logprobs"}) if setting.get("on_policy") else frozenset()
    for part in split(rows, max_tokens=max_tokens, reach="token"):
        batch = collate(part, all_rows=rows)
        none = [None] * len(terms)
        loss += made.forward_backward("policy", batch, terms, counts, none, current=current).loss
    return loss, made.models["policy"].gradients[""]


@pytest.mark.parametrize("max_tokens", [16, 1000])
@pytest.mark.parametrize("name", CASES)
def test_loss_and_parameter_gradients_are_those_of_trl(name: str, max_tokens: int):
    case = VECTORS["losses"][name]
    loss, gradients = step(case["setting"], max_tokens=max_tokens)
    # The loss is a difference of token losses near 1, so float32 leaves it about 1e-7 of noise.
    assert loss == pytest.approx(case["loss"], rel=1e-5, abs=1e-7)

    assert gradients.keys() == case["gradient"].keys()
    found = np.concatenate([gradients[n].reshape(-1).numpy() for n in gradients])
    expected = np.concatenate([unpacked(case["gradient"][n]) for n in gradients])
    assert np.linalg.norm(found - expected) < 1e-5 * np.linalg.norm(expected)


@pytest.mark.parametrize("name", list(VECTORS["advantages"]))
def test_advantages_from_reward_rows_are_those_of_trl(name: str):
    case = VECTORS["advantages"][name]
    weights = case.get("reward_weights", [1.0] * len(case["rewards"][0]))
    options = {k: v for k, v in case.items() if k not in ("rewards", "advantages")}
    method = grpo_method(config({"loss_type": "grpo", **options}))
    rewarded = []
    for number, group in enumerate(groups(1.0)):
        mine = case["rewards"][number * SIZE : number * SIZE + SIZE]
        rows = tuple(
            reward(member, f"column_{k}", value, weights[k])
            for member, values in enumerate(mine)
            for k, value in enumerate(values)
        )
        rewarded.append(Group(**{**fields_of(group), "rewards": rows}))

    found = credit_stage(rewarded, method.credit, {})

    first_tokens = [
        float(group.segments[member + 1].columns["advantages"].values[0])
        for group in found
        for member in range(SIZE)
    ]
    np.testing.assert_allclose(first_tokens, case["advantages"], rtol=1e-5, atol=1e-6)


def fields_of(group: Group) -> dict[str, Any]:
    return {name: getattr(group, name) for name in Group.__dataclass_fields__}
