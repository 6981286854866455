"""The transformers engine on random tiny models of several families, against plain forwards."""

import asyncio
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from transformers import (
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MambaConfig,
    MambaForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from posttrain.errors import ConfigError, EngineError, NumericsError
from posttrain.rollout.transformers import TransformersEngine
from posttrain.types.ask import Decode, StopWhen
from posttrain.types.engine import SampleRequest, ScoreItem
from posttrain.types.episode import Stop
from posttrain.types.probe import Entropy, Hidden, Logprobs, TopK, Value

V = 29
SIZES = {
    "vocab_size": V,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "initializer_range": 0.3,
}
LLAMA = LlamaConfig(**SIZES, pad_token_id=None, bos_token_id=1, eos_token_id=None)


def build(family):
    torch.manual_seed(1)
    ends = {"pad_token_id": None, "bos_token_id": 1, "eos_token_id": None}
    if family == "llama":
        return LlamaForCausalLM(LLAMA)
    if family == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SIZES, **ends, head_dim=8))
    if family == "gemma2":  # softcaps, and a sliding window shorter than the contexts
        config = Gemma2Config(
            **SIZES,
            **ends,
            head_dim=8,
            sliding_window=4,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=1.5,
            query_pre_attn_scalar=8,
        )
        return Gemma2ForCausalLM(config)
    return GPT2LMHeadModel(
        GPT2Config(
            vocab_size=V,
            n_embd=24,
            n_layer=2,
            n_head=4,
            n_positions=64,
            initializer_range=0.3,
            bos_token_id=1,
            eos_token_id=None,
        )
    )


FAMILIES = ["llama", "qwen3", "gemma2", "gpt2"]
MODELS = {family: build(family).eval() for family in FAMILIES}


def engine_of(family="llama", **options):
    return TransformersEngine({"policy": MODELS[family]}, **options)


def ask(key, ids, *, seed=0, drawn=(), stop_ids=(), model="policy", **decode):
    return SampleRequest(
        key=str(key),
        model=model,
        ids=np.array(ids, np.int32),
        decode=Decode(**{"max_tokens": 10, **decode}),
        stop_ids=tuple(stop_ids),
        seed=seed,
        drawn=tuple(drawn),
    )


def item(context, target, want=None, temperature=1.0, model="policy"):
    return ScoreItem(
        model=model,
        context=np.array(context, np.int32),
        target=np.array(target, np.int32),
        want=want or Logprobs(),
        temperature=temperature,
    )


def run(engine, requests):
    async def collect():
        return {sample.key: sample async for sample in engine.sample(requests)}

    return asyncio.run(collect())


@torch.inference_mode()
def forward(family, ids):
    """Logits of one sequence by one plain call, [tokens, V]."""
    return MODELS[family](input_ids=torch.tensor([list(map(int, ids))])).logits[0]


def plain_logprobs(family, context, target, temperature=1.0):
    rows = forward(family, [*context, *target])[len(context) - 1 : -1] / temperature
    return rows.log_softmax(-1).gather(1, torch.tensor(target).long()[:, None]).squeeze(1).numpy()


CONTEXTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3], [5], [8, 9, 7, 9, 3, 2, 3, 8, 4, 6, 2]]
ENDS = (7, 3, 11, 20)


@pytest.mark.parametrize("family", FAMILIES)
def test_padded_batches_report_the_log_probs_of_plain_forwards(family):
    requests = [
        ask(i, CONTEXTS[i % 4], seed=i, stop_ids=ENDS, temperature=(1.0, 0.7)[i % 2], max_tokens=14)
        for i in range(8)
    ]
    samples = run(engine_of(family), requests)
    assert {s.stop for s in samples.values()} == {Stop.COMPLETED, Stop.MAX_TOKENS}
    for request in requests:
        sample = samples[request.key]
        expected = plain_logprobs(
            family, request.ids.tolist(), sample.ids.tolist(), request.decode.temperature
        )
        np.testing.assert_allclose(sample.logprobs, expected, rtol=0, atol=1e-5)
        assert sample.kept_logmass is None
        assert sample.ids.dtype == np.int32
        ended = bool(set(ENDS) & set(sample.ids))
        assert ended == (sample.stop is Stop.COMPLETED)
        assert ended == (len(sample.ids) < 14 or sample.ids[-1] in ENDS)


