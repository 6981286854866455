"""Drawing tokens: frequencies, log-probs, filters, and the counter behind the numbers."""

import math

import numpy as np
import pytest
import torch

from posttrain.errors import NumericsError
from posttrain.rollout.sampling import Rules, draw, filtered_logprobs, uniforms
from posttrain.types.ask import Decode


def kept(probs, decode):
    """Ids the filters keep of a distribution given as a list."""
    logits = torch.tensor([probs]).log()
    return filtered_logprobs(logits, Rules.of([decode]))[0].isfinite().nonzero().flatten().tolist()


def chi_square(counts, probs):
    expected = np.asarray(probs) * counts.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def test_the_counter_gives_the_published_words_of_splitmix64():
    # first three outputs of SplitMix64 from state 0, as widely printed
    words = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    expected = [(word >> 11) / 2**53 for word in words]
    assert uniforms([0], np.array([0]), 3)[0].tolist() == expected


def test_uniforms_depend_on_seed_and_offset_alone():
    table = uniforms([7, 8, -3], np.array([0, 0, 0]), 9)
    later = uniforms([-3, 7], np.array([4, 2]), 5)
    assert (later[0] == table[2, 4:9]).all()
    assert (later[1] == table[0, 2:7]).all()
    assert len(np.unique(table)) == table.size
    assert uniforms([2**64 + 7], np.array([0]), 1) == table[0, :1]


def test_uniforms_of_neighbouring_seeds_are_uniform_and_unrelated():
    table = uniforms(range(2000), np.zeros(2000, int), 2)
    for column in table.T:
        counts = np.histogram(column, bins=20, range=(0, 1))[0]
        assert chi_square(counts, np.full(20, 0.05)) < 43.8  # 0.1 % point of 19 degrees
    assert abs(np.corrcoef(table[:-1, 0], table[1:, 0])[0, 1]) < 0.1
    assert abs(np.corrcoef(table[:, 0], table[:, 1])[0, 1]) < 0.1


@pytest.mark.parametrize("size", [5, 513, 1000])
def test_frequencies_follow_the_distribution(size):
    V = size
    rows, groups = 4000, 5
    logits = torch.randn(V, generator=torch.Generator().manual_seed(V)) * 2.0
    uniform = torch.from_numpy(uniforms(range(rows), np.zeros(rows, int), 1)[:, 0])
    decode = Decode(temperature=0.7)
    drawn = draw(logits.expand(rows, V), uniform, Rules.of([decode] * rows))
    probs = (logits.double() / 0.7).softmax(-1)
    # tokens gathered into few classes of ids, so that every class is expected often
    classes = torch.arange(V) * groups // V
    expected = torch.zeros(groups, dtype=torch.float64).index_add(0, classes, probs)
    counts = torch.bincount(classes[drawn.ids], minlength=groups).numpy()
    assert chi_square(counts, expected.numpy()) < 18.5  # 0.1 % point of 4 degrees
    torch.testing.assert_close(drawn.logprobs, probs.log()[drawn.ids].float(), rtol=0, atol=2e-6)
    assert (drawn.kept_logmass == 0).all()


@pytest.mark.parametrize("size", [3, 512, 513, 770, 1024])
def test_inverse_of_the_cumulative_distribution_at_its_ends(size):
    V = size
    probs = torch.full((1, V), 0.0)
    probs[0, 1], probs[0, V - 2 if V > 3 else 1] = 1.0, 1.0
    logits = probs.log()  # minus infinity elsewhere: never drawn
    ends = torch.tensor([0.0, 0.49999, 1.0 - 2.0**-53], dtype=torch.float64)
    drawn = draw(logits.expand(3, V), ends, Rules.of([Decode()] * 3))
    last = V - 2 if V > 3 else 1
    assert drawn.ids.tolist() == [1, 1, last]


def test_token_of_a_uniform_number_worked_by_hand():
    # cumulative 0.5, 0.75, 1: numbers below 0.5 give 0, below 0.75 give 1
    logits = torch.tensor([0.5, 0.25, 0.25]).log().expand(4, 3)
    uniform = torch.tensor([0.49, 0.51, 0.74, 0.76], dtype=torch.float64)
    drawn = draw(logits, uniform, Rules.of([Decode()] * 4))
    assert drawn.ids.tolist() == [0, 1, 1, 2]
    expected = torch.tensor([0.5, 0.25, 0.25, 0.25]).log()
    torch.testing.assert_close(drawn.logprobs, expected, rtol=0, atol=1e-6)


