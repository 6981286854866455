"""The learner: one gradient however a batch is cut, laid out or accumulated; master weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.unit.build import random_groups, tiny_gpt2, tiny_llama
from tests.unit.test_batch import Plain

from posttrain.errors import ConfigError, NumericsError
from posttrain.rollout.transformers import TransformersEngine
from posttrain.trainers import forward
from posttrain.trainers.batch import build_rows, collate, count, split
from posttrain.trainers.learner import LocalLearner
from posttrain.types.engine import ScoreItem
from posttrain.types.models import AdamW, Frozen, LoRA, MovingAverage, Trained
from posttrain.types.probe import Entropy, Logprobs, TopK

SPEC = Trained(path="tiny", optimiser=AdamW(lr=1e-2), compute="float32")


def learner_with(spec=SPEC, *, layout="right", dtype=torch.float32, seed=0):
    made = LocalLearner(layout=layout)
    made.add("policy", spec, tiny_llama(dtype=dtype, seed=seed))
    return made


def gradients(learner, rows, *, max_tokens, order=None):
    rows = [rows[i] for i in order] if order is not None else rows
    counts = [count(rows)]
    loss = 0.0
    for part in split(rows, max_tokens=max_tokens, reach="token"):
        batch = collate(part, all_rows=rows)
        loss += learner.forward_backward("policy", batch, (Plain(),), counts, [None]).loss
    return loss, dict(learner.models["policy"].gradients[""])


@pytest.mark.parametrize(
    ("precision", "tolerance", "model"),
    [("float32", 1e-6, tiny_llama), ("float64", 1e-12, tiny_gpt2)],
)
def test_the_gradient_does_not_depend_on_cuts_padding_packing_or_order(precision, tolerance, model):
    spec = Trained(path="tiny", compute=precision)

    def learner_of(layout):
        made = LocalLearner(layout=layout)
        made.add("policy", spec, model(dtype=getattr(torch, precision)))
        return made

    rows = build_rows(random_groups(), (Plain(),), model="policy")
    whole = gradients(learner_of("right"), rows, max_tokens=10**6)
    shuffled = np.random.default_rng(1).permutation(len(rows))
    variants = {
        "one row at a time": ("right", 1, None),
        "small micro-batches": ("right", 40, None),
        "left padding": ("left", 10**6, None),
        "packed": ("packed", 10**6, None),
        "packed in parts": ("packed", 50, None),
        "other order": ("right", 30, shuffled),
    }
    for name, (layout, max_tokens, order) in variants.items():
        learner = learner_of(layout)
        loss, found = gradients(learner, rows, max_tokens=max_tokens, order=order)
        assert loss == pytest.approx(whole[0], rel=tolerance * 10), name
        for parameter, expected in whole[1].items():
            difference = torch.linalg.vector_norm(found[parameter] - expected)
            assert difference <= tolerance * torch.linalg.vector_norm(expected), (name, parameter)


def test_the_gradient_equals_autograd_through_the_plain_model():
    groups = random_groups(2)
    rows = build_rows(groups, (Plain(),), model="policy")
    _, found = gradients(learner_with(), rows, max_tokens=10**6)
    model = tiny_llama()
    tokens = sum(r.num_trained for r in rows)
    loss = torch.zeros(())
    for row in rows:
        ids = torch.from_numpy(row.ids).unsqueeze(0)
        logprobs = torch.log_softmax(model(input_ids=ids).logits[0, :-1].float(), -1)
        own = logprobs.gather(-1, ids[0, 1:, None])[:, 0]
        mask = torch.from_numpy(row.loss_mask[1:])
        advantages = torch.from_numpy(row.columns["advantages"][1:])
        loss = loss - (own[mask] * advantages[mask]).sum() / tokens
    loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-7)


def test_chunks_of_the_vocabulary_projection_change_nothing(monkeypatch):
    rows = build_rows(random_groups(), (Plain(),), model="policy")
    whole = gradients(learner_with(), rows, max_tokens=10**6)
    monkeypatch.setattr(forward, "CHUNK_LOGITS", 17 * 5)  # five tokens at a time
    loss, found = gradients(learner_with(), rows, max_tokens=10**6)
    assert loss == pytest.approx(whole[0], rel=1e-6)
    for name, expected in whole[1].items():
        torch.testing.assert_close(found[name], expected, rtol=1e-5, atol=1e-8)


def test_bf16_compute_moves_fp32_masters_by_less_than_bf16_can_hold():
    spec = Trained(path="tiny", optimiser=AdamW(lr=1e-6), compute="bfloat16")
    learner = learner_with(spec)
    rows = build_rows(random_groups(), (Plain(),), model="policy")
    before = {n: t.clone() for n, t in learner.models["policy"].master.items()}
    gradients(learner, rows, max_tokens=10**6)
    learner.optim_step("policy")
    held = learner.models["policy"]
    moved = {n: (held.master[n] - before[n]).abs().max().item() for n in before}
    assert held.module.lm_head.weight.dtype == torch.bfloat16
    assert all(0 < m < 2e-6 for m in moved.values()), moved
    assert learner.version("policy") == 1


def test_clipping_scales_the_whole_gradient():
    rows = build_rows(random_groups(), (Plain(),), model="policy")
    learner = learner_with(
        Trained(path="t", optimiser=AdamW(max_grad_norm=0.01), compute="float32")
    )
    _, found = gradients(learner, rows, max_tokens=10**6)
    norm = torch.cat([g.flatten() for g in found.values()]).norm().item()
    assert norm > 0.01
    assert learner.optim_step("policy")["grad_norm"] == pytest.approx(norm, rel=1e-5)
    used = torch.cat([t.grad.flatten() for t in learner.models["policy"].master.values()]).norm()
    assert used.item() == pytest.approx(0.01, rel=1e-5)


def test_scores_equal_a_plain_forward_pass_and_keep_their_order():
    learner = learner_with()
    rng = np.random.default_rng(3)
    items = [
        ScoreItem(
            model="policy",
            context=rng.integers(0, 17, n).astype(np.int32),
            target=rng.integers(0, 17, m).astype(np.int32),
            want=want,
            temperature=0.7,
        )
        for n, m, want in [
            (3, 4, Logprobs()),
            (1, 2, Entropy()),
            (6, 1, Logprobs()),
            (2, 3, TopK(2)),
        ]
    ]
    found = learner.score(items)
    model = tiny_llama()
    for item, values in zip(items, found, strict=True):
        ids = torch.from_numpy(np.concatenate([item.context, item.target]).astype(np.int64))
        with torch.no_grad():
            logits = model(input_ids=ids[None]).logits[0, len(item.context) - 1 : -1].float() / 0.7
        logprobs = torch.log_softmax(logits, -1)
        if isinstance(item.want, Logprobs):
            expected = logprobs.gather(-1, ids[len(item.context) :, None])[:, 0]
        elif isinstance(item.want, Entropy):
            expected = -(logprobs.exp() * logprobs).sum(-1)
        else:
            top = logprobs.topk(2)
            expected = torch.cat([top.values, top.indices.float()], -1)
        np.testing.assert_allclose(values, expected.numpy(), rtol=1e-5, atol=1e-5)


def test_a_state_comes_back_bit_for_bit():
    rows = build_rows(random_groups(), (Plain(),), model="policy")
    one = learner_with()
    for _ in range(2):
        gradients(one, rows, max_tokens=60)
        one.optim_step("policy")
    two = learner_with(seed=5)
    two.load_state(one.state())
    for learner in (one, two):
        gradients(learner, rows, max_tokens=60)
        learner.optim_step("policy")
    assert one.fingerprint("policy") == two.fingerprint("policy")
    assert one.version("policy") == two.version("policy") == 3


def test_an_adapter_trains_alone_and_is_merged_for_the_engine():
    spec = Trained(
        path="t", optimiser=AdamW(lr=1e-2), compute="float32", lora=LoRA(rank=2, alpha=4)
    )
    learner = learner_with(spec)
    held = learner.models["policy"]
    assert held.master
    assert all(".lora_" in n for n in held.master)
    plain = dict(tiny_llama().named_parameters())
    assert learner.export("policy").tensors.keys() == plain.keys()
    rows = build_rows(random_groups(), (Plain(),), model="policy")
    gradients(learner, rows, max_tokens=10**6)
    learner.optim_step("policy")
    merged = tiny_llama()
    merged.load_state_dict(learner.export("policy").tensors)
    ids = torch.arange(8)[None]
    with torch.no_grad():
        ours = held.module(input_ids=ids).logits
        torch.testing.assert_close(merged(input_ids=ids).logits, ours, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(tiny_llama()(input_ids=ids).logits, ours, atol=1e-4)


@pytest.mark.parametrize("lora", [None, LoRA(rank=2, alpha=4)])
def test_tied_weights_arrive_at_the_engine(lora):
    spec = Trained(path="t", optimiser=AdamW(lr=1e-2), compute="float32", lora=lora)
    learner = LocalLearner()
    learner.add("policy", spec, tiny_llama(tied=True))
    engine = TransformersEngine({"policy": tiny_llama(tied=True, seed=9)})
    rows = build_rows(random_groups(), (Plain(),), model="policy")
    for version in (0, 1):
        engine.load("policy", version, learner.export("policy"))
        assert engine.fingerprint("policy") == learner.fingerprint("policy")
        gradients(learner, rows, max_tokens=10**6)
        learner.optim_step("policy")
    assert engine.fingerprint("policy") != learner.fingerprint("policy")


def test_a_moving_average_follows_and_a_frozen_model_does_not():
    learner = learner_with()
    learner.add("ref", Frozen(path="t", compute="float32"), tiny_llama())
    learner.add("slow", MovingAverage(decay=0.75), tiny_llama())
    rows = build_rows(random_groups(), (Plain(),), model="policy")
    gradients(learner, rows, max_tokens=10**6)
    start = tiny_llama().state_dict()["lm_head.weight"]
    learner.optim_step("policy")
    new = learner.export("policy").tensors["lm_head.weight"]
    assert torch.equal(learner.export("ref").tensors["lm_head.weight"], start)
    slow = learner.export("slow").tensors["lm_head.weight"]
    torch.testing.assert_close(slow, 0.75 * start + 0.25 * new)
    with pytest.raises(ConfigError, match="ref"):
        learner.optim_step("ref")


def test_a_loss_that_is_not_finite_stops_before_the_weights_move():
    learner = learner_with()
    rows = build_rows(random_groups(), (Plain(),), model="policy")
    batch = collate(rows)
    batch.columns["advantages"][batch.loss_mask] = float("inf")
    with pytest.raises(NumericsError, match="policy"):
        learner.forward_backward("policy", batch, (Plain(),), [count(rows)], [None])


def test_a_model_with_nothing_to_train_is_refused():
    frozen = tiny_llama().requires_grad_(False)
    with pytest.raises(ConfigError, match="no trainable parameter"):
        LocalLearner().add("policy", SPEC, frozen)


def test_dropout_is_off_so_that_a_ratio_starts_at_one():
    learner = LocalLearner()
    learner.add("policy", SPEC, tiny_gpt2())
    rows = build_rows(random_groups(), (Plain(),), model="policy")
    batch = collate(rows)
    first, second = (learner.forward("policy", batch).policy_logprobs for _ in range(2))
    assert torch.equal(first, second)
