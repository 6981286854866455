"""Weights given to the transformers engine: what it takes, refuses and says it holds."""

import asyncio

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from posttrain.errors import EngineError
from posttrain.rollout.fingerprint import fingerprint
from posttrain.rollout.transformers import TransformersEngine
from posttrain.rollout.weights import noise
from posttrain.types.ask import Decode
from posttrain.types.engine import Adapter, NoiseDraw, SampleRequest, Tensors
from posttrain.types.models import fast_precision

CONTEXTS = [[3, 1, 4]]


def build(*, tied=False):
    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=29,
        hidden_size=24,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        initializer_range=0.3,
        tie_word_embeddings=tied,
    )
    return LlamaForCausalLM(config)


def fresh(**options):
    """An engine whose weights a test may change."""
    return TransformersEngine({"policy": build()}, **options)


def ask(key, ids, *, max_tokens=10):
    return SampleRequest(
        key=key,
        model="policy",
        ids=np.array(ids, np.int32),
        decode=Decode(max_tokens=max_tokens),
        stop_ids=(),
        seed=0,
    )


def run(engine, requests):
    async def collect():
        return {sample.key: sample async for sample in engine.sample(requests)}

    return asyncio.run(collect())


def test_load_changes_the_weights_the_version_and_the_fingerprint():
    engine, other = fresh(compute="bfloat16"), build()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(1.25)
    master = dict(other.named_parameters())
    before = engine.fingerprint("policy")
    engine.load("policy", 3, Tensors(master))
    assert engine.fingerprint("policy") != before
    assert engine.fingerprint("policy") == fingerprint(master, torch.bfloat16)
    engine.load("policy", 3, Tensors(other.state_dict()))  # also by every name of the state
    assert engine.fingerprint("policy") == fingerprint(master, torch.bfloat16)
    (sample,) = run(engine, [ask("a", CONTEXTS[0])]).values()
    assert (sample.version == 3).all()
    with pytest.raises(EngineError, match=r"version 3 .* given version 2"):
        engine.load("policy", 2, Tensors(master))


def test_weights_loaded_between_steps_mark_their_tokens():
    engine = fresh()
    weights = {k: v.detach().clone() for k, v in build().named_parameters()}

    async def change_midway():
        requests = [ask("short", [1, 2], max_tokens=3), ask("long", [1, 2], max_tokens=6)]
        samples = {}
        async for sample in engine.sample(requests):
            samples[sample.key] = sample
            engine.load("policy", 1, Tensors(weights))
        return samples

    samples = asyncio.run(change_midway())
    assert samples["short"].version.tolist() == [0, 0, 0]
    assert samples["long"].version.tolist() == [0, 0, 0, 1, 1, 1]


def test_weights_that_do_not_fit_are_refused_whole():
    engine = fresh()
    before = engine.fingerprint("policy")
    good = dict(build().named_parameters())
    first = min(good)
    with pytest.raises(EngineError, match=f"1 missing, the first {first!r}"):
        engine.load("policy", 1, Tensors({k: v for k, v in good.items() if k != first}))
    with pytest.raises(EngineError, match="1 unknown names"):
        engine.load("policy", 1, Tensors({**good, "model.nothing": torch.zeros(1)}))
    with pytest.raises(EngineError, match="must be of shape"):
        engine.load("policy", 1, Tensors({**good, first: torch.zeros(1)}))
    with pytest.raises(EngineError, match="merge the adapter"):
        engine.load("policy", 1, Adapter({}))
    with pytest.raises(EngineError, match="Did you mean 'policy'"):
        engine.load("polcy", 1, Tensors(good))
    assert engine.fingerprint("policy") == before


def test_a_noise_draw_is_added_to_the_delivered_weights_and_not_to_the_last_draw():
    engine = fresh()
    clean = {k: v.detach().clone() for k, v in build().named_parameters()}
    engine.load("policy", 1, NoiseDraw(seed=4, scale=0.1))
    engine.load("policy", 2, NoiseDraw(seed=5, scale=-0.2))
    drawn = {k: noise(k, v.shape, 5) for k, v in clean.items()}
    expected = {k: v - 0.2 * drawn[k] for k, v in clean.items()}
    assert engine.fingerprint("policy") == fingerprint(expected)
    everything = torch.cat([x.flatten() for x in drawn.values()])
    assert abs(float(everything.mean())) < 0.05
    assert abs(float(everything.std()) - 1.0) < 0.05
    names = [k for k in clean if "q_proj" in k]
    assert not torch.equal(drawn[names[0]], drawn[names[1]])
    engine.load("policy", 3, NoiseDraw(seed=9, scale=0.0))
    assert engine.fingerprint("policy") == fingerprint(clean)


def test_a_model_in_another_precision_is_copied_and_keeps_its_buffers():
    model = build()
    engine = TransformersEngine({"policy": model}, compute="bfloat16")
    assert model.dtype == torch.float32
    held = engine._models["policy"].model
    assert held.dtype == torch.bfloat16
    assert held.model.rotary_emb.inv_freq.dtype == torch.float32
    assert torch.equal(held.model.rotary_emb.inv_freq, model.model.rotary_emb.inv_freq)
    auto = TransformersEngine({"policy": model}, compute="auto")._models["policy"]
    assert str(auto.dtype) == f"torch.{fast_precision('cpu')}"


def test_tied_weights_have_the_fingerprint_of_the_parameters_they_came_from():
    model, other = build(tied=True), build(tied=True)
    with torch.no_grad():
        other.lm_head.weight.add_(1.0)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    engine = TransformersEngine({"policy": model})
    engine.load("policy", 1, Tensors(other.state_dict()))
    assert torch.equal(model.model.embed_tokens.weight, other.lm_head.weight)
    assert engine.fingerprint("policy") == fingerprint(dict(other.named_parameters()))
    copies = {name: tensor.clone() for name, tensor in other.named_parameters()}
    assert engine.fingerprint("policy") == fingerprint(copies)