def test_rare_tokens_of_a_large_vocabulary_are_found():
    # one token has half the mass and comes first; 60,000 others share the rest
    V = 60_001
    logits = torch.zeros(V)
    logits[0] = math.log(V - 1)
    uniform = torch.tensor([0.25, 0.5 + 0.5 * 12_345.5 / 60_000], dtype=torch.float64)
    drawn = draw(logits.expand(2, V), uniform, Rules.of([Decode()] * 2))
    assert drawn.ids.tolist() == [0, 12_346]
    expected = torch.tensor([0.5, 0.5 / 60_000]).log()
    torch.testing.assert_close(drawn.logprobs, expected, rtol=0, atol=1e-5)


PROBS = [0.1, 0.4, 0.2, 0.05, 0.25]


@pytest.mark.parametrize(
    ("decode", "expected"),
    [
        (Decode(top_k=2), [1, 4]),
        (Decode(top_k=5), [0, 1, 2, 3, 4]),
        (Decode(top_k=99), [0, 1, 2, 3, 4]),
        (Decode(top_p=0.39), [1]),
        (Decode(top_p=0.4), [1]),  # reached exactly
        (Decode(top_p=0.41), [1, 4]),
        (Decode(top_p=0.65), [1, 4]),  # 0.4 + 0.25
        (Decode(top_p=0.66), [1, 2, 4]),
        (Decode(top_p=1e-9), [1]),  # one is always left
        (Decode(min_p=0.5), [1, 2, 4]),  # 0.2 is half of 0.4
        (Decode(min_p=0.51), [1, 4]),
        # top-p of what top-k kept: 0.4 / 0.85 and 0.25 / 0.85 make 0.7647
        (Decode(top_k=3, top_p=0.75), [1, 4]),
        (Decode(top_k=3, top_p=0.77), [1, 2, 4]),
        # at temperature 2 the shares are as the square roots: 0.632 of 2.106 is 0.300
        (Decode(temperature=2.0, top_p=0.31), [1, 4]),
        (Decode(temperature=2.0, top_p=0.29), [1]),
        (Decode(top_k=4, top_p=0.9, min_p=0.6), [1, 4]),
        (Decode(temperature=0.0), [1]),
        (Decode(temperature=0.0, top_p=0.5, top_k=3), [1]),
    ],
)
def test_what_the_filters_keep(decode, expected):
    assert kept(PROBS, decode) == expected


def test_equal_logits_on_the_border_keep_the_lower_ids():
    level = [0.2, 0.2, 0.2, 0.2, 0.2]
    assert kept(level, Decode(top_k=2)) == [0, 1]
    assert kept(level, Decode(top_p=0.6)) == [0, 1, 2]
    assert kept(level, Decode(top_p=0.61)) == [0, 1, 2, 3]
    assert kept(level, Decode(min_p=0.9)) == [0, 1, 2, 3, 4]
    assert kept([0.1, 0.3, 0.2, 0.2, 0.2], Decode(top_k=3)) == [1, 2, 3]
    # more equal logits than a first look at the largest ones sees
    many = [0.001] * 100 + [0.1] + [0.008] * 100
    assert kept(many, Decode(top_k=4)) == [100, 101, 102, 103]
    assert kept(many, Decode(top_p=0.115)) == [100, 101, 102]


def test_log_prob_and_kept_mass_make_the_whole_log_prob():
    decodes = [Decode(top_k=2), Decode(), Decode(top_p=0.8), Decode(temperature=0.0)]
    logits = torch.tensor(PROBS).log().expand(4, 5)
    uniform = torch.tensor([0.99, 0.99, 0.1, 0.99], dtype=torch.float64)
    drawn = draw(logits, uniform, Rules.of(decodes))
    # kept in order of id: {1, 4}, all, {1, 2, 4}, {1}
    assert drawn.ids.tolist() == [4, 4, 1, 1]
    shares = torch.tensor([0.25 / 0.65, 0.25, 0.4 / 0.85, 1.0])
    masses = torch.tensor([0.65, 1.0, 0.85, 0.4])
    torch.testing.assert_close(drawn.logprobs, shares.log(), rtol=0, atol=1e-6)
    torch.testing.assert_close(drawn.kept_logmass, masses.log(), rtol=0, atol=1e-6)
    assert drawn.logprobs[3] == 0.0


