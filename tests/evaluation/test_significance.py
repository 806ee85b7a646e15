"""Tests and intervals over per-query values, compared with numbers by hand, enumeration and scipy."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from retrievalkit.evaluation.significance import bootstrap_intervals, counts, holm, randomisation_test, t_test

gaps = st.lists(st.integers(-4, 4).map(lambda number: number / 4), min_size=1, max_size=9)


@settings(max_examples=50, deadline=None)
@given(gaps)
def test_a_small_randomisation_test_is_exact(differences):
    """The share of all sign changes whose sum is at least as far from 0; the order of the runs does not matter."""
    whole = [round(4 * difference) for difference in differences]
    signs = itertools.product((1, -1), repeat=len(whole))
    sums = [abs(sum(s * w for s, w in zip(choice, whole, strict=True))) for choice in signs]
    assert randomisation_test(differences) == sum(total >= abs(sum(whole)) for total in sums) / len(sums)
    swapped = [-difference for difference in differences]
    assert randomisation_test(differences) == randomisation_test(swapped)
    assert t_test(differences) == pytest.approx(t_test(swapped))
    assert counts(differences) == counts(swapped)[::-1]


def test_tests_equal_scipy():
    values = np.random.default_rng(6).normal(0.2, 1, 9)
    theirs = stats.permutation_test(
        (values,), lambda sample, axis: sample.mean(axis=axis), permutation_type="samples", vectorized=True
    )
    assert randomisation_test(values) == pytest.approx(theirs.pvalue)
    assert t_test(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, rel=1e-12)


def test_a_sampled_randomisation_test_approximates_the_exact_one():
    """22 differing queries are sampled; the exact p-value is a binomial sum, as for a fair coin."""
    differences = [1.0] * 16 + [-1.0] * 6 + [0.0] * 50
    sampled = randomisation_test(differences, permutations=20_000, seed=3)
    assert sampled == pytest.approx(stats.binomtest(6, 22).pvalue, abs=0.006)
    assert sampled == randomisation_test([-difference for difference in differences], permutations=20_000, seed=3)
    assert sampled != randomisation_test(differences, permutations=20_000, seed=4)
    assert randomisation_test([1.0] * 100, permutations=999) == pytest.approx(1 / 1000)  # never 0
    generator = np.random.default_rng(0)
    none = [randomisation_test(generator.normal(size=30), permutations=200, seed=n) for n in range(400)]
    assert np.mean(np.array(none) <= 0.05) == pytest.approx(0.05, abs=0.03)
    assert np.mean(none) == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(("differences", "p"), [([0.0, 0.0], 1.0), ([0.5], 1.0), ([0.5, 0.5, 0.5], 0.0)])
def test_t_tests_without_spread(differences, p):
    assert t_test(differences) == p


def test_holm_by_hand():
    """0.005 x 4, 0.01 x 3, then 0.03 x 2, and 0.04 x 1 must not fall below that."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_bootstrap_intervals_approximate_those_of_scipy():
    """Columns share resamples, so an interval does not depend on other columns; equal seeds give equal intervals."""
    values = np.random.default_rng(4).exponential(1.0, (60, 3))
    for confidence in (0.95, 0.5):
        theirs = stats.bootstrap(
            (values[:, 1],), np.mean, method="percentile", n_resamples=9_999, rng=1, confidence_level=confidence
        ).confidence_interval
        intervals = bootstrap_intervals(values, confidence=confidence, seed=7)
        assert intervals[1] == pytest.approx((theirs.low, theirs.high), abs=0.02)
        assert intervals[1] == pytest.approx(bootstrap_intervals(values[:, 1], confidence=confidence, seed=7)[0])
        assert intervals[1] != bootstrap_intervals(values[:, 1], confidence=confidence, seed=8)[0]
        shifted = bootstrap_intervals(values + 1, confidence=confidence, seed=7)
        assert np.array(shifted) == pytest.approx(np.array(intervals) + 1)
    assert bootstrap_intervals([0.25] * 4) == [(0.25, 0.25)]
