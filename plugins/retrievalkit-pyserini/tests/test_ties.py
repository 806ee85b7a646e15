"""Ties broken as in Anserini, compared with its loop."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from retrievalkit_pyserini.lucene import part_ties


def reference(scores):
    """Compute Anserini's loop in Java's arithmetic: rounding in double, the rest in float."""
    numbers, ties = [], 0
    for score in scores:
        value = np.float32(np.floor(float(score) * 1e4 + 0.5) / 1e4)
        if not numbers or numbers[-1] - value > np.float32(1e-4):
            ties = 0
        else:
            ties += 1
            value = np.float32(value - np.float32(1e-6) * np.float32(ties))
        numbers.append(value)
    return np.array(numbers, dtype=np.float32)


@given(st.lists(st.floats(0, 60, width=32), max_size=60), st.integers(1, 300))
def test_any_scores(values, copies):
    """Any scores, with long runs of ties, give the results of the loop."""
    scores = np.array(sorted(values + values[:1] * copies, reverse=True), dtype=np.float32)
    np.testing.assert_array_equal(part_ties(scores), reference(scores))


@pytest.mark.parametrize("gap", [0.0, 0.00005, 0.0001, 0.00011, 0.0002, 0.0003, 0.001])
def test_close_scores(gap):
    """Scores about as far apart as the rounding, after a run of ties that reaches them."""
    scores = np.array([9.5] * 400 + [9.5 - gap] * 3 + [9.5 - 2 * gap, 1.0], dtype=np.float32)
    np.testing.assert_array_equal(part_ties(scores), reference(scores))


def test_worked_example():
    """Equal scores are lowered by one, two ... millionths after rounding."""
    ties = part_ties(np.array([2.087432, 2.087432, 2.087432, 1.602508], dtype=np.float32))
    np.testing.assert_array_equal(ties, np.array([2.0874, 2.087399, 2.087398, 1.6025], dtype=np.float32))
