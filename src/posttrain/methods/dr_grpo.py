"""Dr. GRPO: GRPO without its two biases, the division by the std and by each answer's length.

Paper      arXiv:2503.20783, section 3.
Formula    A_i = R_i - mean R;  r_t = pi / pi_old
           loss = sum of -min(r_t A_i, clip(r_t, 1 - low, 1 + high) A_i) / (answers * max_tokens)
Needs      rewards and groups of 2 or more; no reference model.
Differs    verl and ROLL divide by the padded width of a batch unless told the constant; AReaL's
           example of this name standardises over the batch again.
Defaults   group size 8, clip 0.2: the paper's runs. max_tokens has no default: it is the run's
           budget (3000 in the paper).
Checked    tests/unit/test_methods.py; tests/parity/test_trl_parts.py.
"""

from __future__ import annotations

from posttrain.parts.aggregation import ConstantLength
from posttrain.parts.credit import GroupMean
from posttrain.parts.plans import FixedGroup
from posttrain.parts.probes import old_logprobs
from posttrain.parts.ratios import TokenRatio
from posttrain.parts.terms import PolicyGradient
from posttrain.parts.trust import ClippedRatio
from posttrain.types.method import Method, Updates


def dr_grpo(
    *,
    max_tokens: int,
    group_size: int = 8,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    updates: Updates | None = None,
) -> Method:
    """Compose Dr. GRPO from its parts.

    Args:
        max_tokens: Tokens an answer may have in this run; the constant of the denominator.
        group_size: Answers a task, 2 or more.
        clip_low: Distance below 1 that a token's ratio may go.
        clip_high: Distance above 1 that a token's ratio may go.
        updates: How often a batch is used; once if None.
    """
    policy = PolicyGradient(
        ratio=TokenRatio(),
        trust=ClippedRatio(low=clip_low, high=clip_high),
        aggregation=ConstantLength(length=max_tokens),
    )
    return Method(
        name="dr_grpo",
        plan=FixedGroup(size=group_size),
        probes=(old_logprobs(),),
        credit=GroupMean(),
        terms={"policy": (policy,)},
        updates=updates or Updates(),
    )
