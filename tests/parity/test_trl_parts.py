"""The policy and KL terms, put together from parts, against losses and slopes of TRL 1.16.0.

`tests/vectors/trl_grpo.json` was written by TRL's own trainer; it names the command.
"""

import json
from pathlib import Path

import pytest
import torch

from posttrain.parts.aggregation import ConstantLength, SequenceMean
from posttrain.parts.correction import MaskedWeight, TruncatedWeight
from posttrain.parts.kl import K3, K3Weighted
from posttrain.parts.ratios import SequenceMeanRatio
from posttrain.parts.terms import KLPenalty, PolicyGradient
from posttrain.parts.trust import CappedClip, ClippedRatio
from posttrain.types.term import Counts, ModelOut, TokenBatch

VECTORS = json.loads(
    (Path(__file__).parents[1] / "vectors" / "trl_grpo.json").read_text(encoding="utf-8")
)
BATCH = VECTORS["batch"]
CAP = BATCH["max_completion_length"]
WIDTH = 1 + max(len(row) for row in BATCH["masks"])
HIGHER = ClippedRatio(high=0.28)

SETTINGS = {
    "grpo": (PolicyGradient(aggregation=SequenceMean()),),
    "dapo": (PolicyGradient(),),
    "dr_grpo": (PolicyGradient(aggregation=ConstantLength(length=CAP)),),
    "grpo_clip_higher": (PolicyGradient(trust=HIGHER, aggregation=SequenceMean()),),
    "dapo_clip_higher": (PolicyGradient(trust=HIGHER),),
    "grpo_kl": (
        PolicyGradient(aggregation=SequenceMean()),
        KLPenalty(beta=0.04, estimator=K3(), aggregation=SequenceMean()),
    ),
    "dapo_kl_corrected": (
        PolicyGradient(trust=HIGHER),
        KLPenalty(beta=0.04, estimator=K3Weighted()),
    ),
    "gspo": (
        PolicyGradient(
            ratio=SequenceMeanRatio(),
            trust=ClippedRatio(low=0.05, high=0.05),
            aggregation=SequenceMean(),
        ),
    ),
    "delta": (PolicyGradient(trust=CappedClip(cap=1.3), aggregation=SequenceMean()),),
    "token_truncate": (PolicyGradient(correction=TruncatedWeight(cap=1.2)),),
    "token_mask": (PolicyGradient(correction=MaskedWeight(low=0.8, high=1.25)),),
    "sequence_truncate": (PolicyGradient(correction=TruncatedWeight(cap=1.1, level="sequence")),),
    "sequence_mask": (
        PolicyGradient(correction=MaskedWeight(low=0.0, high=1.5, level="sequence")),
    ),
}


def padded(rows, *, fill):
    """[6, WIDTH], one position before each row."""
    return torch.tensor([[fill, *row, *[fill] * (WIDTH - 1 - len(row))] for row in rows])


def batch_of(advantages, *, on_policy):
    mask = padded([[bool(v) for v in row] for row in BATCH["masks"]], fill=False)
    tokens = mask.sum(dim=1)
    number = torch.arange(len(tokens))
    columns = {
        name: padded(BATCH[name], fill=float("nan")).double()
        for name in ("old_logprobs", "ref_logprobs", "rollout_logprobs")
    }
    if on_policy:
        columns["old_logprobs"] = padded(BATCH["policy_logprobs"], fill=float("nan")).double()
    columns["advantages"] = torch.tensor(advantages).double()[:, None].expand(-1, WIDTH)
    batch = TokenBatch(
        ids=torch.zeros(mask.shape, dtype=torch.long),
        attention_mask=torch.ones_like(mask),
        loss_mask=mask,
        temperature=torch.ones(mask.shape),
        columns=columns,
        row=number,
        episode=number,
        group=number // BATCH["group_size"],
        segment=number[:, None].expand(-1, WIDTH),
        row_tokens=tokens,
        episode_tokens=tokens,
    )
    return batch, Counts(tokens=int(tokens.sum()), rows=len(tokens), episodes=len(tokens), groups=2)


@pytest.mark.parametrize("name", SETTINGS)
def test_loss_and_slopes(name):
    expected = VECTORS["losses"][name]
    batch, counts = batch_of(
        expected["advantages"], on_policy=expected["setting"].get("sampler", False)
    )
    policy = padded(BATCH["policy_logprobs"], fill=float("nan")).double().requires_grad_()
    model = ModelOut(policy_logprobs=policy)
    loss = torch.stack([term(batch, model, counts, None).loss for term in SETTINGS[name]]).sum()
    loss.backward()
    assert loss.item() == pytest.approx(expected["loss"], rel=1e-5, abs=1e-6)
    slopes = padded(expected["slopes"], fill=0.0).double()
    torch.testing.assert_close(policy.grad, slopes, rtol=1e-4, atol=1e-6)


def test_the_settings_tell_the_parts_apart():
    losses = [VECTORS["losses"][name]["loss"] for name in SETTINGS]
    assert len({round(loss, 4) for loss in losses}) == len(SETTINGS)
