"""Significance of the difference between two systems: seeded tests and intervals over per-query values.

The paired randomisation test (Fisher, 1935; Smucker, Allan and Carterette, 2007) estimates how often the mean
difference would be as large if each query's two values were swapped at random. Student's t-test is also available.
Multiple comparisons are corrected by Holm's step-down method (1979). Intervals are percentiles of bootstrap means.

`scipy.stats.permutation_test` has the same exact p-values, but takes 2 s instead of 3 ms for 18 differing queries and
10 s instead of 0.1 s for samples of 7,000, and a second to import.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

_EXACT_UP_TO = 20  # differing queries; with more, permutations are sampled
_BATCH_SAMPLES = 1 << 20
_CLOSE = 1e-9


def randomisation_test(differences: Sequence[float] | Values, *, permutations: int = 10_000, seed: int = 0) -> float:
    """Return the two-sided p-value of the paired randomisation test on per-query differences.

    Exact, over all permutations, if at most 20 queries differ. Otherwise permutations are sampled, and the p-value is
    (1 + permutations with a difference at least as large as observed) / (1 + sampled), which is never 0.
    """
    values = _differing(differences)
    if not values.size:
        return 1.0
    observed = abs(values.sum()) - _CLOSE * np.abs(values).sum()  # equal sums may differ in their last digits
    if values.size <= _EXACT_UP_TO:
        sums = np.zeros(1)
        for value in values:
            sums = np.concatenate([sums + value, sums - value])
        return float(np.mean(np.abs(sums) >= observed))
    generator = np.random.default_rng(seed)
    as_large = 0
    for size in _batch_sizes(permutations, values.size):
        random_bytes = generator.bytes(size * math.ceil(values.size / 8))
        bits = np.unpackbits(np.frombuffer(random_bytes, np.uint8).reshape(size, -1), axis=1, count=values.size)
        swapped = bits.astype(np.float64) @ values
        as_large += int(np.count_nonzero(np.abs(values.sum() - 2 * swapped) >= observed))
    return (1 + as_large) / (1 + permutations)


def t_test(differences: Sequence[float] | Values) -> float:
    """Return the two-sided p-value of the paired t-test; 1 if no query differs, or if there is only one query."""
    from scipy.special import stdtr  # scipy.stats takes a second to import

    values = np.asarray(differences, np.float64)
    if values.size < 2 or not _differing(values).size:
        return 1.0
    if np.ptp(values) <= _CLOSE:  # the same difference everywhere: t is infinite
        return 0.0
    t = values.mean() / (values.std(ddof=1) / math.sqrt(values.size))
    return float(2 * stdtr(values.size - 1, -abs(t)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm-corrected p-values for multiple comparisons, in input order.

    The i-th smallest of m is multiplied by m - i + 1; corrected values never decrease.
    """
    corrected = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = highest
    return corrected


def bootstrap_intervals(
    values: Any, *, confidence: float = 0.95, resamples: int = 10_000, seed: int = 0
) -> list[tuple[float, float]]:
    """Return the bootstrap interval (low, high) of each column's mean: percentiles over shared resamples."""
    table = np.asarray(values, np.float64)
    table = table[:, None] if table.ndim == 1 else table  # (queries, columns)
    queries = table.shape[0]
    generator = np.random.default_rng(seed)
    means = []
    for size in _batch_sizes(resamples, queries):
        drawn = generator.integers(0, queries, (size, queries)) + queries * np.arange(size)[:, None]
        counts = np.bincount(drawn.ravel(), minlength=size * queries).reshape(size, queries)
        means.append(counts.astype(np.float64) @ table / queries)
    tail = 50 * (1 - confidence)
    low, high = np.percentile(np.concatenate(means), [tail, 100 - tail], axis=0)
    return list(zip(low.tolist(), high.tolist(), strict=True))


def counts(differences: Sequence[float] | Values) -> tuple[int, int, int]:
    """Return the numbers of queries won, tied and lost."""
    values = np.asarray(differences, np.float64)
    wins, losses = int(np.sum(values > _CLOSE)), int(np.sum(values < -_CLOSE))
    return wins, values.size - wins - losses, losses


def _differing(differences: Sequence[float] | Values) -> Values:
    values = np.asarray(differences, np.float64)
    return values[np.abs(values) > _CLOSE]


def _batch_sizes(total: int, width: int) -> list[int]:
    """Batch sizes that add up to `total`, so that a (batch, width) matrix has bounded memory."""
    size = max(1, _BATCH_SAMPLES // width)
    return [min(size, total - start) for start in range(0, total, size)]
