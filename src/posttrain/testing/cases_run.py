"""Cases of the kind ``robustness``: which family an input belongs to."""

from __future__ import annotations

from collections.abc import Mapping

from posttrain.testing import cases_config, cases_resume, cases_rollouts, cases_weights
from posttrain.testing.case_file import Adapter, Facts, Given, NotYetError

FAMILIES: Mapping[str, Adapter] = {
    "checkpoints": cases_resume.newest,
    "yielded": cases_resume.in_flight,
    "max_lag": cases_resume.staleness,
    "stop_after_steps": cases_resume.resume,
    "stop_at": cases_resume.resume,
    "stop_at_item": cases_resume.resume,
    "tracker": cases_config.tracker,
    "config": cases_config.config,
    "baseline": cases_config.group_of_one,
    "filter": cases_config.length_filter,
    "workers": cases_config.uneven_split,
    "trainable_parameters": cases_config.nothing_trainable,
    "rewards_returned": cases_config.rewards_returned,
    "prompts": cases_rollouts.few_prompts,
    "dynamic_sampling": cases_rollouts.nothing_to_learn,
    "failing": cases_rollouts.failing_rollouts,
    "completions": cases_rollouts.empty_completion,
    "policy": cases_rollouts.members_differ,
    "producer": cases_rollouts.dead_producer,
    "adapter_training": cases_weights.weights_move,
    "shared_prefix": cases_weights.stale_prefix,
    "reward_function": cases_config.reward_function,
}
"""By the key that tells a family from the others; the first that occurs counts."""

MISSING: Mapping[str, str] = {
    "tool_call_arguments": "the library has no environment with tools",
}


def adapter(given: Given, expected: Given) -> Facts:
    """Facts of one case."""
    for key, family in FAMILIES.items():
        if key in given:
            return family(given, expected)
    for key, what in MISSING.items():
        if key in given:
            raise NotYetError(what)
    raise NotYetError(f"no family of robustness cases has the keys {sorted(given)}")
