"""The maths of `objectives` against values that TRL 1.16.0 wrote (`benchmarks/parity_trl.py`).

`tests/vectors/trl_grpo.json` holds a batch, its log-probs under a tiny model, and for each setting
of TRL's trainer the loss and its slope at every token log-prob.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.objectives import advantages, batch_advantages, kl, ratios, surrogates, weights

VECTORS = json.loads((Path(__file__).parents[1] / "vectors" / "trl_grpo.json").read_text())
BATCH = VECTORS["batch"]
GROUP = BATCH["group_size"]
FROM_LOGPROBS = [
    name
    for name, case in VECTORS["losses"].items()
    if case["setting"].get("loss_type") in ("grpo", "dapo", "dr_grpo", "bnpo", "luspo")
    and not {"temperature", "entropy_coef", "top_entropy_quantile", "off_policy_mask_threshold"}
    & case["setting"].keys()
]


def table(rows: list[list[float]], fill: float = 0.0) -> Tensor:
    """Ragged rows as one tensor; the padding holds `fill`."""
    tensors = [torch.tensor(row) for row in rows]
    return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=fill)


def relative(found: Tensor, expected: Tensor) -> float:
    """Norm of the difference over the norm of what is expected."""
    return ((found - expected).norm() / expected.norm()).item()


def step_mask(setting: dict[str, Any]) -> Tensor:
    """Trained tokens: those the policy wrote, whole rows left out where TRL leaves them out."""
    mask = table(BATCH["masks"]).bool()
    if setting.get("mask_truncated_completions"):
        ended = torch.tensor([row[-1] == 1 for row in BATCH["completions"]])
        mask = mask & ended.unsqueeze(-1)
    return mask


def step_weights(setting: dict[str, Any], mask: Tensor) -> Tensor:
    """What TRL's `loss_type` averages, as a weight a token."""
    kind = setting["loss_type"]
    if kind == "grpo":
        return weights.sequence_mean(mask)
    if kind == "dr_grpo":
        return weights.constant_length(mask, length=BATCH["max_completion_length"])
    if kind == "luspo":
        return weights.sequence_sum(mask)
    parts = setting.get("accumulate", 1) if kind == "bnpo" else 1  # TRL counts bnpo a micro-batch
    return torch.cat([weights.token_mean(part) / parts for part in mask.chunk(parts)])


def token_losses(
    setting: dict[str, Any], policy: Tensor, advantage: Tensor, mask: Tensor
) -> Tensor:
    """Loss of each token before it is averaged."""
    old = policy.detach() if setting.get("on_policy") else table(BATCH["old_logprobs"], torch.nan)
    log_ratio = ratios.token_log_ratio(policy, old, mask)
    ratio = log_ratio.exp()
    if setting.get("importance_sampling_level") == "sequence":
        log_ratio = ratios.sequence_mean_log_ratio(policy, old, mask).unsqueeze(-1)
    low = setting.get("epsilon", 0.2)
    bounds = {"clip_low": low, "clip_high": setting.get("epsilon_high", low)}
    step_ratio = log_ratio.exp().expand_as(policy)
    if "delta" in setting:
        loss = surrogates.capped_clipped_surrogate(
            step_ratio, advantage, mask, **bounds, cap=setting["delta"]
        )
    else:
        loss = surrogates.clipped_surrogate(step_ratio, advantage, mask, **bounds)
    if beta := setting.get("beta"):
        reference = table(BATCH["ref_logprobs"], torch.nan)
        if setting.get("use_bias_correction_kl", True):
            loss = loss + beta * kl.kl_k3_weighted(ratio, policy, reference, mask)
        else:
            loss = loss + beta * kl.kl_k3(policy, reference, mask)
    return loss


@pytest.mark.parametrize("name", FROM_LOGPROBS)
def test_loss_and_token_slopes_are_those_of_trl(name: str):
    case = VECTORS["losses"][name]
    setting, mask = case["setting"], step_mask(case["setting"])
    policy = table(BATCH["policy_logprobs"], torch.nan).requires_grad_()
    advantage = torch.tensor(case["advantages"]).unsqueeze(-1).expand_as(policy)

    losses = token_losses(setting, policy, advantage, mask)
    loss = weights.weighted_sum(losses, step_weights(setting, mask))
    loss.backward()

    assert loss.item() == pytest.approx(case["loss"], rel=1e-5)
    assert relative(policy.grad, table(case["slopes"])) < 1e-5


def rewards_by_function(case: dict[str, Any]) -> Tensor:
    """[B, K] rewards, NaN where a function gave none."""
    rows = [[torch.nan if r is None else r for r in row] for row in case["rewards"]]
    return torch.tensor(rows)


def summed_like_trl(rewards: Tensor, factors: Tensor) -> Tensor:
    """Weighted sum that takes a missing reward for 0, and no reward at all for unscored."""
    total = (rewards * factors).nansum(dim=-1)
    return total.masked_fill(rewards.isnan().all(dim=-1), torch.nan)


@pytest.mark.parametrize("name", list(VECTORS["advantages"]))
def test_advantages_are_those_of_trl(name: str):
    case = VECTORS["advantages"][name]
    rewards = rewards_by_function(case)
    factors = torch.tensor(case.get("reward_weights", [1.0] * rewards.shape[1]))
    group_ids = torch.arange(len(rewards)) // GROUP
    if case.get("multi_objective_aggregation") == "normalize_then_sum":
        columns = rewards.unbind(dim=-1)
        each = [advantages.standardise_by_group(c, group_ids, eps=1e-4) for c in columns]
        total = summed_like_trl(torch.stack(each, dim=-1), factors)
        found = batch_advantages.standardise_by_batch(total, eps=1e-4)
    else:
        total = summed_like_trl(rewards, factors)
        scale = case.get("scale_rewards", "group")
        if scale == "group":
            found = advantages.standardise_by_group(total, group_ids, eps=1e-4)
        elif scale == "batch":
            found = batch_advantages.center_over_batch_std(total, group_ids, eps=1e-4)
        else:
            found = advantages.center_by_group(total, group_ids)
    torch.testing.assert_close(found, torch.tensor(case["advantages"]), rtol=1e-5, atol=1e-6)
