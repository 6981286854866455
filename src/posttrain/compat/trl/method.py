"""A method with TRL's loss, composed from parts."""

from __future__ import annotations

from typing import TypeVar

from posttrain.compat.trl.config import GRPOConfig
from posttrain.compat.trl.credit import Joint, LossShare, LossType, Scale, TRLCredit
from posttrain.errors import ConfigError
from posttrain.parts.aggregation import Aggregation, TokenMean
from posttrain.parts.kl import K3, K3Weighted
from posttrain.parts.plans import FixedGroup
from posttrain.parts.probes import old_logprobs, ref_logprobs
from posttrain.parts.ratios import Ratio, SequenceMeanRatio, TokenRatio
from posttrain.parts.terms import EntropyBonus, KLPenalty, PolicyGradient
from posttrain.parts.trust import CappedClip, ClippedRatio, TrustRegion
from posttrain.types.method import Method, Updates
from posttrain.types.term import Term

Choice = TypeVar("Choice")


def grpo_method(config: GRPOConfig) -> Method:
    """What TRL's ``GRPOTrainer`` computes under these options.

    Raises:
        ConfigError: a combination whose loss is not composed here.
    """
    aggregation = TokenMean() if config.loss_type == "bnpo" else LossShare()
    policy = PolicyGradient(ratio=_ratio(config), trust=_trust(config), aggregation=aggregation)
    terms: list[Term] = [policy, *_penalty(config, aggregation), *_bonus(config)]
    return Method(
        name=f"trl-{config.loss_type}",
        plan=FixedGroup(size=group_size(config)),
        probes=(old_logprobs(), ref_logprobs()) if config.beta else (old_logprobs(),),
        credit=credit(config),
        terms={"policy": tuple(terms)},
        updates=Updates(epochs=config.num_iterations, minibatches=minibatches(config)),
    )


def credit(config: GRPOConfig) -> TRLCredit:
    """Advantages and loss shares of these options."""
    scale: Scale = _one_of(config.scale_rewards, "group", "batch", "none")
    joint: Joint = _one_of(
        config.multi_objective_aggregation, "sum_then_normalize", "normalize_then_sum"
    )
    kind: LossType = _one_of(config.loss_type, "dapo", "grpo", "dr_grpo", "luspo", "bnpo")
    return TRLCredit(
        scale=scale,
        joint=joint,
        loss_type=kind,
        max_completion_length=config.max_completion_length or 0,
        minibatches=minibatches(config),
        mask_truncated=config.mask_truncated_completions,
    )


def group_size(config: GRPOConfig) -> int:
    """Completions a prompt."""
    return config.num_generations or 0


def prompts(config: GRPOConfig) -> int:
    """Prompts a generation."""
    return (config.generation_batch_size or 0) // group_size(config)


def minibatches(config: GRPOConfig) -> int:
    """Optimiser steps in one pass over a generation."""
    return (config.steps_per_generation or 0) // config.gradient_accumulation_steps


def _one_of(value: object, *allowed: Choice) -> Choice:
    for choice in allowed:
        if value == choice:
            return choice
    raise ConfigError(f"GRPOConfig allows one of {', '.join(map(str, allowed))}; got {value!r}.")


def _ratio(config: GRPOConfig) -> Ratio:
    return TokenRatio() if config.importance_sampling_level == "token" else SequenceMeanRatio()


def _trust(config: GRPOConfig) -> TrustRegion:
    low = config.epsilon
    high = low if config.epsilon_high is None else config.epsilon_high
    if config.delta is None:
        return ClippedRatio(low=low, high=high)
    return CappedClip(low=low, high=high, cap=config.delta)


def _penalty(config: GRPOConfig, aggregation: Aggregation) -> tuple[KLPenalty, ...]:
    if not config.beta:
        return ()
    weighted = config.use_bias_correction_kl
    if weighted and config.importance_sampling_level == "sequence":
        raise ConfigError(
            "GRPOConfig.beta with importance_sampling_level='sequence' would weigh the KL of every "
            "token by the ratio of its whole sequence, which is biased. Set "
            "use_bias_correction_kl=False."
        )
    estimator = K3Weighted() if weighted else K3()
    return (KLPenalty(beta=config.beta, estimator=estimator, aggregation=aggregation),)


def _bonus(config: GRPOConfig) -> tuple[EntropyBonus, ...]:
    if not config.entropy_coef:
        return ()
    if config.gradient_accumulation_steps > 1:
        raise ConfigError(
            "GRPOConfig.entropy_coef averages the entropy within each micro-batch, so with "
            f"gradient_accumulation_steps={config.gradient_accumulation_steps} its gradient would "
            "depend on how the batch is cut. Give per_device_train_batch_size the whole batch, "
            "and accumulate 1."
        )
    return (EntropyBonus(coef=config.entropy_coef, aggregation=TokenMean()),)
