"""RLOO: REINFORCE whose baseline is the mean reward of the other answers, with KL in the reward.

Paper      arXiv:2402.14740, section 2 and eq. (8); leave-one-out, Kool et al. 2019.
Formula    R_i = r_i - beta sum_t (log pi_old - log pi_ref);  A_i = R_i - mean of the others' R
           loss = -mean over answers of A_i sum_t log pi(y_t)
Needs      rewards, groups of 2 or more, a frozen model ``ref`` (none with beta 0).
Differs    one optimiser step a batch, where the paper takes two; TRL 1.16 clips the product of the
           token ratios, verl's rloo is only an advantage estimator inside the clipped token loss.
Defaults   group size 4 and beta 0.03: the paper's summarisation runs; it also reports groups of 2,
           and beta 0.1 for dialogue.
Checked    tests/unit/test_parts_credit.py; tests/unit/test_methods.py.
"""

from __future__ import annotations

from posttrain.parts.aggregation import SequenceSum
from posttrain.parts.credit import LeaveOneOut
from posttrain.parts.kl_reward import KLInReward
from posttrain.parts.plans import FixedGroup
from posttrain.parts.probes import old_logprobs, ref_logprobs
from posttrain.parts.ratios import NoRatio
from posttrain.parts.terms import PolicyGradient
from posttrain.parts.trust import Unconstrained
from posttrain.types.method import Method


def rloo(*, group_size: int = 4, beta: float = 0.03) -> Method:
    """Compose RLOO from its parts.

    Args:
        group_size: Answers a task, 2 or more.
        beta: Reward a nat of KL to the model ``ref``; 0 needs no reference.
    """
    credit = LeaveOneOut()
    return Method(
        name="rloo",
        plan=FixedGroup(size=group_size),
        probes=(old_logprobs(), ref_logprobs()) if beta > 0.0 else (),
        credit=KLInReward(credit=credit, beta=beta) if beta > 0.0 else credit,
        terms={
            "policy": (
                PolicyGradient(ratio=NoRatio(), trust=Unconstrained(), aggregation=SequenceSum()),
            )
        },
    )
