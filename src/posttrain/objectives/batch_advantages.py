"""Advantages scaled by the whole batch: its rows, its tokens, or its reasoning steps.

Shapes: B completions, T tokens, K reward functions, S steps. "Batch" is everything sampled for
one update, never a micro-batch: a statistic of a part is another method. NaN rewards are unscored
and get 0; a statistic without spread gives 0. All results are detached.
Sources: REINFORCE++, arXiv:2501.03262; LitePPO, 2508.08221; Magistral, 2506.10910; GDPO,
2601.05242.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posttrain.errors import DataError
from posttrain.objectives.advantages import center_by_group, standardise_by_group
from posttrain.objectives.groups import group_spread, weighted_rewards
from posttrain.objectives.masking import select_trained

__all__ = [
    "center_by_batch",
    "center_over_batch_std",
    "center_then_standardise",
    "exponential_mean",
    "process_advantages",
    "standardise_by_batch",
    "standardise_per_reward",
    "whiten_tokens",
]


def center_by_batch(rewards: Float[Tensor, " B"]) -> Float[Tensor, " B"]:
    """Reward minus the mean of the batch, the plainest baseline of REINFORCE."""
    return center_by_group(rewards, _one_group(rewards))


def standardise_by_batch(
    rewards: Float[Tensor, " B"], *, ddof: int = 1, eps: float = 0.0
) -> Float[Tensor, " B"]:
    """(reward - batch mean) / (batch std + `eps`), over scored rows."""
    return standardise_by_group(rewards, _one_group(rewards), ddof=ddof, eps=eps)


def exponential_mean(
    previous: float | None, rewards: Float[Tensor, " B"], *, decay: float
) -> float | None:
    """Running baseline after this batch: decay * previous + (1 - decay) * mean(rewards).

    The first batch sets it; a batch without a scored row leaves it. Subtract the value from
    *before* the batch (`objectives.advantages.subtract_baseline`): a baseline that has seen the
    reward it is taken from is biased.
    """
    scored = rewards[~torch.isnan(rewards)]
    if scored.numel() == 0:
        return previous
    mean = scored.mean().item()
    return mean if previous is None else decay * previous + (1.0 - decay) * mean


def center_over_batch_std(
    rewards: Float[Tensor, " B"],
    group_ids: Int[Tensor, " B"],
    *,
    ddof: int = 1,
    eps: float = 0.0,
) -> Float[Tensor, " B"]:
    """(reward - group mean) / (std of the *raw* rewards of the batch + `eps`).

    Source: LitePPO, arXiv:2508.08221.
    """
    std = group_spread(rewards, _one_group(rewards)).std(ddof=ddof)
    centered = center_by_group(rewards, group_ids)
    return torch.where(std > 0, centered / (std + eps), 0.0)


def center_then_standardise(
    rewards: Float[Tensor, " B"],
    group_ids: Int[Tensor, " B"],
    *,
    ddof: int = 1,
    eps: float = 0.0,
) -> Float[Tensor, " B"]:
    """Group-centred rewards, then (a - mean) / (std + `eps`) over the rows of the batch.

    Source: Magistral, arXiv:2506.10910 sec. 2 (advantage normalisation).
    """
    centered = center_by_group(rewards, group_ids)
    scored_only = torch.where(torch.isnan(rewards), torch.nan, centered)
    return standardise_by_batch(scored_only, ddof=ddof, eps=eps)


def standardise_per_reward(
    rewards: Float[Tensor, "B K"],
    reward_weights: Float[Tensor, " K"],
    group_ids: Int[Tensor, " B"],
    *,
    ddof: int = 1,
    eps: float = 1e-6,
) -> Float[Tensor, " B"]:
    """Each reward standardised in its group, the weighted sum of those standardised in the batch.

    So no reward drowns another by its scale. A row that misses a reward with a non-zero weight is
    unscored in all of them.

    Source: GDPO, arXiv:2601.05242.
    """
    missing = torch.isnan(weighted_rewards(rewards, reward_weights))
    columns = [
        standardise_by_group(column.masked_fill(missing, torch.nan), group_ids, ddof=ddof, eps=eps)
        for column in rewards.unbind(dim=-1)
    ]
    total = weighted_rewards(torch.stack(columns, dim=-1), reward_weights)
    return standardise_by_batch(total.masked_fill(missing, torch.nan), ddof=ddof)


def whiten_tokens(
    advantages: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    ddof: int = 1,
    eps: float = 1e-8,
) -> Float[Tensor, "B T"]:
    """(a - mean) / sqrt(var + `eps`) over all trained tokens of the batch; 0 elsewhere.

    The statistics weigh tokens, so the short rows of a group gain against its long ones.

    Source: REINFORCE++, arXiv:2501.03262; with group-centred rewards, its "baseline" form.
    """
    values = advantages.detach()
    lowest = torch.where(loss_mask, values, torch.inf).amin()
    above = select_trained(values - lowest, loss_mask)  # equal tokens become exact zeros
    count = loss_mask.sum()
    centered = select_trained(above - above.sum() / count, loss_mask)
    variance = centered.square().sum() / (count - ddof).clamp(min=1)
    return torch.where(variance > 0, centered / (variance + eps).sqrt(), 0.0)


def process_advantages(
    step_rewards: Float[Tensor, " S"],
    step_rows: Int[Tensor, " S"],
    step_ends: Int[Tensor, " S"],
    group_ids: Int[Tensor, " B"],
    *,
    num_positions: int,
    ddof: int = 1,
    eps: float = 0.0,
) -> Float[Tensor, "B T"]:
    """At each token, the sum of the standardised rewards of the steps that end there or later.

    All steps of all completions of a group are pooled for the mean and the std.

    Args:
        step_rewards: Reward of each step; NaN if unscored.
        step_rows: The completion a step belongs to, 0..B-1.
        step_ends: Position of the last token of the step, from 0.
        group_ids: Group of each completion.
        num_positions: T, the width of the result.
        ddof: Divisor of the std is the number of pooled steps - `ddof`.
        eps: Added to the std.

    Raises:
        DataError: a step ends outside the T positions.

    Source: GRPO with process supervision, arXiv:2402.03300 sec. 4.1.3.
    """
    outside = (step_ends < 0) | (step_ends >= num_positions)
    if bool(outside.any()):
        raise DataError(
            f"A step must end at one of the {num_positions} positions 0..{num_positions - 1}, "
            f"got {step_ends[outside].tolist()}. Count positions from 0 within the completion."
        )
    z = standardise_by_group(step_rewards, group_ids[step_rows], ddof=ddof, eps=eps)
    at_end = z.new_zeros(len(group_ids), num_positions)
    at_end = at_end.index_put((step_rows, step_ends), z, accumulate=True)
    return at_end.flip(-1).cumsum(-1).flip(-1)


def _one_group(rewards: Float[Tensor, " B"]) -> Int[Tensor, " B"]:
    return torch.zeros(len(rewards), dtype=torch.long, device=rewards.device)
