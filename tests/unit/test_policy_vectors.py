"""Stored vectors of the policy objectives, worked in double precision from the published formulas.

Every line of tests/vectors/policy.jsonl is either run here or named in NOT_COVERED with the part
that is missing; a new line that is neither, or a covered one still listed, fails.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from posttrain.objectives import (
    advantages,
    batch_advantages,
    corrections,
    kl,
    ratios,
    returns,
    surrogates,
)
from posttrain.objectives import values as value_losses
from posttrain.objectives import weights as aggregation
from posttrain.objectives.groups import group_mean
from posttrain.objectives.lengths import soft_overlong
from posttrain.objectives.masking import spread_over_tokens

VECTORS = {
    vector["id"]: vector
    for vector in map(
        json.loads,
        (Path(__file__).parent.parent / "vectors" / "policy.jsonl").read_text().splitlines(),
    )
}

NOT_COVERED = {
    "clipped importance weight (CISPO)": {
        "loss.cispo.upper1.28",
        "loss.cispo.both",
        "loss.cispo.cap5",
    },
    "soft gate (SAPO)": {"loss.sapo"},
    "divergence mask (DPPO)": {"loss.dppo_tv_0.15", "loss.dppo_tv_0.1"},
    "squared losses (DRO, Kimi)": {"loss.dro_0.1", "loss.kimi.mean", "loss.kimi.logmeanexp"},
    "log-space clip with geometric mean (GMPO)": {"loss.gmpo_0.4", "loss.gmpo_0.2"},
    "tapered weights (TOPR)": {"loss.topr"},
    "second-moment mask (M2PO)": {
        "beh.m2po.paper",
        "beh.m2po.all_tokens",
        "beh.m2po.official_bound",
    },
    "staleness accounting": {"beh.staleness", "beh.admission"},
    "controllers": {"kl.adaptive_coef", "ent.adaptive"},
    "entropy shaping and selection": {"ent.cov", "ent.shape", "ent.gtpo"},
    "length rewards": {
        "rew.kimi_len",
        "rew.kimi_len_equal",
        "rew.l1",
        "rew.alp",
        "rew.lead",
        "rew.cosine",
    },
    "sample selection": {
        "sel.gfpo",
        "sel.gfpo_eff",
        "sel.reinforce_ada",
        "sel.priority",
        "sel.zero_adv_prob",
    },
    "trees": {"tree.vine", "tree.treepo"},
    "preference losses": {"pref.pair"},
}
PARTLY = {  # expected entries whose part is missing, or left out on purpose
    "beh.weights": {"clamp_05_5"},  # a floor would raise tokens the sampler liked too much
    "beh.k1_bounds_asymmetric": {"keep_mirrored"},  # the known wrong form
    "adv.opmd": {"coef"},  # squared and mirror-descent losses
    "distill.minillm": {"length_norm"},  # reward-to-go over the remaining length
}


def double(nested: Any) -> Tensor:
    return torch.tensor(nested, dtype=torch.float64)


def fixture() -> dict[str, Tensor]:
    given = VECTORS["fixture.F"]["input"]
    tensors = {name: double(rows) for name, rows in given.items()}
    mask = tensors.pop("mask") > 0
    for name in ("lp", "lo", "lb", "lr"):  # what stands behind the mask must not matter
        tensors[name] = torch.where(mask, tensors[name], torch.nan)
    tensors["A"] = torch.where(mask, tensors["A"].unsqueeze(-1), torch.nan)
    return tensors | {"mask": mask}


def ids_like(rewards: Tensor) -> Tensor:
    return torch.zeros(len(rewards), dtype=torch.long)


def run_ratio(given: dict[str, Any]) -> Tensor:
    f = fixture()
    pair = f[given.get("num", "lp")], f[given.get("den", "lo")], f["mask"]
    levels = {
        "token": ratios.token_log_ratio,
        "seq_geo": ratios.sequence_mean_log_ratio,
        "seq_prod": ratios.sequence_log_ratio,
        "prefix": ratios.prefix_log_ratio,
        "prefix_min": ratios.prefix_min_log_ratio,
        "grp_expect": lambda p, o, m: ratios.group_expectation_log_ratio(p, o, m, ids_like(p)),
    }
    ratio = ratios.bounded_exp(levels[given["level"]](*pair))
    return ratio * f["mask"] if ratio.ndim == 2 else ratio


def run_advantage(given: dict[str, Any]) -> Any:
    if "kl_k1" in given:
        kl_k1 = double([given["kl_k1"]])
        mask = torch.ones_like(kl_k1, dtype=torch.bool)
        at_end = returns.place_on_last(double([given["R"]]), mask)
        shaped = returns.penalise_tokens(at_end, kl_k1, mask, coefficient=given["beta"])
        return returns.reward_to_go(shaped, mask, gamma=given["gamma"])[0]
    if "steps" in given:
        return run_process(given)
    if "rho" in given:
        return advantages.difficulty_weighted(double([1.0] * 5), double(given["rho"]))
    groups = given.get("groups", [given.get("rewards")])
    rewards = double([reward for group in groups for reward in group])
    ids = torch.tensor([i for i, group in enumerate(groups) for _ in group])
    if "tau" in given:
        soft = advantages.log_mean_exp_baseline(rewards, ids, tau=given["tau"])
        return {"b_mean": group_mean(rewards, ids)[0], "b_logmeanexp": soft[0]}
    ddof = {key: given[key] for key in ("ddof", "eps") if key in given}
    lengths = torch.tensor(given.get("lengths", [1] * len(rewards)))
    mask = torch.arange(4) < lengths.unsqueeze(-1)
    estimators = {
        "grp_z": lambda: advantages.standardise_by_group(rewards, ids, **ddof),
        "grp_mean": lambda: advantages.center_by_group(rewards, ids),
        "loo": lambda: advantages.leave_one_out(rewards, ids),
        "lenw": lambda: advantages.center_by_length(rewards, ids, lengths),
        "topk": lambda: advantages.best_minus_second(rewards, ids),
        "grp_mean/mean": lambda: advantages.center_over_mean(rewards, ids),
        "grp_mean+mbz": lambda: batch_advantages.center_then_standardise(rewards, ids, **ddof),
        "grp_mean+bstd": lambda: batch_advantages.center_over_batch_std(rewards, ids, **ddof),
        "grp_mean+whiten": lambda: batch_advantages.whiten_tokens(
            spread_over_tokens(advantages.center_by_group(rewards, ids), mask),
            mask,
            ddof=given["ddof"],
            eps=given["eps_var"],
        )[:, 0],
    }
    return estimators[given["estimator"]]()


def run_process(given: dict[str, Any]) -> list[Tensor]:
    steps = [(row, end, r) for row, s in enumerate(given["steps"]) for end, r in s]
    rows, ends, rewards = zip(*steps, strict=True)
    per_token = batch_advantages.process_advantages(
        double(rewards),
        torch.tensor(rows),
        torch.tensor(ends) - 1,
        torch.zeros(2, dtype=torch.long),
        num_positions=4,
        ddof=given["ddof"],
        eps=given["eps"],
    )
    return [per_token[0], per_token[1, :3]]


def run_gae(given: dict[str, Any]) -> Any:
    if "lengths" in given:
        return returns.length_adaptive_lambda(torch.tensor(given["lengths"]), alpha=given["alpha"])
    rewards, values = double([given["rewards"]]), double([given["values"]])
    mask = torch.tensor([given.get("mask", [1] * len(given["rewards"]))]) > 0
    how = {"gamma": given["gamma"], "lam": given["lam"]}
    adv = returns.gae_advantages(rewards, values, mask, **how)
    if "mask" in given:
        return {"adv_at_mask": adv[mask]}
    return {"adv": adv[0], "ret": returns.gae_returns(rewards, values, mask, **how)[0]}


def run_value_loss(given: dict[str, Any]) -> Tensor:
    v, old, ret = (double([[given[name]]]) for name in ("v", "v_old", "ret"))
    seen = torch.ones(1, 1, dtype=torch.bool)
    return value_losses.clipped_value_loss(v, old, ret, seen, clip=given["clip"])[0, 0]


def run_policy_loss(given: dict[str, Any]) -> Any:
    f = fixture()
    lp, mask = f["lp"].clone().requires_grad_(), f["mask"]
    ratio = ratios.bounded_exp(ratios.token_log_ratio(lp, f["lo"], mask))
    if given.get("loss") == "reinforce":
        loss = surrogates.policy_gradient(lp, f["A"], mask)
    elif "dual_c" in given:
        loss = surrogates.dual_clipped_surrogate(
            ratio, f["A"], mask, clip_low=0.2, clip_high=0.2, ceiling=given["dual_c"]
        )
    else:
        loss = surrogates.clipped_surrogate(
            ratio, f["A"], mask, clip_low=given["lo"], clip_high=given["hi"]
        )
    mean = aggregation.token_mean(mask)
    if "weight" in given:
        rho = ratios.bounded_exp(ratios.behaviour_log_ratio(f["lo"], f["lb"], mask))
        return {
            "token_loss": loss * rho,
            "tokmean": aggregation.weighted_sum(loss * rho, mean),
            "tokmean_cap1_5": aggregation.weighted_sum(loss * rho.clamp(max=1.5), mean),
        }
    modes = {
        "tokmean": mean,
        "seqmean_tokmean": aggregation.sequence_mean(mask),
        "seqmean_toksum": aggregation.sequence_sum(mask),
        "toksum": aggregation.token_sum(mask),
        "const_4": aggregation.constant_length(mask, length=4),
    }
    totals = {name: aggregation.weighted_sum(loss, w) for name, w in modes.items()}
    (slope,) = torch.autograd.grad(loss.sum(), lp)
    return {"token_loss": loss, "dloss_dlp_token": slope, "agg": totals}


def run_sequence_clip(given: dict[str, Any]) -> Any:
    f = fixture()
    mask = f["mask"]
    row = ratios.bounded_exp(ratios.sequence_mean_log_ratio(f["lp"], f["lo"], mask))
    loss = surrogates.clipped_surrogate(
        spread_over_tokens(row, mask), f["A"], mask, clip_low=given["lo"], clip_high=given["hi"]
    )
    mean = aggregation.weighted_sum(loss, aggregation.sequence_mean(mask))
    return {"seq_loss": loss[:, 0], "mean": mean}


def run_two_sided(given: dict[str, Any]) -> Any:
    seen = torch.ones(1, 1, dtype=torch.bool)
    pair = double([[given["r"]]]), double([[given["A"]]]), seen
    clip = {"clip_low": given["eps"], "clip_high": given["eps"]}
    capped = surrogates.capped_clipped_surrogate(*pair, **clip, cap=float(given["delta"]))
    return {
        "ppo": surrogates.clipped_surrogate(*pair, **clip)[0, 0],
        "dual_c3": surrogates.dual_clipped_surrogate(*pair, **clip, ceiling=3.0)[0, 0],
        "delta4": capped[0, 0],
    }


def run_kl(given: dict[str, Any]) -> Any:
    if "p" in given:
        return run_bernoulli(given)
    policy = double([given["d"]]).requires_grad_()
    reference = torch.zeros_like(policy)
    mask = torch.ones_like(policy, dtype=torch.bool)
    k2, k3 = kl.kl_k2(policy, reference, mask), kl.kl_k3(policy, reference, mask)
    return {
        "k1": kl.kl_k1(policy, reference, mask)[0],
        "k2": k2[0],
        "k3": k3[0],
        "grad_k2": torch.autograd.grad(k2.sum(), policy)[0][0],
        "grad_k3": torch.autograd.grad(k3.sum(), policy)[0][0],
    }


def run_bernoulli(given: dict[str, Any]) -> Any:
    """Exact expectations over two actions; the action probabilities stand outside the gradient."""
    z = double(given["p"]).logit().requires_grad_()
    policy = torch.stack([torch.nn.functional.logsigmoid(z), torch.nn.functional.logsigmoid(-z)])
    reference = double([given["q"], 1.0 - given["q"]]).log()
    args = policy.unsqueeze(0), reference.unsqueeze(0), torch.ones(1, 2, dtype=torch.bool)
    drawn = policy.detach().exp()

    def slope(token_loss: Tensor) -> Tensor:
        return torch.autograd.grad((drawn * token_loss[0]).sum(), z, retain_graph=True)[0]

    exact = kl.kl_from_logits(policy, reference)
    return {
        "kl": exact,
        "grad_true": torch.autograd.grad(exact, z, retain_graph=True)[0],
        "k1_loss": slope(kl.kl_k1(*args)),
        "k2_loss": slope(kl.kl_k2(*args)),
        "k3_loss": slope(kl.kl_k3(*args)),
        "r_k3_loss": slope(kl.kl_k3_weighted((policy - policy.detach()).exp().unsqueeze(0), *args)),
    }


def run_soft_overlong(given: dict[str, Any]) -> Tensor:
    return soft_overlong(
        torch.tensor(given["L"]), max_tokens=given["Lmax"], cache_tokens=given["Lcache"]
    )


def run_replay(given: dict[str, Any]) -> Tensor:
    rewards = double(given["fresh"] + given["replay"])
    return advantages.standardise_by_group(
        rewards, ids_like(rewards), ddof=given["ddof"], eps=given["eps"]
    )


def run_distill(given: dict[str, Any]) -> Any:
    if "teacher" in given:
        teacher, student = double(given["teacher"]).log(), double(given["student"]).log()
        middle = [kl.generalised_jsd(teacher, student, beta=b) for b in given["beta"][1:-1]]
        forward, reverse = (
            kl.kl_from_logits(teacher, student),
            kl.kl_from_logits(student, teacher),
        )
        return {"loss": torch.stack([forward, *middle, reverse])}
    mask = torch.ones(1, 3, dtype=torch.bool)
    if "lb" in given:
        return -given["coef"] * kl.kl_k1(double([given["lb"]]), double([given["lt"]]), mask)[0]
    gap = double([given["log_pT_over_pS"]])
    return {"rtg": returns.reward_to_go(gap, mask, gamma=1.0)[0]}


def run_behaviour(given: dict[str, Any]) -> Any:
    rho = double([given["rho"]])
    mask = torch.ones_like(rho, dtype=torch.bool)
    if "bounds" in given:
        low, high = given["bounds"]
        return {"keep_correct": ~corrections.outside(rho, mask, low=low, high=high)[0]}
    return {
        "tis_2": corrections.truncated_weight(rho, mask, cap=2.0)[0],
        "icepop_05_5": corrections.masked_weight(rho, mask, low=0.5, high=5.0)[0],
        "mis_2": corrections.masked_weight(rho, mask, low=0.0, high=2.0)[0],
    }


BY_ID = {
    "loss.gspo_0.0003_0.0004": run_sequence_clip,
    "loss.gspo_0.2_0.2": run_sequence_clip,
    "loss.two_sided": run_two_sided,
    "rew.soft_overlong": run_soft_overlong,
    "sel.rlep": run_replay,
}
BY_KIND = {
    "ratio": run_ratio,
    "advantage": run_advantage,
    "gae": run_gae,
    "value_loss": run_value_loss,
    "policy_loss": run_policy_loss,
    "behaviour": run_behaviour,
    "kl": run_kl,
    "distill": run_distill,
}
MISSING = set().union(*NOT_COVERED.values())
COVERED = sorted(set(VECTORS) - MISSING - {"fixture.F"})


def compare(actual: Any, expected: Any, tol: float, missing: set[str] = frozenset()) -> None:
    if isinstance(expected, dict):
        assert set(actual) == set(expected) - missing
        for key in actual:
            compare(actual[key], expected[key], tol)
    elif isinstance(actual, list):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected, strict=True):
            compare(one, other, tol)
    else:
        torch.testing.assert_close(actual.detach().double(), double(expected), rtol=0, atol=tol)


@pytest.mark.parametrize("name", COVERED)
def test_stored_vector(name: str):
    vector = VECTORS[name]
    runner = BY_ID.get(name) or BY_KIND[vector["kind"]]
    compare(
        runner(vector["input"]), vector["expected"], vector["tol"], PARTLY.get(name, frozenset())
    )


def test_every_vector_is_run_or_named_as_missing():
    assert len(VECTORS) == 96
    assert set(VECTORS) >= MISSING
    can_run = {n for n, v in VECTORS.items() if n in BY_ID or v["kind"] in BY_KIND}
    assert set(COVERED) <= can_run
    assert len(COVERED) + len(MISSING) + 1 == len(VECTORS)
    assert len(MISSING) == sum(map(len, NOT_COVERED.values()))
