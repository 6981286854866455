"""Loss cases on what is measured: log-probs of logits, a first update, pass@k, length penalties."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.errors import DataError
from posttrain.objectives.entropy import entropy_from_logits, token_logprobs
from posttrain.objectives.estimators import pass_at_k as unbiased_pass_at_k
from posttrain.objectives.lengths import soft_overlong
from posttrain.parts.ratios import TokenRatio
from posttrain.parts.terms import KLPenalty, PolicyGradient
from posttrain.rollout.scripted import ScriptedEngine
from posttrain.testing.case_file import REFUSED, Either, Facts, Given, Near, NotYetError
from posttrain.trainers.batch import Row, collate, count
from posttrain.trainers.learner import LocalLearner
from posttrain.types.engine import ScoreItem
from posttrain.types.models import Frozen, Trained
from posttrain.types.probe import Logprobs

_VOCABULARY = 19
_REFUSALS = Either((True, "raises", "refused", "error", "an error", "raises an error"))


def tiny_model(*, dropout: float = 0.0, seed: int = 0, vocabulary: int = _VOCABULARY) -> Any:
    """A Llama of a few thousand parameters."""
    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 24,
        "intermediate_size": 40,
        "num_hidden_layers": 2,
        "num_attention_heads": 3,
        "num_key_value_heads": 3,
        "max_position_embeddings": 256,
        "attention_dropout": dropout,
        "attn_implementation": "eager",
    }
    return LlamaForCausalLM(LlamaConfig(**sizes))


def first_update(given: Given, _expected: Given) -> Facts:
    """Ratio, KL and clipping of the first update, as the learner computes them."""
    found = [float(w) for w in str(given["model"]).replace(",", " ").split() if _is_number(w)]
    if given["updates_since_sampling"] != 0 or given["policy_equals_reference"] is not True:
        raise NotYetError("only the first on-policy update with policy = reference is known")
    dropout = found[0] if found else 0.0
    learner = LocalLearner()
    learner.add("policy", Trained(path="-", compute="float32"), tiny_model(dropout=dropout))
    learner.add("ref", Frozen(compute="float32"), tiny_model(dropout=dropout))
    rng = np.random.default_rng(0)
    rows = [_scored_row(learner, rng.integers(0, _VOCABULARY, 11), place) for place in range(5)]
    terms = (PolicyGradient(ratio=TokenRatio()), KLPenalty(beta=1.0))
    batch, sizes = collate(rows), count(rows)
    out = learner.forward_backward("policy", batch, terms, [sizes] * 2, [None] * 2)
    metrics = out.metrics
    furthest = max(abs(metrics[f"ratio/{end}"].value - 1.0) for end in ("min", "max"))
    return {
        "ratio": Near(1.0 + furthest, 1e-5),
        "kl": Near(metrics["kl"].value, 1e-5),
        "clip_fraction": metrics["clip_ratio/region_mean"].value,
    }


def _scored_row(learner: LocalLearner, ids: np.ndarray, place: int) -> Row:
    """A row of 4 prompt tokens and a completion, its columns probed like a run's."""
    names = {"old_logprobs": "policy", "rollout_logprobs": "policy", "ref_logprobs": "ref"}
    columns = {}
    for name, model in names.items():
        item = ScoreItem(model=model, context=ids[:4], target=ids[4:], want=Logprobs())
        scored = learner.score([item])[0]
        columns[name] = np.concatenate([np.full(4, np.nan, np.float32), scored])
    columns["advantages"] = np.full(len(ids), (-1.0) ** place, np.float32)
    return Row(
        ids=ids.astype(np.int64),
        loss_mask=np.arange(len(ids)) >= 4,
        temperature=np.ones(len(ids), np.float32),
        segment=np.full(len(ids), place),
        columns=columns,
        episode=place,
        group=0,
    )


def _is_number(word: str) -> bool:
    return word.replace(".", "", 1).isdigit()


def shifted_logprobs(given: Given, _expected: Given) -> Facts:
    """Log-probs of tokens given the row of the token *before* each."""
    probs = [np.asarray(row, np.float64) for row in given["probs_after_position"]]
    name = next((n for n in ("tokens", "ids", "input_ids", "token_ids") if n in given), None)
    if name is None:
        raise NotYetError("the tokens to score are under no known key")
    ids = np.asarray(given[name], np.int32)
    engine = ScriptedEngine(lambda seen: probs[len(seen) - 1])
    item = ScoreItem(model="policy", context=ids[:1], target=ids[1:3], want=Logprobs())
    return {"logp_of_tokens_1_and_2": Near(engine.score([item])[0].tolist())}


def token_logprob(given: Given, _expected: Given) -> Facts:
    """Log-prob of a token under logits at the sampling temperature."""
    logits = torch.tensor(given["logits"], dtype=torch.float64)
    tau = float(given.get("temperature", 1.0))
    tokens = torch.tensor(given["token"])
    if logits.ndim == 1:
        logits, tokens = logits.unsqueeze(0), tokens.reshape(1)
    found = token_logprobs(logits, tokens, temperature=tau)
    values: Any = float(found) if found.numel() == 1 else found.tolist()
    entropy = entropy_from_logits(logits, temperature=tau)
    return {
        "logp": Near(values),
        "logprob": Near(values),
        "prob": Near(math.exp(values) if isinstance(values, float) else found.exp().tolist()),
        "entropy": Near(float(entropy) if entropy.numel() == 1 else entropy.tolist()),
    }


def length_penalty(given: Given, _expected: Given) -> Facts:
    """The soft penalty near the length limit."""
    lengths = torch.tensor(given["lengths"])
    limit, cache = int(given["max_len"]), int(given["cache"])
    found = soft_overlong(lengths, max_tokens=limit, cache_tokens=cache)
    return {"penalty": Near(found.tolist())}


def pass_at_k(given: Given, _expected: Given) -> Facts:
    """Unbiased pass@k, one k or several, and a second request beside it."""
    n, c, asked = int(given["n"]), int(given["c"]), given["k"]
    facts: dict[str, Any] = {}
    try:
        many = [
            unbiased_pass_at_k(n, c, int(k))
            for k in (asked if isinstance(asked, list) else [asked])
        ]
    except DataError:
        facts |= {REFUSED: True, "raises": True, "k_greater_than_n": _REFUSALS}
        many = []
    else:
        facts |= {"raises": False, "pass_at_k": Near(many if isinstance(asked, list) else many[0])}
    for k in range(1, n + 1):
        facts[f"pass_at_{k}"] = Near(unbiased_pass_at_k(n, c, k))
    if "also" in given:
        facts["k_greater_than_n"] = _also(given["also"], n, c)
    return facts


def _also(request: dict[str, Any], n: int, c: int) -> Any:
    """What a second request gives, with the first one's numbers where it has none."""
    unknown = set(request) - {"n", "c", "k"}
    if unknown:
        raise NotYetError(f"unknown key of also: {sorted(unknown)[0]!r}")
    try:
        value = unbiased_pass_at_k(int(request.get("n", n)), int(request.get("c", c)),
                                   int(request["k"]))  # fmt: skip
    except DataError:
        return _REFUSALS
    return Near(value)
