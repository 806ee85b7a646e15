"""Quantised vectors: stored values, products, and candidates against brute force."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from retrievalkit_testing import check

from retrievalkit.contracts import Representation
from retrievalkit.indexing.indexers import small
from retrievalkit.scoring import scores
from vector_folders import drawn as drawn_by_width
from vector_folders import opened, representation, write

DIM = 20  # no multiple of 8
drawn = partial(drawn_by_width, dim=DIM)


@pytest.mark.slow
def test_signs_keep_the_contract():
    check("indexer", "small", recall=0.5, kind="binary")


def test_worked_numbers():
    """The greatest number becomes 127; numbers up to 0 have the bit 0."""
    vectors = np.array([[2.54, -1.27, 0.03], [0.0, 0.0, 0.0]], dtype=np.float32)
    whole, scales = small._quantised(vectors, "int8")
    assert whole.tolist() == [[127, -64, 2], [0, 0, 0]]  # -63.5 is rounded to the even number
    np.testing.assert_allclose(scales, [0.02, 0], rtol=1e-6)
    assert small._quantised(vectors, "binary")[0].tolist() == [[0b10100000], [0]]


@pytest.mark.parametrize("bf16", [True, False])
@pytest.mark.parametrize("kind", ["int8", "binary"])
def test_products_are_those_of_the_small_vectors(kind, bf16, tmp_path, monkeypatch):
    monkeypatch.setattr(small, "multiplies_bf16", lambda: bf16)
    vectors, queries = drawn(70), torch.from_numpy(drawn(3, seed=1)).bfloat16().float()
    store = write(tmp_path / "v", vectors=vectors, shard=30)
    small.write_small(store, tmp_path / "small", kind)
    read = small.SmallVectors(tmp_path / "small", kind, store)
    parts = list(read.products(queries, 16))
    assert [first for first, _ in parts] == [0, 16, 30, 46, 60]
    scales = np.abs(vectors).max(axis=1, keepdims=True) / 127
    expected = np.where(vectors > 0, 1, -1) if kind == "binary" else np.rint(vectors / scales) * scales
    found = torch.cat([products for _, products in parts], dim=1).numpy()
    np.testing.assert_allclose(found, queries.numpy() @ expected.T, rtol=0.01, atol=0.05)


@pytest.mark.parametrize("kind", ["int8", "binary"])
@pytest.mark.parametrize("several", [False, True])
def test_candidates_are_ranked_by_exact_scores(kind, several, tmp_path, monkeypatch):
    """Hits have exact scores, best first; with enough candidates, none is missed."""
    monkeypatch.setattr(small, "_BLOCK", 16)
    monkeypatch.setattr(small, "_TOGETHER", 4)
    counts = np.random.default_rng(2).integers(1, 4, 80) if several else None
    vectors = drawn(80 if counts is None else int(counts.sum()))
    store = write(tmp_path / "v", vectors=vectors, counts=counts, shard=30)
    asked = torch.from_numpy(drawn(10, seed=1)).view(5, 2, DIM)
    queries = Representation(asked, torch.tensor([[True, row != 3] for row in range(5)]))
    exact = scores(queries, representation(vectors, [1] * 80 if counts is None else counts.tolist())).numpy()
    for rescored, missed in ((1, True), (40, False)):
        indexer = opened("small", store, tmp_path / f"index{rescored}", kind=kind, rescored=rescored)
        ids, values = indexer.search(queries, 4)
        for row in range(5):
            texts = [int(one[1:]) for one in ids[row]]
            np.testing.assert_allclose(values[row], exact[row][texts], rtol=1e-5)
            assert texts == sorted(texts, key=lambda text, row=row: -exact[row][text])
            assert missed or texts == np.argsort(-exact[row], kind="stable")[:4].tolist()
