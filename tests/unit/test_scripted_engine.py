"""The scripted engine: what it says, how it stops, what it reports, and trouble on demand."""

import asyncio
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import pytest
import torch

from posttrain.errors import ConfigError, EngineError
from posttrain.rollout.fingerprint import fingerprint
from posttrain.rollout.scripted import ScriptedEngine, Trouble
from posttrain.rollout.tabular import TabularSoftmax
from posttrain.types.ask import Decode, StopWhen
from posttrain.types.engine import NoiseDraw, SampleRequest, ScoreItem, Tensors
from posttrain.types.episode import Stop
from posttrain.types.probe import Entropy, Hidden, Logprobs, TopK

END = 0


def ask(key="a", ids=(1, 2), *, model="policy", seed=3, drawn=(), stop_ids=(END,), **decode):
    return SampleRequest(
        key=key,
        model=model,
        ids=np.array(ids, np.int32),
        decode=Decode(**decode),
        stop_ids=stop_ids,
        seed=seed,
        drawn=tuple(drawn),
    )


def run(engine, *requests):
    async def collect():
        return [sample async for sample in engine.sample(requests)]

    return asyncio.run(collect())


def uniform16(ids):
    return np.full(16, 1 / 16)


def encode(text):
    return [ord(c) for c in text]


def decode(ids):
    return "".join(map(chr, ids))


def test_a_uniform_policy_reports_its_log_probs_and_repeats_itself():
    engine = ScriptedEngine(next_token=uniform16)
    requests = [ask(f"k{i}", seed=i, max_tokens=40) for i in range(20)]
    first, second = run(engine, *requests), run(engine, *requests)
    assert [s.key for s in first] == [f"k{i}" for i in range(20)]
    for one, two in zip(first, second, strict=True):
        assert one.ids.tolist() == two.ids.tolist()
        np.testing.assert_allclose(one.logprobs, np.log(1 / 16), rtol=0, atol=1e-6)
        assert (one.version == 0).all()
        assert one.kept_logmass is None
        completed = one.ids[-1] == END
        assert one.stop is (Stop.COMPLETED if completed else Stop.MAX_TOKENS)
        assert END not in one.ids[:-1]
        assert completed or len(one.ids) == 40
    assert {s.stop for s in first} == {Stop.COMPLETED, Stop.MAX_TOKENS}
    assert len({tuple(s.ids) for s in first}) >= 18
    assert len(engine.requests) == 40


def test_samples_do_not_depend_on_the_other_requests():
    engine = ScriptedEngine(next_token=uniform16)
    many = run(engine, *[ask(f"k{i}", seed=i) for i in range(5)])
    (alone,) = run(engine, ask("k3", seed=3))
    assert alone.ids.tolist() == many[3].ids.tolist()


def test_a_segment_goes_on_as_it_would_have():
    engine = ScriptedEngine(next_token=uniform16)
    (whole,) = run(engine, ask(seed=1, max_tokens=9, stop_ids=()))
    (rest,) = run(engine, ask(seed=1, max_tokens=9, stop_ids=(), drawn=whole.ids[:4].tolist()))
    assert rest.ids.tolist() == whole.ids[4:].tolist()
    assert rest.stop is Stop.MAX_TOKENS


def test_forced_tokens_come_first_and_never_end_the_segment():
    engine = ScriptedEngine(next_token=lambda ids: [0.0, 1.0, 0.0])
    (sample,) = run(engine, ask(forced=(END, 2), max_tokens=3))
    assert sample.ids.tolist() == [END, 2, 1]
    assert np.isnan(sample.logprobs).tolist() == [True, True, False]
    (short,) = run(engine, ask(forced=(END, 2), max_tokens=1))
    assert short.ids.tolist() == [END]
    (later,) = run(engine, ask(forced=(END, 2), drawn=(END,), max_tokens=4))
    assert later.ids.tolist() == [2, 1, 1]


def test_the_context_limit_bounds_context_and_segment_together():
    engine = ScriptedEngine(next_token=lambda ids: [0.0, 1.0], max_context=5)
    short, exact, full, later = run(
        engine,
        ask("short", (1, 1), max_tokens=9),
        ask("exact", (1, 1), max_tokens=3),
        ask("full", (1,) * 6),
        ask("later", (1, 1), drawn=(1, 1), max_tokens=9),
    )
    assert (len(short.ids), short.stop) == (3, Stop.MAX_CONTEXT)
    assert (len(exact.ids), exact.stop) == (3, Stop.MAX_TOKENS)
    assert (len(full.ids), full.stop) == (0, Stop.MAX_CONTEXT)
    assert (len(later.ids), later.stop) == (1, Stop.MAX_CONTEXT)


