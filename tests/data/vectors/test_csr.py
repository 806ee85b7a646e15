"""Sparse matrices that stay in their file: what is read of them is what scipy reads."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.data.vectors import spread
from retrievalkit.data.vectors.csr import MappedCsr


@pytest.mark.parametrize(("rows", "share"), [(1, 0.3), (40, 0.3), (4, 0)])
def test_rows_of_a_file(tmp_path, rows, share):
    values = np.random.default_rng(0).random((rows, 9), dtype=np.float32)
    expected = scipy.sparse.csr_matrix(values * (values < share))
    scipy.sparse.save_npz(tmp_path / "m.npz", expected, compressed=False)
    mapped = MappedCsr(tmp_path / "m.npz")
    assert mapped.shape == (rows, 9)
    wanted = np.array([rows - 1, 0, 0, rows // 2])
    np.testing.assert_array_equal(mapped.rows(0, rows).toarray(), expected.toarray())
    some = mapped.rows(rows // 3, rows // 2)
    np.testing.assert_array_equal(some.toarray(), expected[rows // 3 : rows // 2].toarray())
    np.testing.assert_array_equal(mapped.take(wanted).toarray(), expected[wanted].toarray())
    assert mapped.take(wanted[:0]).shape == (0, 9)


@settings(max_examples=50, deadline=None)
@given(counts=st.lists(st.integers(0, 4), min_size=1, max_size=9), data=st.data())
def test_spread_lists_the_elements_of_runs(counts, data):
    starts = np.cumsum([0, *counts])
    wanted = np.array(data.draw(st.lists(st.integers(0, len(counts) - 1), max_size=9)), dtype=np.int64)
    places, new = spread(starts, wanted)
    parts = [list(range(starts[one], starts[one + 1])) for one in wanted]
    assert places.tolist() == [place for part in parts for place in part]
    assert [places[start:end].tolist() for start, end in itertools.pairwise(new)] == parts