def test_filtered_log_probs_agree_with_a_sorting_reference():
    def reference(logits, decode):
        order = np.argsort(-logits, kind="stable")
        probs = np.exp(logits[order] / decode.temperature)
        probs /= probs.sum()
        n = len(order)
        if decode.top_k:
            n = min(n, decode.top_k)
        if decode.top_p < 1:
            before = np.cumsum(probs[:n] / probs[:n].sum()) - probs[:n] / probs[:n].sum()
            n = max(1, int((before < decode.top_p).sum()))
        n = min(n, max(1, int((probs >= decode.min_p * probs[0]).sum())))
        out = np.full(len(order), -np.inf)
        out[order[:n]] = np.log(probs[:n] / probs[:n].sum())
        return out

    rng = np.random.default_rng(3)
    logits = rng.normal(size=(12, 301)) * 2.5
    decodes = [
        Decode(
            temperature=float(rng.choice([0.5, 1.0, 1.7])),
            top_k=int(rng.choice([0, 0, 3, 40])),
            top_p=float(rng.choice([1.0, 0.5, 0.93])),
            min_p=float(rng.choice([0.0, 0.0, 0.02])),
        )
        for _ in range(12)
    ]
    found = filtered_logprobs(torch.tensor(logits, dtype=torch.float32), Rules.of(decodes))
    expected = np.stack([reference(row, d) for row, d in zip(logits, decodes, strict=True)])
    np.testing.assert_allclose(found.numpy(), expected, rtol=0, atol=1e-5)


def test_a_row_is_drawn_alike_in_any_company():
    g = torch.Generator().manual_seed(5)
    logits = (torch.randn(6, 700, generator=g) * 3).bfloat16()  # many equal logits
    decodes = [
        Decode(),
        Decode(top_p=0.9),
        Decode(top_k=30),
        Decode(min_p=0.05),
        Decode(temperature=0.0),
        Decode(temperature=1.3, top_k=50, top_p=0.7),
    ]
    uniform = torch.from_numpy(uniforms(range(6), np.full(6, 11), 1)[:, 0])
    together = draw(logits, uniform, Rules.of(decodes))
    for r in range(6):
        alone = draw(logits[r : r + 1], uniform[r : r + 1], Rules.of(decodes[r : r + 1]))
        assert alone.ids[0] == together.ids[r]
        assert alone.logprobs[0] == together.logprobs[r]
        assert alone.kept_logmass[0] == together.kept_logmass[r]
    order = torch.tensor([4, 1, 3])
    some = draw(logits[order], uniform[order], Rules.of(decodes).rows(order))
    assert (some.ids == together.ids[order]).all()
    assert (some.logprobs == together.logprobs[order]).all()


def test_greedy_takes_the_first_of_the_largest_logits():
    logits = torch.tensor([[1.0, 3.0, 3.0, 2.0], [0.0, -1.0, -2.0, 5.0]])
    uniform = torch.tensor([0.999, 0.0], dtype=torch.float64)
    drawn = draw(logits, uniform, Rules.of([Decode(temperature=0.0)] * 2))
    assert drawn.ids.tolist() == [1, 3]
    assert drawn.logprobs.tolist() == [0.0, 0.0]
    whole = torch.log_softmax(logits, -1)[[0, 1], [1, 3]]
    torch.testing.assert_close(drawn.kept_logmass, whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_distribution_are_refused_by_row(bad):
    logits = torch.zeros(3, 4)
    logits[1, 2] = bad
    with pytest.raises(NumericsError, match=r"rows \[1\] of 3"):
        draw(logits, torch.zeros(3, dtype=torch.float64), Rules.of([Decode()] * 3))