def test_filters_give_kept_mass():
    engine = ScriptedEngine(next_token=lambda ids: [0.1, 0.6, 0.3])
    (sample,) = run(engine, ask(top_k=2, max_tokens=4))
    shares = {1: 0.6 / 0.9, 2: 0.3 / 0.9}
    expected = np.log([shares[i] for i in sample.ids])
    np.testing.assert_allclose(sample.logprobs, expected, rtol=0, atol=1e-6)
    np.testing.assert_allclose(sample.kept_logmass, np.log(0.9), rtol=0, atol=1e-6)


def test_a_stop_string_ends_at_the_token_that_completes_it():
    text = "to be or not to be"
    engine = ScriptedEngine(reply=lambda _: encode(text), encode=encode, decode=decode)
    (sample,) = run(engine, ask(stop=("not", "or n")))
    assert decode(sample.ids) == "to be or n"
    assert sample.stop is Stop.STOP_STRING
    (second,) = run(engine, ask(stop=("be",), forced=tuple(encode("to be"))))
    assert decode(second.ids) == "to be or not to be"  # the forced one does not count
    assert second.stop is Stop.STOP_STRING
    with pytest.raises(ConfigError, match="no decode function"):
        run(ScriptedEngine(next_token=uniform16), ask(stop=("x",)))


@dataclass(frozen=True)
class After(StopWhen):
    n: int

    def __call__(self, ids, logprobs):
        return len(ids) >= self.n and len(logprobs) == len(ids)


def test_a_rule_ends_a_segment():
    engine = ScriptedEngine(next_token=lambda ids: [0.0, 1.0])
    (sample,) = run(engine, ask(stop_when=After(3)))
    assert (len(sample.ids), sample.stop) == (3, Stop.STOP_STRING)
    plain = ScriptedEngine(next_token=uniform16, capabilities=frozenset())
    with pytest.raises(ConfigError, match="capability 'stop_when'"):
        run(plain, ask(stop_when=After(3)))


def test_replies_are_found_by_the_newest_piece_of_the_context():
    replies = {"Q:": "first", "and?": "second", "Q: 2": "longer"}
    engine = ScriptedEngine(reply=replies, encode=encode, decode=decode)
    one, two, three = run(
        engine,
        ask("1", encode("Q: 1")),
        ask("2", encode("Q: 1 first and?")),
        ask("3", encode("Q: 2")),
    )
    assert [decode(s.ids) for s in (one, two, three)] == ["first\0", "second\0", "longer\0"]
    assert all(s.stop is Stop.COMPLETED and (s.logprobs == 0).all() for s in (one, two, three))
    with pytest.raises(EngineError, match="no scripted reply"):
        run(engine, ask("4", encode("hello")))
    (cut,) = run(engine, ask("1", encode("Q: 1"), max_tokens=2))
    assert (decode(cut.ids), cut.stop) == ("fi", Stop.MAX_TOKENS)


def test_trouble_delays_fails_and_cuts():
    trouble = {
        "slow": Trouble(delay_s=0.05),
        "cut": Trouble(after=2),
        "never": Trouble(after=99),
    }
    engine = ScriptedEngine(reply=lambda _: (5, 6, 7), trouble=lambda r: trouble.get(r.key))
    start = perf_counter()
    samples = run(engine, ask("slow"), ask("cut"), ask("never"), ask("plain"))
    assert perf_counter() - start >= 0.05
    assert [s.key for s in samples] == ["cut", "never", "plain", "slow"]
    assert [len(s.ids) for s in samples] == [2, 3, 3, 3]
    assert [s.stop for s in samples] == [Stop.FAILED, *[Stop.COMPLETED] * 3]

    broken = ScriptedEngine(
        reply=lambda _: (5,),
        trouble=lambda r: Trouble(error=OSError("gone")) if r.key == "b" else None,
    )
    with pytest.raises(OSError, match="gone"):
        run(broken, ask("a"), ask("b"))


def test_closing_early_leaves_the_rest():
    async def first_two():
        engine = ScriptedEngine(next_token=uniform16)
        samples = engine.sample([ask(f"k{i}") for i in range(5)])
        got = [(await anext(samples)).key, (await anext(samples)).key]
        await samples.aclose()
        return got

    assert asyncio.run(first_two()) == ["k0", "k1"]


