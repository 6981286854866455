"""Loss cases on rewards, advantages and returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from posttrain.objectives.advantages import (
    center_by_group,
    leave_one_out,
    leave_one_out_standardised,
    standardise_by_group,
)
from posttrain.objectives.groups import group_mean, outcomes_differ
from posttrain.objectives.masking import spread_over_tokens
from posttrain.objectives.returns import gae_advantages, gae_returns, place_on_last, reward_to_go
from posttrain.parts.keeps import RewardsDiffer
from posttrain.testing.case_file import AtMost, Facts, Given, Near, NotYetError
from posttrain.types.episode import Episode, Group, RewardRow, Scope
from posttrain.types.message import Task
from posttrain.types.term import Tally

Estimate = Callable[[Float[Tensor, " B"], Int[Tensor, " B"], int], Float[Tensor, " B"]]
"""Rewards, group ids and the std's ddof to advantages."""

ESTIMATORS: Mapping[tuple[str, bool], Estimate] = {
    ("group mean", False): lambda r, g, _: center_by_group(r, g),
    ("group mean", True): lambda r, g, ddof: standardise_by_group(r, g, ddof=ddof),
    ("leave-one-out", False): lambda r, g, _: leave_one_out(r, g),
    ("leave-one-out", True): lambda r, g, ddof: leave_one_out_standardised(r, g, ddof=ddof),
}
"""By baseline, and whether it is divided by the group's standard deviation."""

NAMES = {
    "group mean": "group mean", "group_mean": "group mean", "mean": "group mean",
    "grpo": "group mean", "leave-one-out": "leave-one-out", "leave_one_out": "leave-one-out",
    "rloo": "leave-one-out",
}  # fmt: skip
NORMALISED = {True: True, False: False, None: False, "none": False, "group std": True,
              "std": True, "per agent": True}  # fmt: skip


def number(value: Any) -> float:
    """A number of a case; null and "NaN" are not a number."""
    return float("nan") if value in (None, "NaN") else float(value)


def advantages(given: Given, expected: Given) -> Facts:
    """Advantages of a list of rewards, or of one list an agent."""
    if isinstance(given["rewards"], Mapping):
        return _by_agent(given)
    dtype = getattr(torch, given.get("dtype", "float64"))
    rewards = torch.tensor([number(r) for r in given["rewards"]], dtype=dtype)
    ids = given.get("group_ids", [0] * len(rewards))
    order = {name: place for place, name in enumerate(dict.fromkeys(ids))}
    groups = torch.tensor([order[i] for i in ids])
    estimate = _estimator(given)
    sample, population = (estimate(rewards, groups, ddof).double() for ddof in (1, 0))
    facts = {
        **_signs(rewards, groups, sample),
        "advantages": _exact_zeros(sample),
        "correct": _only(sample[rewards == 1]),
        "wrong": _only(sample[rewards == 0]),
        "sample_std": Near(_as_asked(sample, rewards, expected.get("sample_std")), 1e-3),
        "population_std": Near(
            _as_asked(population, rewards, expected.get("population_std")), 1e-3
        ),
        "baseline": _only(group_mean(rewards, groups).double()),
        "finite": bool(torch.isfinite(sample).all()),
        "max_abs_at_most": AtMost(float(sample.abs().max())),
        "kept_rows": int(outcomes_differ(rewards, groups).sum()),
        "property": lambda: _one_by_one(rewards, groups, estimate, expected["property"]),
    }
    for name, place in order.items():
        facts[f"group_{name}"] = _exact_zeros(sample[groups == place])
    _sums_to_zero(sample, groups)
    return facts


def _estimator(given: Given) -> Estimate:
    """The estimator asked for; without one, the standardised group mean."""
    asked, scaled = given.get("estimator"), given.get("normalise", None)
    if asked is not None and str(asked).lower() not in NAMES:
        raise NotYetError(f"unknown estimator {asked!r}")
    if scaled not in NORMALISED:
        raise NotYetError(f"unknown normalise {scaled!r}")
    by_default = asked is None and "normalise" not in given
    name = NAMES[str(asked).lower()] if asked is not None else "group mean"
    return ESTIMATORS[name, by_default or NORMALISED[scaled]]


