"""REINFORCE: the log-prob of an answer times its reward, less a baseline.

Paper      Williams 1992, Machine Learning 8; for language models arXiv:2402.14740.
Formula    loss = -mean over answers of (R - b) sum_t log pi(y_t)
Needs      rewards; groups of 1 suffice; a reference model only with beta > 0.
Differs    no ratio and no clipping, so one optimiser step a batch; TRL and verl name REINFORCE only
           advantage estimators inside their clipped token loss.
Defaults   the mean reward of the step as baseline; beta 0: the library's own.
Checked    tests/unit/test_parts_terms.py; tests/unit/test_methods.py.
"""

from __future__ import annotations

from posttrain.parts.aggregation import SequenceSum
from posttrain.parts.credit import BatchMean, RunningMean
from posttrain.parts.kl_reward import KLInReward
from posttrain.parts.memory import RememberMeanReward
from posttrain.parts.plans import FixedGroup
from posttrain.parts.probes import old_logprobs, ref_logprobs
from posttrain.parts.ratios import NoRatio
from posttrain.parts.terms import PolicyGradient
from posttrain.parts.trust import Unconstrained
from posttrain.types.method import Credit, Method


def reinforce(*, group_size: int = 1, baseline: Credit | None = None, beta: float = 0.0) -> Method:
    """Compose REINFORCE from its parts.

    Args:
        group_size: Answers a task.
        baseline: RewardItself(), BatchMean() (taken if None), RunningMean() or another credit.
        beta: Reward a nat of KL to the model ``ref``; 0 needs no reference.
    """
    credit: Credit = BatchMean() if baseline is None else baseline
    remembers = isinstance(credit, RunningMean)
    if beta > 0.0:
        credit = KLInReward(credit=credit, beta=beta)
    return Method(
        name="reinforce",
        plan=FixedGroup(size=group_size),
        probes=(old_logprobs(), ref_logprobs()) if beta > 0.0 else (),
        credit=credit,
        terms={
            "policy": (
                PolicyGradient(ratio=NoRatio(), trust=Unconstrained(), aggregation=SequenceSum()),
            )
        },
        observe=(RememberMeanReward(),) if remembers else (),
    )
