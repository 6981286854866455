"""From rewards to reward-to-go and to advantages with a learned value.

Shapes: B completions, T tokens. Time runs over *trained* tokens only: masked ones (tool output,
observations, padding) are stepped over, so the next trained token follows directly, one discount
later, and whatever rewards, values or NaN stand on masked positions are not read. Results are
detached and 0 on masked positions.
Sources: GAE, arXiv:1506.02438 eq. (16); decoupled, VC-PPO, 2503.01491; adaptive, VAPO, 2504.05118.
"""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from posttrain.objectives.masking import row_sum, select_trained

__all__ = [
    "gae_advantages",
    "gae_returns",
    "length_adaptive_lambda",
    "penalise_row",
    "penalise_tokens",
    "place_on_last",
    "reward_to_go",
]


def place_on_last(
    rewards: Float[Tensor, " B"], loss_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    """Each outcome on the last trained token of its row, 0 elsewhere."""
    later = loss_mask.flip(-1).cumsum(-1).flip(-1)  # trained tokens from here on
    return torch.where(loss_mask & (later == 1), rewards.detach().unsqueeze(-1), 0.0)


def penalise_tokens(
    token_rewards: Float[Tensor, "B T"],
    token_kl: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    coefficient: float,
) -> Float[Tensor, "B T"]:
    """Token reward minus coefficient * KL estimate of that token (k1 of old against reference).

    Source: InstructGPT, arXiv:2203.02155 eq. (2), token by token.
    """
    penalty = coefficient * select_trained(token_kl.detach(), loss_mask)
    return select_trained(token_rewards.detach(), loss_mask) - penalty


def penalise_row(
    rewards: Float[Tensor, " B"],
    token_kl: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    coefficient: float,
) -> Float[Tensor, " B"]:
    """Outcome minus coefficient * sum of the row's KL estimates, for methods without token credit.

    Source: RLOO, arXiv:2402.14740 sec. 2.
    """
    return rewards.detach() - coefficient * row_sum(token_kl.detach(), loss_mask)


def reward_to_go(
    token_rewards: Float[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"], *, gamma: float
) -> Float[Tensor, "B T"]:
    """G_t = r_t + gamma * G_{t+1} over trained tokens."""
    order = _trained_first(loss_mask)
    rewards = select_trained(token_rewards.detach(), loss_mask).gather(-1, order)
    discount = rewards.new_full((len(rewards),), gamma)
    return _scatter_back(_discounted_suffix_sum(rewards, discount), order, loss_mask)


def gae_advantages(
    token_rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    gamma: float,
    lam: float | Float[Tensor, " B"],
    final_values: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, "B T"]:
    """A_t = delta_t + gamma lam A_{t+1}, with delta_t = r_t + gamma V_{t+1} - V_t.

    Args:
        token_rewards: Reward received for each token.
        values: V of the state *before* each token.
        loss_mask: Trained tokens.
        gamma: Discount a trained token, in [0, 1].
        lam: Trace decay in [0, 1], one for all or one a row (`length_adaptive_lambda`).
        final_values: V after the last trained token, for rows that a limit outside the task cut
            short; 0 if not given, as after an end.
    """
    order = _trained_first(loss_mask)
    rewards = select_trained(token_rewards.detach(), loss_mask).gather(-1, order)
    v = select_trained(values.detach(), loss_mask).gather(-1, order)
    after_last = torch.zeros_like(v[:, :1]) if final_values is None else final_values[:, None]
    padded = torch.cat([v, torch.zeros_like(v[:, :1])], dim=-1)
    num_trained = loss_mask.sum(-1, keepdim=True)
    next_v = padded.scatter(-1, num_trained, after_last.detach().to(v))[:, 1:]
    delta = rewards + gamma * next_v - v  # 0 behind the last trained token
    decay = torch.as_tensor(lam, dtype=v.dtype, device=v.device).expand(len(v)) * gamma
    return _scatter_back(_discounted_suffix_sum(delta, decay), order, loss_mask)


def gae_returns(
    token_rewards: Float[Tensor, "B T"],
    values: Float[Tensor, "B T"],
    loss_mask: Bool[Tensor, "B T"],
    *,
    gamma: float,
    lam: float | Float[Tensor, " B"],
    final_values: Float[Tensor, " B"] | None = None,
) -> Float[Tensor, "B T"]:
    """What the value is trained towards: A_t + V_t, with the critic's own `lam`.

    Decoupled GAE is two calls over the same values: this one with lam 1, `gae_advantages` with the
    policy's. Adding V to the *policy's* advantages instead would bring the bias back.

    Source: VC-PPO, arXiv:2503.01491 sec. 3.2.
    """
    advantages = gae_advantages(
        token_rewards, values, loss_mask, gamma=gamma, lam=lam, final_values=final_values
    )
    return advantages + select_trained(values.detach(), loss_mask)


def length_adaptive_lambda(num_tokens: Int[Tensor, " B"], *, alpha: float) -> Float[Tensor, " B"]:
    """1 - 1 / (alpha * length), held in [0, 1]: the GAE weights of a row sum to alpha * length.

    Source: VAPO, arXiv:2504.05118 eq. (4)-(5), alpha 0.05.
    """
    return (1.0 - 1.0 / (alpha * num_tokens.float())).clamp(0.0, 1.0)


def _trained_first(loss_mask: Bool[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """Positions with the trained ones first, each kind in its own order."""
    return torch.argsort((~loss_mask).to(torch.uint8), dim=-1, stable=True)


def _scatter_back(
    packed: Float[Tensor, "B T"], order: Int[Tensor, "B T"], loss_mask: Bool[Tensor, "B T"]
) -> Float[Tensor, "B T"]:
    return select_trained(torch.zeros_like(packed).scatter(-1, order, packed), loss_mask)


def _discounted_suffix_sum(
    values: Float[Tensor, "B T"], discount: Float[Tensor, " B"]
) -> Float[Tensor, "B T"]:
    """Sum over s >= t of discount^(s - t) * value_s, by doubling the reach log2(T) times."""
    total, reach, factor = values, 1, discount.unsqueeze(-1)
    while reach < values.shape[-1]:
        shifted = torch.nn.functional.pad(total[:, reach:], (0, reach))
        total = total + factor * shifted
        reach, factor = 2 * reach, factor.square()
    return total