def _as_asked(values: Tensor, rewards: Tensor, form: Any) -> Any:
    """All advantages, or those of the rows with reward 1 and 0."""
    if isinstance(form, Mapping):
        of = {"correct": values[rewards == 1], "wrong": values[rewards == 0]}
        return {name: _only(of[name]) for name in form if name in of}
    return values.tolist()


def _exact_zeros(values: Tensor) -> Near:
    """Advantages to 1e-3, those that are 0 to 1e-6."""
    return Near(values.tolist(), 1e-6 if bool((values.abs() < 1e-3).all()) else 1e-3)


def _only(values: Tensor) -> float:
    """The one number that all values are; NaN where they differ."""
    found = values[~torch.isnan(values)]
    same = len(found) > 0 and bool(torch.allclose(found, found[0]))
    return float(found[0]) if same else float("nan")


def _signs(rewards: Tensor, groups: Tensor, values: Tensor) -> dict[str, Any]:
    signs = torch.sign(values).long().tolist()
    facts: dict[str, Any] = {
        "positive_index": signs.index(1) if signs.count(1) == 1 else -1,
        "negative_index": signs.index(-1) if signs.count(-1) == 1 else -1,
        "zero_indices": [i for i, s in enumerate(signs) if s == 0],
    }
    if len(set(groups.tolist())) == 1:
        facts["winner_positive"] = signs[int(rewards.nan_to_num(-1e9).argmax())] > 0
        facts["loser_negative"] = signs[int(rewards.nan_to_num(1e9).argmin())] < 0
    return facts


def _sums_to_zero(values: Tensor, groups: Tensor) -> None:
    for place in set(groups.tolist()):
        total = float(values[groups == place].sum())
        if abs(total) > 1e-3:
            raise ArithmeticError(f"advantages of a group sum to {total}, not to 0")


def _one_by_one(rewards: Tensor, groups: Tensor, estimate: Estimate, text: str) -> str:
    """The text itself if a group alone and all groups at once agree, as it says."""
    if "per-group" not in text and "one group at a time" not in text:
        raise NotYetError(f"unknown property: {text!r}")
    whole = estimate(rewards, groups, 1)
    for place in set(groups.tolist()):
        rows = groups == place
        alone = estimate(rewards[rows], torch.zeros(int(rows.sum()), dtype=torch.long), 1)
        pair = whole[rows]
        opposite = len(pair) != 2 or (
            float(pair.max()) > 0 and abs(float(pair.sum())) <= 1e-3 * float(pair.abs().max())
        )
        if not torch.allclose(alone, pair, atol=1e-3) or not opposite:
            return f"a group alone gives {alone.tolist()}, among others {pair.tolist()}"
    return text


def _by_agent(given: Given) -> Facts:
    """Each agent's rewards are compared with its own alone."""
    by_agent = {str(k): [number(r) for r in v] for k, v in given["rewards"].items()}
    if str(given.get("normalise", "per agent")) != "per agent":
        raise NotYetError(f"unknown normalise {given['normalise']!r} of several agents")
    sizes = [len(v) for v in by_agent.values()]
    rewards = torch.tensor([r for v in by_agent.values() for r in v], dtype=torch.float64)
    agents = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    values = standardise_by_group(rewards, agents)
    parts = dict(zip(by_agent, values.split(sizes), strict=True))
    sizes_abs = [p.abs() for p in parts.values()]
    same = all(len(a) == len(sizes_abs[0]) for a in sizes_abs)
    return {
        "signs": {name: torch.sign(p).long().tolist() for name, p in parts.items()},
        "advantages": Near({name: p.tolist() for name, p in parts.items()}, 1e-3),
        "equal_magnitude_across_agents": same
        and all(torch.allclose(a, sizes_abs[0], atol=1e-3) for a in sizes_abs),
        "finite": bool(torch.isfinite(values).all()),
    }


