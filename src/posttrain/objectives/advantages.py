"""Advantages from the rewards of a group: how much better than its siblings a completion did.

Shapes: B completions. ``group_ids[b]`` names the prompt completion b answers (see
`objectives.groups`). A NaN reward was not scored: it enters no statistic and its advantage is 0.
A group with one scored member, or without any spread, gets exactly 0. Advantages are detached.
Sources: GRPO, arXiv:2402.03300 sec. 4.1.2; RLOO, 2402.14740; Dr. GRPO, 2503.20783.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from posttrain.objectives.groups import GroupSpread, group_mean, group_spread, joint_ids

__all__ = [
    "best_minus_second",
    "center_by_group",
    "center_by_key",
    "center_by_length",
    "center_over_mean",
    "difficulty_weighted",
    "leave_one_out",
    "leave_one_out_standardised",
    "log_mean_exp_baseline",
    "standardise_by_group",
    "subtract_baseline",
]


def center_by_group(
    rewards: Float[Tensor, " B"], group_ids: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """Reward minus its group's mean.

    Source: Dr. GRPO, arXiv:2503.20783 (no division by the standard deviation).
    """
    return group_spread(rewards, group_ids).centered


def center_by_key(rewards: Float[Tensor, " B"], *keys: Int[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Reward minus the mean of the rows that agree in every key (group and step state, seat...)."""
    return center_by_group(rewards, joint_ids(*keys))


def standardise_by_group(
    rewards: Float[Tensor, " B"],
    group_ids: Int[Tensor, " B"],
    *,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Tensor, " B"]:
    """(reward - group mean) / (group std + `eps`).

    The paper does not say which standard deviation; here it divides by size - `ddof`, and
    ``ddof=0`` gives the population form.

    Source: GRPO, arXiv:2402.03300 sec. 4.1.2.
    """
    spread = group_spread(rewards, group_ids)
    return _over_std(spread.centered, spread.std(ddof=ddof), eps=eps)


def leave_one_out(
    rewards: Float[Tensor, " B"], group_ids: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """Reward minus the mean of the *other* members, = G / (G - 1) * (reward - group mean).

    Source: RLOO, arXiv:2402.14740 eq. (8).
    """
    return _leave_one_out(group_spread(rewards, group_ids))


def leave_one_out_standardised(
    rewards: Float[Tensor, " B"],
    group_ids: Int[Tensor, " B"],
    *,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Tensor, " B"]:
    """Leave-one-out advantage over the std of the *whole* group.

    The std of the others alone is 0 for a lone success and would make its advantage boundless.
    """
    spread = group_spread(rewards, group_ids)
    return _over_std(_leave_one_out(spread), spread.std(ddof=ddof), eps=eps)


def center_by_length(
    rewards: Float[Tensor, " B"],
    group_ids: Int[Tensor, " B"],
    num_tokens: Int[Tensor, " B"],
) -> Float[Tensor, " B"]:
    """Reward minus the group's mean weighted by completion length, sum(L R) / sum(L).

    Args:
        rewards: Outcome of each completion.
        group_ids: Group of each completion.
        num_tokens: Trained tokens of each completion.

    Source: OPO, arXiv:2505.23585 (optimal baseline if squared gradient norms grow with length).
    """
    return group_spread(rewards, group_ids, row_weights=num_tokens.to(rewards.dtype)).centered


def best_minus_second(
    rewards: Float[Tensor, " B"], group_ids: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """Best reward minus the second best, on the best row of each group; 0 elsewhere and on ties.

    Source: pass@k policy optimisation, arXiv:2503.19595 (k = group size).
    """
    scored = ~torch.isnan(rewards)
    same = group_ids.unsqueeze(0) == group_ids.unsqueeze(1)
    rival = same & scored.unsqueeze(0) & ~torch.eye(len(rewards), dtype=torch.bool).to(same.device)
    others = torch.where(rival, rewards.detach().unsqueeze(0), -torch.inf)
    lead = rewards.detach() - others.amax(dim=1)
    return torch.where(scored & rival.any(dim=1) & (lead > 0), lead, 0.0)


def center_over_mean(
    rewards: Float[Tensor, " B"], group_ids: Int[Tensor, " B"]
) -> Float[Tensor, " B"]:
    """(reward - group mean) / group mean, for rewards that are not negative; mean 0 gives 0.

    Source: MaxRL, arXiv:2602.02710.
    """
    spread = group_spread(rewards, group_ids)
    return torch.where(spread.mean > 0, spread.centered / spread.mean, 0.0)


def subtract_baseline(
    rewards: Float[Tensor, " B"], baseline: Float[Tensor, " B"] | float
) -> Float[Tensor, " B"]:
    """Reward minus a baseline from outside the group; an unscored row gets 0.

    A running mean for REINFORCE, or the reward of the greedy answer for ReMax (arXiv:2310.10505).
    """
    advantage = (rewards - baseline).detach()
    return torch.where(torch.isnan(rewards), 0.0, advantage)


def log_mean_exp_baseline(
    rewards: Float[Tensor, " B"], group_ids: Int[Tensor, " B"], *, tau: float
) -> Float[Tensor, " B"]:
    """Return tau * log mean exp(reward / tau) over the scored members of each row's group.

    Near the group's best reward for small `tau`, its mean for large; NaN if nothing is scored.

    Source: Kimi k1.5, arXiv:2501.12599 sec. 2.3.2 (tau log Z estimated from the samples).
    """
    highest = -group_spread(-rewards, group_ids).lowest
    weight = torch.exp((rewards.detach() - highest) / tau)  # at most 1; NaN where unscored
    return highest + tau * group_mean(weight, group_ids).log()


def difficulty_weighted(
    advantages: Float[Tensor, " B"],
    group_accuracy: Float[Tensor, " B"],
    *,
    floor: float = 0.4,
    height: float = 1.1,
    steepness: float = 10.0,
    middle: float = 0.75,
) -> Float[Tensor, " B"]:
    """Advantage times w(accuracy) if positive, else w(1 - accuracy); hard groups weigh more.

    w(x) = floor + height / (1 + exp(steepness (x - middle))).

    Source: GRPO-LEAD, arXiv:2504.09696, and its constants.
    """
    facing = torch.where(advantages > 0, group_accuracy, 1.0 - group_accuracy)
    return advantages * (floor + height * torch.sigmoid(-steepness * (facing - middle)))


def _leave_one_out(spread: GroupSpread) -> Float[Tensor, " B"]:
    return spread.centered * spread.size / (spread.size - 1.0).clamp(min=1.0)


def _over_std(
    centered: Float[Tensor, " B"], std: Float[Tensor, " B"], *, eps: float
) -> Float[Tensor, " B"]:
    """Quotient that is exactly 0 where there is no spread, also with `eps` 0."""
    return torch.where(std > 0, centered / (std + eps), 0.0)
