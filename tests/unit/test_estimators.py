from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from posttrain.errors import DataError
from posttrain.objectives import estimators as est


def test_pass_at_k_and_all_of_k_against_enumeration():
    samples = [1, 1, 0, 0, 0]
    for k in range(1, 6):
        draws = list(itertools.combinations(samples, k))
        assert est.pass_at_k(5, 2, k) == pytest.approx(sum(map(any, draws)) / len(draws))
        assert est.all_of_k(5, 2, k) == pytest.approx(sum(map(all, draws)) / len(draws))
    assert [est.pass_at_k(4, 1, k) for k in (1, 2, 4)] == [0.25, 0.5, 1.0]
    assert est.pass_at_k(4, 0, 4) == 0.0


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 5), (4, 1, 0), (4, 5, 1), (4, -1, 1), (0, 0, 1)])
def test_a_draw_that_cannot_be_made_is_refused(n, c, k):
    with pytest.raises(DataError, match=r"must be in"):
        est.pass_at_k(n, c, k)


def by_enumeration(answers: list[str | None], correct: str, k: int) -> float:
    won = 0.0
    draws = list(itertools.combinations(answers, k))
    for draw in draws:
        votes = Counter(answer for answer in draw if answer is not None)
        best = [answer for answer in votes if votes[answer] == max(votes.values())]
        won += (correct in best) / len(best) if best else 0.0
    return won / len(draws)


@pytest.mark.parametrize(
    "answers",
    [
        ["a", "a", "b", "b", "c", None, "d"],
        ["b", "b", "a"],
        [None, None, "a"],
        ["b", "c"],
        ["a", "a", "b", "b", "c", "c"],
    ],
)
def test_majority_against_enumeration(answers):
    for k in range(1, len(answers) + 1):
        expected = by_enumeration(answers, "a", k)
        assert est.majority_of_k(answers, "a", k) == pytest.approx(expected)


def test_majority_of_more_than_there_are_is_refused():
    with pytest.raises(DataError, match=r"1..2"):
        est.majority_of_k(["a", "b"], "a", 3)


def test_standard_errors():
    values = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0]  # squares 1.5; 1.5 / 5 / 6
    assert est.standard_error(values) == pytest.approx(math.sqrt(0.05))
    assert math.isnan(est.standard_error([1.0]))
    # pairs that agree: sums of deviations 1, -1, 1, -1 over n 8 against single rows
    twice = [1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]
    assert est.clustered_standard_error(twice, list("aabbccdd")) == pytest.approx(2 / 8)
    alone = est.clustered_standard_error(twice, list("abcdefgh"))
    assert alone == pytest.approx(math.sqrt(8 * 0.25) / 8)
    assert math.isnan(est.clustered_standard_error([1.0, 0.0], "aa"))
    with pytest.raises(DataError, match="2 values and 1 clusters"):
        est.clustered_standard_error([1.0, 0.0], "a")


def test_wilson_interval_against_its_defining_equation():
    for correct, n in [(0, 10), (3, 10), (10, 10), (45, 50)]:
        got = est.wilson_interval(correct, n)
        assert got.estimate == correct / n
        assert 0.0 <= got.low <= got.estimate <= got.high <= 1.0
        for end in (got.low, got.high):  # |p^ - p| = z sqrt(p (1 - p) / n) at each end
            gap = 1.959964 * math.sqrt(end * (1 - end) / n)
            assert abs(got.estimate - end) == pytest.approx(gap, abs=1e-6)
    wide, narrow = (est.wilson_interval(3, 10, confidence=c) for c in (0.99, 0.5))
    assert wide.low < narrow.low < narrow.high < wide.high
    with pytest.raises(DataError, match=r"0..2, got 3"):
        est.wilson_interval(3, 2)


def test_bootstrap_is_seeded_and_agrees_with_the_normal_interval():
    scores = np.random.default_rng(1).random(400)
    first = est.bootstrap_interval(scores, rng=np.random.default_rng(7), num_resamples=4000)
    again = est.bootstrap_interval(scores, rng=np.random.default_rng(7), num_resamples=4000)
    assert first == again
    half = 1.96 * est.standard_error(scores)
    assert first.estimate == pytest.approx(scores.mean())
    assert first.high - first.estimate == pytest.approx(half, rel=0.1)
    assert first.estimate - first.low == pytest.approx(half, rel=0.1)
    half_wide = est.bootstrap_interval(scores, rng=np.random.default_rng(7), confidence=0.5)
    assert half_wide.high - half_wide.low < 0.5 * (first.high - first.low)


def test_bootstrap_chunks_cover_every_resample():
    scores = [0.0] * 300_000 + [1.0] * 300_000  # one resample a chunk
    got = est.bootstrap_interval(scores, rng=np.random.default_rng(0), num_resamples=3)
    assert 0.49 < got.low <= got.high < 0.51


def test_an_interval_needs_a_score():
    with pytest.raises(DataError, match="at least one problem"):
        est.bootstrap_interval([], rng=np.random.default_rng(0))