def scored_group(
    rewards: Mapping[str, Sequence[float | None]], weights: Mapping[str, float]
) -> Group:
    """A group whose episodes have these rewards by name, ``None`` where one is missing."""
    count = len(next(iter(rewards.values())))
    rows = [
        RewardRow(Scope.EPISODE, e, name, values[e], weights.get(name, 1.0))
        for name, values in rewards.items()
        for e in range(count)
    ]
    episodes = [Episode(episode_id=f"e{e}", segments=()) for e in range(count)]
    group = Group(key=(0, 0, 0), task=Task(id="case", prompt="-"))
    return group.add(episodes=episodes, rewards=rows)


def filtering(given: Given, _expected: Given) -> Facts:
    """Whether a group is kept by its raw outcomes, whatever shaping added."""
    outcome = [float(x) for x in given["outcome"]]
    shaped = [float(x) for x in given["shaped_reward"]]
    shaping = [s - o for s, o in zip(shaped, outcome, strict=True)]
    group = scored_group({"outcome": outcome, "shaping": shaping}, {})
    kept = RewardsDiffer(outcome="outcome")(group, {})
    return {"keep_group": kept, "kept_rows": len(outcome) if kept else 0}


def logged_reward(given: Given, _expected: Given) -> Facts:
    """The weighted sum that credit reads, of one sample or of several."""
    values, weights = given["per_function"], given["weights"]
    names = [f"reward_{i}" for i in range(len(values))]
    listed = [v if isinstance(v, list) else [v] for v in values]
    rewards = {
        n: [None if x is None else float(x) for x in v] for n, v in zip(names, listed, strict=True)
    }
    group = scored_group(rewards, dict(zip(names, map(float, weights), strict=True)))
    totals = group.totals()
    single = not isinstance(values[0], list)
    return {"logged_reward": float(totals[0]) if single else totals.tolist()}


def reward_over_ranks(given: Given, _expected: Given) -> Facts:
    """The mean over all samples, each rank merging its own tally."""
    merged = Tally(0.0, 0.0)
    for rewards in given["rank_rewards"]:
        scored = [number(r) for r in rewards]
        scored = [r for r in scored if not np.isnan(r)]
        merged = merged.merge(Tally(sum(scored), len(scored)))
    return {"mean": merged.value, "logged_reward": merged.value}


def stepwise(given: Given, _expected: Given) -> Facts:
    """One number spread over each step's own tokens."""
    masks = [torch.tensor([[bool(m) for m in mask]]) for mask in given["step_masks"]]
    value = torch.tensor([float(given["trajectory_advantage"])])
    return {"advantages": [spread_over_tokens(value, mask)[0].tolist() for mask in masks]}


def returns(given: Given, _expected: Given) -> Facts:
    """Reward-to-go, or with values generalised advantages, on trainable tokens."""
    name = next(n for n in ("token_reward", "mask", "values") if n in given)
    width = len(given[name])
    mask = torch.tensor([[bool(m) for m in given.get("mask", [1] * width)]])
    if "token_reward" in given:
        rewards = torch.tensor([[number(r) for r in given["token_reward"]]], dtype=torch.float64)
    else:
        outcome = torch.tensor([float(given["sequence_reward"])], dtype=torch.float64)
        rewards = place_on_last(outcome, mask)
    gamma = float(given.get("gamma", 1.0))
    if "values" not in given:
        found = reward_to_go(rewards, mask, gamma=gamma)
        return {"returns_on_trainable": Near(found[mask].tolist())}
    values = torch.tensor([[number(v) for v in given["values"]]], dtype=torch.float64)
    lam = float(given.get("lambda", 1.0))
    gains = gae_advantages(rewards, values, mask, gamma=gamma, lam=lam)
    targets = gae_returns(rewards, values, mask, gamma=gamma, lam=lam)
    return {
        "advantages_on_trainable": Near(gains[mask].tolist()),
        "returns_on_trainable": Near(targets[mask].tolist()),
    }
