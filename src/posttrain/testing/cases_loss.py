"""Cases of the kind ``loss_numerics``: which family an input belongs to."""

from __future__ import annotations

from collections.abc import Mapping

from posttrain.testing import cases_advantages, cases_losses, cases_measures
from posttrain.testing.case_file import Adapter, Facts, Given, NotYetError

FAMILIES: Mapping[str, Adapter] = {
    "outcome": cases_advantages.filtering,
    "rewards": cases_advantages.advantages,
    "trajectory_advantage": cases_advantages.stepwise,
    "per_function": cases_advantages.logged_reward,
    "rank_rewards": cases_advantages.reward_over_ranks,
    "token_reward": cases_advantages.returns,
    "sequence_reward": cases_advantages.returns,
    "token_loss": cases_losses.aggregation,
    "ranks": cases_losses.over_ranks,
    "ratio": cases_losses.policy_loss,
    "ref_logp": cases_losses.kl_penalty,
    "kept_mass": cases_losses.nucleus,
    "old_logp": cases_losses.policy_loss,
    "updates_since_sampling": cases_measures.first_update,
    "probs_after_position": cases_measures.shifted_logprobs,
    "logits": cases_measures.token_logprob,
    "cache": cases_measures.length_penalty,
    "c": cases_measures.pass_at_k,
}
"""By the key that tells a family from the others; the first that occurs counts."""


def adapter(given: Given, expected: Given) -> Facts:
    """Facts of one case."""
    for key, family in FAMILIES.items():
        if key in given:
            return family(given, expected)
    raise NotYetError(f"no family of loss cases has the keys {sorted(given)}")
