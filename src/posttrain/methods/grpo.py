"""GRPO: rewards standardised in their group, clipped token ratios, KL to a reference in the loss.

Paper      arXiv:2402.03300 (DeepSeekMath), section 4.1, eq. (3) and (4).
Formula    A_i = (R_i - mean R) / (std R + eps);  r_t = pi / pi_old
           loss = mean over answers of mean over tokens of
                  -min(r_t A_i, clip(r_t, 1 - low, 1 + high) A_i) + beta k3_t
Needs      rewards, groups of 2 or more, a frozen model ``ref`` (none with beta 0).
Differs    TRL's default loss is not this one: it is a token mean without KL (``loss_type="dapo"``);
           verl's default is a token mean too; NeMo takes leave-one-out mean and std.
Defaults   group size 64 and beta 0.04: section 4.2. The paper prints neither the clip nor the std's
           divisor: 0.2 is PPO's, ddof 1 and eps 1e-6 are most code's.
Checked    tests/unit/test_methods.py; tests/parity/test_trl_parts.py.
"""

from __future__ import annotations

from posttrain.parts.aggregation import SequenceMean
from posttrain.parts.credit import GroupStandardised
from posttrain.parts.kl import K3
from posttrain.parts.plans import FixedGroup
from posttrain.parts.probes import old_logprobs, ref_logprobs
from posttrain.parts.ratios import TokenRatio
from posttrain.parts.terms import KLPenalty, PolicyGradient
from posttrain.parts.trust import ClippedRatio
from posttrain.types.method import Method, Updates


def grpo(
    *,
    group_size: int = 64,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    beta: float = 0.04,
    updates: Updates | None = None,
) -> Method:
    """Compose the GRPO of its paper from parts.

    Args:
        group_size: Answers a task, 2 or more.
        clip_low: Distance below 1 that a token's ratio may go.
        clip_high: Distance above 1 that a token's ratio may go.
        beta: Loss a nat of KL to the model ``ref``; 0 needs no reference.
        updates: How often a batch is used; once if None.
    """
    policy = PolicyGradient(
        ratio=TokenRatio(),
        trust=ClippedRatio(low=clip_low, high=clip_high),
        aggregation=SequenceMean(),
    )
    kl = KLPenalty(beta=beta, estimator=K3(), aggregation=SequenceMean()) if beta > 0.0 else None
    return Method(
        name="grpo",
        plan=FixedGroup(size=group_size),
        probes=(old_logprobs(),) if kl is None else (old_logprobs(), ref_logprobs()),
        credit=GroupStandardised(),
        terms={"policy": (policy,) if kl is None else (policy, kl)},
        updates=updates or Updates(),
    )
