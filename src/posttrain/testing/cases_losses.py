"""Loss cases on the terms: clipping, masking, aggregation, KL, and the engine's own log-probs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from posttrain.errors import NumericsError
from posttrain.objectives.kl import kl_k1, kl_k2, kl_k3
from posttrain.objectives.masking import masked_mean, without_truncated
from posttrain.objectives.weights import token_mean, weighted_sum
from posttrain.parts.aggregation import Aggregation, ConstantLength, SequenceMean, TokenMean
from posttrain.parts.kl import K2, K3, KLEstimator
from posttrain.parts.ratios import Ratio, SequenceMeanRatio, TokenRatio
from posttrain.parts.terms import KLPenalty, PolicyGradient
from posttrain.parts.trust import ClippedRatio, Unconstrained
from posttrain.testing.case_file import REFUSED, Facts, Given, Near, NotYetError
from posttrain.testing.cases_advantages import number
from posttrain.types.term import Counts, ModelOut, Term, TermOut, TokenBatch

RATIOS: Mapping[str, Ratio] = {"token": TokenRatio(), "sequence": SequenceMeanRatio()}
ESTIMATORS: Mapping[str, KLEstimator] = {"k2": K2(), "k3": K3()}
BOUND = "kl/beyond_bound"


def table(rows: Sequence[Any], dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor]:
    """[B, T] numbers and [B, T] bool where there are some; a flat list is one row."""
    nested = rows if rows and isinstance(rows[0], list) else [rows]
    width = max(len(r) for r in nested)
    values = [[number(x) for x in r] + [float("nan")] * (width - len(r)) for r in nested]
    real = [[True] * len(r) + [False] * (width - len(r)) for r in nested]
    return torch.tensor(values, dtype=dtype), torch.tensor(real)


def loss_mask(given: Given, real: Tensor) -> Tensor:
    """[B, T] bool, the trainable tokens that the case describes."""
    mask = real
    if "mask" in given:
        mask = mask & (table(given["mask"])[0].nan_to_num(0.0) > 0)
    if "length" in given:
        lengths = given["length"] if isinstance(given["length"], list) else [given["length"]]
        mask = mask & (torch.arange(real.shape[1]) < torch.tensor(lengths).unsqueeze(-1))
    cut = given.get("truncated", [False] * len(mask))
    if given.get("drop_truncated", False):
        mask = without_truncated(mask, torch.tensor([bool(t) for t in cut]))
    return mask


def batch_of(mask: Tensor, columns: Mapping[str, Tensor]) -> TokenBatch:
    """A batch with these columns; ids play no part in a term."""
    rows = torch.arange(len(mask))
    return TokenBatch(
        ids=torch.zeros(mask.shape, dtype=torch.long),
        attention_mask=torch.ones_like(mask),
        loss_mask=mask,
        temperature=torch.ones(mask.shape),
        columns=columns,
        row=rows,
        episode=rows,
        group=rows,
        segment=rows.unsqueeze(-1).expand(mask.shape),
        row_tokens=mask.sum(-1),
        episode_tokens=mask.sum(-1),
    )


def counts_of(mask: Tensor) -> Counts:
    """Sizes of a step that is this mask alone."""
    rows = int(mask.any(-1).sum())
    return Counts(tokens=int(mask.sum()), rows=rows, episodes=rows, groups=rows)


def _aggregations(given: Given) -> dict[str, Aggregation]:
    found: dict[str, Aggregation] = {"sequence_mean": SequenceMean(), "token_mean": TokenMean()}
    if "max_len" in given:
        found["constant_length"] = ConstantLength(length=int(given["max_len"]))
    return found


def _named(given: Given, known: Mapping[str, Aggregation]) -> str:
    asked = str(given["aggregate"]).replace(" ", "_").replace("-", "_")
    if asked not in known:
        raise NotYetError(f"unknown aggregate {given['aggregate']!r}")
    return asked


def aggregation(given: Given, _expected: Given) -> Facts:
    """Losses of tokens to one number, whole or in micro-batches."""
    values, real = table(given["token_loss"])
    mask = loss_mask(given, real)
    known = _aggregations(given)
    whole = {name: _aggregated(part, values, mask, [len(mask)]) for name, part in known.items()}
    facts: dict[str, Any] = {name: loss for name, (loss, _) in whole.items()}
    if "aggregate" not in given:
        same = len({round(loss, 9) for loss in facts.values()}) == 1
        facts["loss"] = facts["token_mean"] if same else float("nan")
        facts["grads_finite"] = all(bool(torch.isfinite(g).all()) for _, g in whole.values())
        return facts
    name = _named(given, known)
    parts = _microbatches(given, len(mask))
    loss, gradient = _aggregated(known[name], values, mask, parts)
    shapes = [int(r.sum()) for r in real]
    facts |= {
        "loss": loss,
        "grad": [row[:n].tolist() for row, n in zip(gradient, shapes, strict=True)],
        "grads_finite": bool(torch.isfinite(gradient).all()),
        "same_gradient_as_full_batch": torch.allclose(gradient, whole[name][1], atol=1e-6),
    }
    return facts


def _microbatches(given: Given, rows: int) -> list[int]:
    """Rows of each part of the step."""
    if "microbatches" in given:
        sizes = given["microbatches"]
        if isinstance(sizes, int):
            return [rows // sizes + (i < rows % sizes) for i in range(sizes)]
        return [n if isinstance(n, int) else len(n) for n in sizes]
    size = int(given.get("microbatch_size", rows)) or rows
    return [min(size, rows - at) for at in range(0, rows, size)]


def _aggregated(
    part: Aggregation, values: Tensor, mask: Tensor, sizes: Sequence[int]
) -> tuple[float, Tensor]:
    """Loss and its gradient by token loss, added up over the parts of one step."""
    if sum(sizes) != len(mask):
        raise NotYetError(f"micro-batches of {sizes} rows do not make {len(mask)} rows")
    losses = values.clone().requires_grad_()
    total, at = 0.0, 0
    for size in sizes:
        rows = slice(at, at + size)
        weights = part(batch_of(mask[rows], {}), counts_of(mask)).double()
        loss = weighted_sum(losses[rows], weights)
        loss.backward()
        total, at = total + float(loss.detach()), at + size
    gradient = torch.zeros_like(values) if losses.grad is None else losses.grad
    return total, gradient


def over_ranks(given: Given, _expected: Given) -> Facts:
    """Token mean over ranks: each holds a sum over some tokens."""
    total = sum(int(rank["tokens"]) for rank in given["ranks"])
    loss = 0.0
    for rank in given["ranks"]:
        num = int(rank["tokens"])
        mask = torch.ones(1, max(num, 1), dtype=torch.bool) if num else torch.zeros(1, 1).bool()
        values = torch.full(mask.shape, float(rank["sum"]) / max(num, 1))
        loss += float(weighted_sum(values, token_mean(mask, num_tokens=total)))
    return {"loss": loss}


def _run(term: Term, batch: TokenBatch, policy: Tensor) -> TermOut | NumericsError:
    try:
        return term(batch, ModelOut(policy_logprobs=policy), counts_of(batch.loss_mask), None)
    except NumericsError as error:
        return error


def _clip(given: Given) -> ClippedRatio | Unconstrained:
    if not {"eps", "eps_low", "eps_high"} & set(given):
        return Unconstrained()
    both = float(given.get("eps", 0.2))
    low, high = float(given.get("eps_low", both)), float(given.get("eps_high", both))
    return ClippedRatio(low=low, high=high)


def policy_loss(given: Given, expected: Given) -> Facts:
    """Losses of the policy term, from log-probs or a ready ratio."""
    name = "ratio" if "ratio" in given else "logp"
    policy, real = table(given[name])
    flat = not isinstance(given[name][0], list)
    if name == "ratio":
        policy, old = policy.log(), torch.zeros_like(policy)
    else:
        old = table(given["old_logp"])[0]
    advantages = table(given["advantage"])[0]
    if advantages.shape != policy.shape and advantages.numel() == len(policy):
        advantages = advantages.reshape(-1, 1).expand(policy.shape)
    mask = loss_mask(given, real)
    level = str(given.get("ratio_level", "token"))
    if level not in RATIOS:
        raise NotYetError(f"unknown ratio_level {level!r}")
    known = _aggregations(given)
    part = known[_named(given, known)] if "aggregate" in given else TokenMean()
    trust = _clip(given)
    term = PolicyGradient(ratio=RATIOS[level], trust=trust, aggregation=part)
    columns = {"advantages": advantages, "old_logprobs": old, "rollout_logprobs": old}
    policy = policy.clone().requires_grad_()
    out = _run(term, batch_of(mask, columns), policy)
    if isinstance(out, NumericsError):
        return {"signalled": True, REFUSED: True, "finite": False}
    out.loss.backward()
    ratio = RATIOS[level](batch_of(mask, columns), ModelOut(policy_logprobs=policy)).detach().exp()
    clipped = _clipped(trust, ratio, advantages, mask)
    share = float(clipped[mask].double().mean()) if bool(mask.any()) else 0.0
    return {
        "loss": _per_token_or_sum(out, flat, expected),
        "approx_kl": float(masked_mean(kl_k3(policy.detach(), old, mask), mask)),
        "clipped": clipped[0].tolist() if flat else clipped.tolist(),
        "fraction": share,
        "clip_fraction": share,
        "signalled": False,
        "finite": bool(torch.isfinite(out.loss)),
        "grads_finite": bool(torch.isfinite(policy.grad).all())
        if policy.grad is not None
        else True,
        "ratio": Near(ratio[0].tolist() if flat else ratio.tolist()),
    }


def _per_token_or_sum(out: TermOut, flat: bool, expected: Given) -> Any:  # noqa: FBT001
    """One loss a token where the case lists them, else the aggregated loss."""
    if isinstance(expected.get("loss"), list):
        losses = out.losses.detach()
        return losses[0].tolist() if flat else losses.tolist()
    return float(out.loss.detach())


def _clipped(
    trust: ClippedRatio | Unconstrained, ratio: Tensor, advantages: Tensor, mask: Tensor
) -> Tensor:
    """[B, T] bool, tokens whose clipped branch is taken, as the term's own metrics count them."""
    if isinstance(trust, Unconstrained):
        return torch.zeros_like(mask)
    series = trust.series(ratio, advantages, mask)
    return (series["clip_ratio/region_mean"][1] > 0) & mask