@pytest.mark.parametrize("family", FAMILIES)
def test_greedy_is_what_generate_gives(family):
    samples = run(engine_of(family), [ask(i, c, temperature=0.0) for i, c in enumerate(CONTEXTS)])
    for i, context in enumerate(CONTEXTS):
        ids = torch.tensor([context])
        out = MODELS[family].generate(
            ids,
            attention_mask=torch.ones_like(ids),
            do_sample=False,
            max_new_tokens=10,
            pad_token_id=0,
        )
        sample = samples[str(i)]
        assert sample.ids.tolist() == out[0, len(context) :].tolist()
        assert (sample.logprobs == 0).all()
        whole = plain_logprobs(family, context, sample.ids.tolist())
        np.testing.assert_allclose(sample.kept_logmass, whole, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_score_gives_what_a_plain_forward_gives(family):
    g = np.random.default_rng(2)
    pairs = [(CONTEXTS[i % 4], g.integers(0, V, 3 + 2 * i).tolist()) for i in range(5)]
    items = [item(c, t, temperature=0.6) for c, t in pairs]
    items += [item(c, t, TopK(3)) for c, t in pairs]
    items += [item(c, t, Entropy(), temperature=2.0) for c, t in pairs]
    items += [item(c, t, Hidden(-1)) for c, t in pairs] + [item(c, t, Hidden(1)) for c, t in pairs]
    found = engine_of(family, max_rows=3).score(items)
    assert all(array.dtype == np.float32 for array in found)
    for i, (c, t) in enumerate(pairs):
        with torch.inference_mode():
            out = MODELS[family](input_ids=torch.tensor([c + t]), output_hidden_states=True)
        logits = out.logits[0, len(c) - 1 : -1]
        expected = plain_logprobs(family, c, t, 0.6)
        np.testing.assert_allclose(found[i], expected, rtol=0, atol=1e-5)
        values, ids = logits.log_softmax(-1).topk(3)
        np.testing.assert_allclose(found[5 + i][:, :3], values, rtol=0, atol=1e-5)
        assert (found[5 + i][:, 3:] == ids.numpy()).all()
        logprobs = (logits / 2.0).log_softmax(-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        np.testing.assert_allclose(found[10 + i], entropy, rtol=0, atol=1e-5)
        for at, layer in ((15, -1), (20, 1)):
            hidden = out.hidden_states[layer][0, len(c) :]
            np.testing.assert_allclose(found[at + i], hidden, rtol=0, atol=1e-4)


def test_scores_in_small_pieces_are_the_same(monkeypatch):
    items = [item(c, [2, 7, 1, 8, 2, 8, 1]) for c in CONTEXTS] + [item([1], [2] * 6, Hidden())]
    whole = engine_of().score(items)
    monkeypatch.setattr("posttrain.rollout.causal._PIECE_TOKENS", 8)
    monkeypatch.setattr("posttrain.rollout.prefill._TOKENS", 12)
    pieces = engine_of().score(items)
    for one, two in zip(whole, pieces, strict=True):
        np.testing.assert_allclose(one, two, rtol=0, atol=1e-5)


def test_rows_of_one_context_share_its_prefill_and_equal_separate_ones(monkeypatch):
    from posttrain.rollout.causal import CausalModel

    widths = []
    plain = CausalModel.logits

    def counted(self, ids, **options):
        widths.append(tuple(ids.shape))
        return plain(self, ids, **options)

    monkeypatch.setattr(CausalModel, "logits", counted)
    requests = [ask(i, CONTEXTS[1], seed=i, max_tokens=5) for i in range(6)]
    together = run(engine_of(), requests)
    assert widths[0] == (1, 7)
    assert widths[1] == (6, 1)
    apart = [run(engine_of(), [request]) for request in requests]
    for request, alone in zip(requests, apart, strict=True):
        one, two = together[request.key], alone[request.key]
        assert one.ids.tolist() == two.ids.tolist()
        np.testing.assert_allclose(one.logprobs, two.logprobs, rtol=0, atol=1e-5)
    assert len({tuple(s.ids) for s in together.values()}) == 6  # seeds differ


def test_equal_calls_give_equal_bits_and_further_batches_follow_in_order():
    requests = [
        ask(i, CONTEXTS[i % 4], seed=i % 7, stop_ids=(7, 3), top_p=0.9, max_tokens=12)
        for i in range(11)
    ]
    first, second = run(engine_of(max_rows=4), requests), run(engine_of(max_rows=4), requests)
    assert list(first) == list(second)
    for key, one in first.items():
        assert (one.ids == second[key].ids).all()
        assert (one.logprobs == second[key].logprobs).all()
        assert (one.kept_logmass == second[key].kept_logmass).all()
    batch = [int(key) // 4 for key in first]
    assert batch == sorted(batch)


def test_rows_may_differ_in_every_setting():
    requests = [
        ask("plain", CONTEXTS[0], seed=1),
        ask("greedy", CONTEXTS[1], temperature=0.0, max_tokens=3),
        ask("top_k", CONTEXTS[2], seed=2, top_k=2, max_tokens=8),
        ask("hot", CONTEXTS[3], seed=3, temperature=2.0, min_p=0.1, stop_ids=(4, 5, 6)),
    ]
    together = run(engine_of(), requests)
    for request in requests:
        alone = run(engine_of(), [request])[request.key]
        sample = together[request.key]
        assert sample.ids.tolist() == alone.ids.tolist()
        np.testing.assert_allclose(sample.logprobs, alone.logprobs, rtol=0, atol=1e-5)
        tau = request.decode.temperature or 1.0
        whole = plain_logprobs("llama", request.ids.tolist(), sample.ids.tolist(), tau)
        kept = 0.0 if sample.kept_logmass is None else sample.kept_logmass
        np.testing.assert_allclose(sample.logprobs + kept, whole, rtol=0, atol=1e-5)
    assert (together["top_k"].kept_logmass < 0).all()


def test_a_segment_goes_on_after_an_interruption_as_it_would_have():
    (whole,) = run(engine_of(), [ask("a", CONTEXTS[1], seed=5)]).values()
    request = ask("a", CONTEXTS[1], seed=5, drawn=whole.ids[:4].tolist())
    (rest,) = run(engine_of(), [request]).values()
    assert rest.ids.tolist() == whole.ids[4:].tolist()
    np.testing.assert_allclose(rest.logprobs, whole.logprobs[4:], rtol=0, atol=1e-5)
    assert rest.stop is Stop.MAX_TOKENS


def test_forced_tokens_come_first_without_log_prob():
    requests = [
        ask("a", CONTEXTS[0], forced=(7, 8), stop_ids=(7,), max_tokens=4),
        ask("cut", CONTEXTS[0], forced=(7, 8), max_tokens=1),
        ask("later", CONTEXTS[0], forced=(7, 8), drawn=(7,), max_tokens=4),
    ]
    samples = run(engine_of(), requests)
    sample = samples["a"]
    assert sample.ids[:2].tolist() == [7, 8]
    assert np.isnan(sample.logprobs[:2]).all()
    assert sample.version[:2].tolist() == [-1, -1]
    drawn = sample.ids[2:].tolist()
    expected = plain_logprobs("llama", [*CONTEXTS[0], 7, 8], drawn)
    np.testing.assert_allclose(sample.logprobs[2:], expected, rtol=0, atol=1e-5)
    assert (samples["cut"].ids.tolist(), samples["cut"].stop) == ([7], Stop.MAX_TOKENS)
    assert samples["later"].ids[0] == 8
    assert len(samples["later"].ids) == 3


def test_the_models_context_is_never_exceeded():
    requests = [
        ask("fits", [1] * 60, max_tokens=4),
        ask("short", [1] * 60, max_tokens=9),
        ask("full", [1] * 64),
    ]
    for family in ("llama", "gpt2"):
        samples = run(engine_of(family), requests)
        found = {key: (len(s.ids), s.stop) for key, s in samples.items()}
        assert found == {
            "fits": (4, Stop.MAX_TOKENS),
            "short": (4, Stop.MAX_CONTEXT),
            "full": (0, Stop.MAX_CONTEXT),
        }


def letters(ids):
    return "".join(chr(97 + i) if i < 26 else "-" for i in ids)


@dataclass(frozen=True)
class Unlikely(StopWhen):
    least: float

    def __call__(self, ids, logprobs):
        return logprobs[-1] < self.least


def test_stop_strings_and_rules_end_at_their_token():
    engine = engine_of(decode={"policy": letters})
    free = run(engine, [ask(i, CONTEXTS[i % 4], seed=i) for i in range(6)])
    requests, expected = [], {}
    for key, sample in free.items():
        text = letters(sample.ids)
        requests.append(ask(key, CONTEXTS[int(key) % 4], seed=int(key), stop=(text[3:5], "----")))
        expected[key] = text[: text.index(text[3:5]) + 2]
    ended = run(engine, requests)
    assert {key: letters(s.ids) for key, s in ended.items()} == expected
    assert all(s.stop is Stop.STOP_STRING for s in ended.values())

    least = float(np.sort(free["0"].logprobs)[2]) + 1e-3
    (ruled,) = run(engine, [ask("0", CONTEXTS[0], stop_when=Unlikely(least))]).values()
    assert len(ruled.ids) == 1 + int(np.argmax(free["0"].logprobs < least))
    assert ruled.stop is Stop.STOP_STRING
    with pytest.raises(ConfigError, match="no decode function"):
        run(engine_of(), requests)


def test_long_segments_outgrow_the_first_buffers(monkeypatch):
    requests = [ask(i, CONTEXTS[i], seed=i, stop_ids=(7,), max_tokens=40) for i in range(4)]
    roomy = run(engine_of(), requests)
    monkeypatch.setattr("posttrain.rollout.decoding._ROOM", 2)
    monkeypatch.setattr("posttrain.rollout.decoding._UNIFORMS", 4)
    monkeypatch.setattr("posttrain.rollout.kv_cache._LEAST_ROOM", 3)
    samples = run(engine_of(), requests)
    assert max(len(s.ids) for s in samples.values()) > 15
    for request in requests:
        sample = samples[request.key]
        assert sample.ids.tolist() == roomy[request.key].ids.tolist()
        expected = plain_logprobs("llama", request.ids.tolist(), sample.ids.tolist())
        np.testing.assert_allclose(sample.logprobs, expected, rtol=0, atol=1e-5)


def test_several_models_in_one_call():
    models = {name: MODELS[name] for name in ("llama", "gpt2")}
    engine = TransformersEngine(models)
    requests = [ask(i, CONTEXTS[i], model=("gpt2", "llama")[i % 2], seed=i) for i in range(4)]
    samples = run(engine, requests)
    for request in requests:
        sample = samples[request.key]
        expected = plain_logprobs(request.model, request.ids.tolist(), sample.ids.tolist())
        np.testing.assert_allclose(sample.logprobs, expected, rtol=0, atol=1e-5)
    targets = [samples[r.key].ids for r in requests]
    pairs = zip(requests, targets, strict=True)
    found = engine.score([item(r.ids, t, model=r.model) for r, t in pairs])
    for request, scored in zip(requests, found, strict=True):
        np.testing.assert_allclose(scored, samples[request.key].logprobs, rtol=0, atol=1e-5)


def test_other_tasks_run_between_the_steps():
    async def together():
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                ticks += 1
                await asyncio.sleep(0)

        ticking = asyncio.create_task(tick())
        async for _ in engine_of().sample([ask("a", [1, 2], max_tokens=8)]):
            break
        ticking.cancel()
        return ticks

    assert asyncio.run(together()) >= 8


def test_what_cannot_be_done_is_refused_with_a_reason():
    engine = engine_of()
    assert engine.score([]) == []
    assert run(engine, []) == {}
    shapes = engine.score([item([1], []), item([1], [], TopK(2)), item([], [], Hidden())])
    assert [array.shape for array in shapes] == [(0,), (0, 4), (0, 24)]
    with pytest.raises(EngineError, match="no context ids"):
        run(engine, [ask("a", [])])
    with pytest.raises(EngineError, match="empty context"):
        engine.score([item([], [1])])
    with pytest.raises(EngineError, match="reads 64"):
        engine.score([item([1] * 60, [1] * 5)])
    with pytest.raises(ConfigError, match="capability 'value'"):
        engine.score([item([1], [1], Value())])
    with pytest.raises(ConfigError, match="capability 'mixture'"):
        run(engine, [ask("a", [1], mixture=("policy", 0.5))])
    with pytest.raises(EngineError, match=r"in \[-3, 2\]"):
        engine.score([item([1], [1], Hidden(3))])
    with pytest.raises(EngineError, match=r"TopK.k must be in \[1, 29\]"):
        engine.score([item([1], [1], TopK(30))])
    with pytest.raises(ConfigError, match="max_rows"):
        engine_of(max_rows=0)
    mamba = MambaForCausalLM(MambaConfig(vocab_size=5, hidden_size=8, num_hidden_layers=1))
    with pytest.raises(ConfigError, match="keys and values by position"):
        TransformersEngine({"policy": mamba})
    broken = build("llama")
    with torch.no_grad():
        broken.lm_head.weight[3] = float("nan")
    with pytest.raises(NumericsError, match="rows"):
        run(TransformersEngine({"policy": broken}), [ask("a", [1])])
