"""What a finite number of samples says about accuracy: pass@k, maj@k, and intervals.

Plain numbers and numpy, no tensors. A *problem* is the unit of replication: samples of one problem
are not independent, so intervals over a benchmark resample or average problems, not samples.
Sources: pass@k, arXiv:2107.03374 eq. (1); pass^k, 2406.12045; Wilson 1927; clustered standard
errors, 2411.00640.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from statistics import NormalDist
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from posttrain.errors import DataError

__all__ = [
    "Interval",
    "all_of_k",
    "bootstrap_interval",
    "clustered_standard_error",
    "majority_of_k",
    "pass_at_k",
    "standard_error",
    "wilson_interval",
]

Numbers: TypeAlias = NDArray[np.floating]


class Interval(NamedTuple):
    """An estimate and the ends of its confidence interval."""

    estimate: float
    low: float
    high: float


def pass_at_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that k of the n samples, drawn without replacement, include a correct one.

    1 - C(n - c, k) / C(n, k), unbiased for the pass rate of k fresh samples.

    Raises:
        DataError: unless 0 <= c <= n and 1 <= k <= n.
    """
    _check_draw(num_samples, num_correct, k)
    return 1.0 - math.comb(num_samples - num_correct, k) / math.comb(num_samples, k)


def all_of_k(num_samples: int, num_correct: int, k: int) -> float:
    """Probability that k of the n samples, drawn without replacement, are all correct (pass^k).

    Raises:
        DataError: unless 0 <= c <= n and 1 <= k <= n.
    """
    _check_draw(num_samples, num_correct, k)
    return math.comb(num_correct, k) / math.comb(num_samples, k)


def majority_of_k(answers: Sequence[Hashable | None], correct: Hashable, k: int) -> float:
    """Probability that the vote of k answers, drawn without replacement, is `correct` (maj@k).

    Exact, by counting draws. The most frequent answer wins; a tie is broken evenly at random. None
    stands for no answer: it may be drawn and never wins. Equivalent answers must be equal values.

    Raises:
        DataError: unless 1 <= k <= number of answers.
    """
    counts = Counter(answers)
    silent = counts.pop(None, 0)
    num_correct = counts.pop(correct, 0)
    _check_draw(len(answers), num_correct, k)
    won = 0.0
    for votes in range(1, min(k, num_correct) + 1):
        draws = _draws_at_most(list(counts.values()), votes, k - votes)
        for (used, ties), ways in draws.items():
            ways_silent = math.comb(silent, k - votes - used)
            won += math.comb(num_correct, votes) * ways * ways_silent / (1 + ties)
    return won / math.comb(len(answers), k)


def standard_error(values: Sequence[float] | Numbers) -> float:
    """Standard error of the mean, std (n - 1) / sqrt(n); NaN for fewer than two values."""
    if len(values) < 2:
        return math.nan
    return float(np.std(values, ddof=1) / math.sqrt(len(values)))


def clustered_standard_error(
    values: Sequence[float] | Numbers, clusters: Sequence[Hashable]
) -> float:
    """Standard error of the mean when values of one cluster (problem, document) go together.

    sqrt(sum over clusters of (sum of deviations)^2) / n; NaN for fewer than two clusters.

    Raises:
        DataError: the two sequences differ in length.
    """
    if len(values) != len(clusters):
        raise DataError(
            f"Each value needs one cluster, got {len(values)} values and {len(clusters)} clusters."
        )
    names = {name: index for index, name in enumerate(dict.fromkeys(clusters))}
    if len(names) < 2:
        return math.nan
    deviations = np.asarray(values, dtype=float) - np.mean(values)
    totals = np.bincount([names[name] for name in clusters], weights=deviations)
    return float(np.sqrt(np.square(totals).sum()) / len(values))


def wilson_interval(num_correct: int, num_samples: int, *, confidence: float = 0.95) -> Interval:
    """Score interval of a proportion of *independent* trials; sensible also at 0 and at n of n.

    Raises:
        DataError: unless 0 <= correct <= samples and samples >= 1.
    """
    _check_draw(num_samples, num_correct, 1)
    z = NormalDist().inv_cdf(0.5 + 0.5 * confidence)
    share = num_correct / num_samples
    shrink = 1.0 + z * z / num_samples
    middle = (share + z * z / (2 * num_samples)) / shrink
    spread = share * (1.0 - share) / num_samples + z * z / (4 * num_samples**2)
    half = z * math.sqrt(spread) / shrink
    low, high = max(0.0, middle - half), min(1.0, middle + half)
    return Interval(share, min(low, share), max(high, share))  # at 0 and n of n up to rounding


def bootstrap_interval(
    problem_scores: Sequence[float] | Numbers,
    *,
    rng: np.random.Generator,
    confidence: float = 0.95,
    num_resamples: int = 10_000,
) -> Interval:
    """Mean over problems with the percentile interval of resampled problems.

    Each score is one problem's own estimate (accuracy, pass@k, maj@k). With few problems, or scores
    that are all alike, the interval is too narrow: an all-correct run gives width 0.

    Raises:
        DataError: there is no score.
    """
    scores = np.asarray(problem_scores, dtype=float)
    if scores.size == 0:
        raise DataError("An interval needs the score of at least one problem, got none.")
    means = np.empty(num_resamples)
    chunk = max(1, 1_000_000 // scores.size)  # at most 8 MB of indices at a time
    for start in range(0, num_resamples, chunk):
        rows = min(chunk, num_resamples - start)
        picks = rng.integers(scores.size, size=(rows, scores.size))
        means[start : start + rows] = scores[picks].mean(axis=1)
    tail = 0.5 * (1.0 - confidence)
    low, high = np.quantile(means, [tail, 1.0 - tail])
    return Interval(float(scores.mean()), float(low), float(high))


def _draws_at_most(counts: list[int], votes: int, budget: int) -> dict[tuple[int, int], int]:
    """Ways to draw rivals, none more than `votes` times: {(drawn, rivals tied): ways}."""
    ways = {(0, 0): 1}
    for count in counts:
        grown: Counter[tuple[int, int]] = Counter()
        for (used, ties), number in ways.items():
            for drawn in range(min(count, votes, budget - used) + 1):
                key = (used + drawn, ties + (drawn == votes))
                grown[key] += number * math.comb(count, drawn)
        ways = dict(grown)
    return ways


def _check_draw(num_samples: int, num_correct: int, k: int) -> None:
    if not 0 <= num_correct <= num_samples:
        raise DataError(
            f"The number of correct samples must be in 0..{num_samples}, got {num_correct}."
        )
    if not 1 <= k <= num_samples:
        raise DataError(
            f"k must be in 1..{num_samples}, the number of samples, got {k}. "
            "Sample more completions of each problem, or ask for a smaller k."
        )