def kl_penalty(given: Given, _expected: Given) -> Facts:
    """The KL to a reference: estimates, the penalised loss, and how it behaves far out."""
    dtype = getattr(torch, given.get("dtype", "float64"))
    policy, real = table(given["logp"], dtype)
    reference = table(given["ref_logp"], dtype)[0]
    mask = loss_mask(given, real)
    name = str(given.get("kl", "k3"))
    if name not in ESTIMATORS and name != "k1":
        raise NotYetError(f"unknown kl {name!r}")
    estimates = {"k1": kl_k1, "k2": kl_k2, "k3": kl_k3}
    flat = not isinstance(given["logp"][0], list)
    each = {k: estimate(policy, reference, mask) for k, estimate in estimates.items()}
    facts: dict[str, Any] = {k: _one_or_many(v, flat=flat) for k, v in each.items()}
    facts["kl_mean"] = float(masked_mean(each[name], mask))
    if name == "k1":  # a measure, never a loss of its own
        return facts
    term = KLPenalty(beta=float(given.get("beta", 1.0)), estimator=ESTIMATORS[name])
    leaf = policy.clone().requires_grad_()
    out = _run(term, batch_of(mask, {"ref_logprobs": reference}), leaf)
    if isinstance(out, NumericsError):
        return facts | {"signalled": True, "finite": False, "counted": True}
    out.loss.backward()
    base = number(given.get("policy_loss", 0.0))
    gradient = torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
    beyond = out.metrics[BOUND].total if BOUND in out.metrics else 0.0
    return facts | {
        "loss": base + float(out.loss.detach()),
        "finite": bool(torch.isfinite(out.loss)) and bool(torch.isfinite(gradient).all()),
        "grads_finite": bool(torch.isfinite(gradient).all()),
        "counted": beyond > 0,
        "signalled": False,
    }


def _one_or_many(values: Tensor, *, flat: bool) -> Any:
    if values.numel() == 1:
        return float(values)
    return values[0].tolist() if flat else values.tolist()


def nucleus(given: Given, _expected: Given) -> Facts:
    """Trainer over engine where the engine reports log-probs among the tokens it kept."""
    mask = torch.ones(1, 1, dtype=torch.bool)
    one = torch.ones(1, 1)
    policy = one * float(given.get("trainer_logp", 0.0))
    if "full_vocab_prob" in given and "trainer_logp" not in given:
        policy = one * torch.tensor(float(given["full_vocab_prob"])).log()
    given.get("full_vocab_prob")
    columns = {
        "advantages": one,
        "rollout_logprobs": one * float(given["engine_logp"]),
        "kept_logmass": one * torch.tensor(float(given["kept_mass"])).log(),
    }
    term = PolicyGradient(ratio=TokenRatio(against="rollout_logprobs"), trust=Unconstrained())
    out = _run(term, batch_of(mask, columns), policy)
    if isinstance(out, NumericsError):
        return {REFUSED: True}
    return {"ratio": out.metrics["ratio/mean"].value}