def test_score_agrees_with_what_was_drawn():
    probs = {1: [0.1, 0.6, 0.3], 2: [0.2, 0.2, 0.6]}
    engine = ScriptedEngine(next_token=lambda ids: probs[max(ids[-1], 1)])
    (sample,) = run(engine, ask(temperature=0.5, max_tokens=6, stop_ids=()))

    def item(want, temperature=1.0, target=sample.ids):
        return ScoreItem(
            model="policy",
            context=np.array([1, 2], np.int32),
            target=np.array(target, np.int32),
            want=want,
            temperature=temperature,
        )

    same, top, entropy, none = engine.score(
        [
            item(Logprobs(), 0.5),
            item(TopK(2), target=[0, 1]),
            item(Entropy(), target=[1]),
            item(TopK(2), target=[]),
        ]
    )
    np.testing.assert_allclose(same, sample.logprobs, rtol=0, atol=1e-6)
    assert top.shape == (2, 4)
    # after ids (1, 2): 0.6 for id 2, then 0.2 for id 0 or 1; after (1, 2, 0): 0.6 and 0.3
    np.testing.assert_allclose(np.exp(top[:, :2]), [[0.6, 0.2], [0.6, 0.3]], rtol=0, atol=1e-6)
    assert top[:, 2].tolist() == [2.0, 1.0]
    np.testing.assert_allclose(entropy, [0.950271], rtol=0, atol=1e-5)
    assert none.shape == (0, 4)
    with pytest.raises(ConfigError, match="capability 'hidden'"):
        engine.score([item(Hidden())])
    with pytest.raises(EngineError, match="no distribution"):
        ScriptedEngine(reply=lambda _: ()).score([item(Logprobs())])


def test_a_mixture_draws_from_the_weighted_distribution():
    engine = ScriptedEngine(
        next_token={"policy": lambda ids: [0.8, 0.2, 0.0], "other": lambda ids: [0.0, 0.2, 0.8]}
    )
    (sample,) = run(engine, ask(mixture=("other", 0.25), max_tokens=50, stop_ids=()))
    expected = np.log([0.6, 0.2, 0.2])[sample.ids]
    np.testing.assert_allclose(sample.logprobs, expected, rtol=0, atol=1e-6)
    assert set(sample.ids) == {0, 1, 2}
    with pytest.raises(EngineError, match="Did you mean 'other'"):
        run(engine, ask(mixture=("othr", 0.25)))


def test_weights_reach_a_tabular_policy_with_version_and_fingerprint():
    policy = TabularSoftmax(torch.zeros(2, 3), state=lambda ids: ids[-1] % 2)
    engine = ScriptedEngine(next_token=policy)
    table = torch.tensor([[0.0, 50.0, 0.0], [50.0, 0.0, 0.0]])
    engine.load("policy", 4, Tensors({"logits": table}))
    (sample,) = run(engine, ask(ids=(2,), max_tokens=3, stop_ids=()))
    assert sample.ids.tolist() == [1, 0, 1]
    assert sample.version.tolist() == [4, 4, 4]
    assert engine.fingerprint("policy") == fingerprint({"logits": table})
    assert engine.fingerprint("policy") != fingerprint({"logits": table.flip(0)})
    with pytest.raises(EngineError, match=r"version 4 .* given version 3"):
        engine.load("policy", 3, Tensors({"logits": table}))
    with pytest.raises(EngineError, match="NoiseDraw"):
        engine.load("policy", 5, NoiseDraw(seed=1, scale=0.1))


def test_what_is_no_script_is_refused():
    with pytest.raises(ConfigError, match="exactly one"):
        ScriptedEngine()
    with pytest.raises(ConfigError, match="exactly one"):
        ScriptedEngine(next_token=uniform16, reply=lambda _: ())
    with pytest.raises(ConfigError, match="pass decode="):
        ScriptedEngine(reply={"a": "b"})
    with pytest.raises(EngineError, match="summing to 1, got shape"):
        run(ScriptedEngine(next_token=lambda ids: [0.5, 0.4]), ask())
    with pytest.raises(EngineError, match=r"only \['policy'\]"):
        run(ScriptedEngine(next_token={"policy": uniform16}), ask(model="critic"))


def test_fingerprint_names_bits_dtype_and_names():
    weights = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}
    base = fingerprint(weights)
    assert base == fingerprint(dict(reversed(weights.items())))
    assert len(base) == 16
    assert fingerprint({"c": weights["a"], "b": weights["b"]}) != base
    assert fingerprint({**weights, "b": torch.tensor([3.0])}) != base
    nudged = {**weights, "b": torch.nextafter(weights["b"], torch.tensor(9.0))}
    assert fingerprint(nudged) != base
    rounded = {k: v.bfloat16() for k, v in nudged.items()}
    assert fingerprint(nudged, torch.bfloat16) == fingerprint(rounded)
    assert fingerprint(weights, torch.bfloat16) == fingerprint(rounded)
    assert fingerprint(rounded) != base
