"""Exact search of weights, and of vectors and weights together, in parts of any size."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import postings, rounded
from retrievalkit.indexing.indexers import dense_sparse
from retrievalkit.scoring import bf16_filter
from vector_folders import DIM, TERMS, assert_best, opened, write
from vector_folders import drawn_weights as draw


@settings(max_examples=25, deadline=None)
@given(
    texts=st.integers(1, 60),
    k=st.integers(1, 70),
    part=st.sampled_from([1, 5, 16, 1000]),
    shard=st.integers(1, 20),
    limit=st.sampled_from([1, 50, 1 << 24]),
    seed=st.integers(0, 2**32 - 1),
)
def test_weights_are_searched_exactly(tmp_path_factory, texts, k, part, shard, limit, seed):
    """With ties, texts and queries without weights, and parts of any size."""
    folder, random = tmp_path_factory.mktemp("s"), np.random.default_rng(seed)
    weights, asked = draw(random, texts, values=[0, 1, 2], share=0.1), draw(random, 4, values=[1, 2], share=0.2)
    asked[0] = 0
    store = write(folder / "vectors", weights=weights, shard=shard)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(postings, "PART_POSTINGS", limit)
        (folder / "p").mkdir()
        postings.write_postings(store, folder / "p", part_texts=part)
    opened_postings = postings.Postings(folder / "p")
    assert sum(opened_postings.parts) == texts
    assert max(opened_postings.parts) <= part
    whole = scipy.sparse.vstack([block.weights for block in opened_postings.blocks()]).toarray()
    np.testing.assert_array_equal(whole, weights)
    indexer = opened("sparse", store, folder / "index")
    indexer._postings = opened_postings
    assert_best(indexer, Representation(weights=torch.from_numpy(asked)), asked @ weights.T, k, least=0)


def test_a_part_is_in_memory_twice_at_most(tmp_path):
    """By text and by term; its pieces and the previous part are dropped."""
    store = write(tmp_path / "vectors", weights=np.ones((20_000, TERMS), np.float32), shard=2_000)
    part = 10_000 * TERMS * 8
    tracemalloc.start()
    try:
        assert postings.write_postings(store, tmp_path / "p", part_texts=10_000)["parts"] == 2
        assert tracemalloc.get_traced_memory()[1] < 2.5 * part
    finally:
        tracemalloc.stop()


def alike(kind, random, texts):
    """Vectors and weights with scores that are far apart, nearly equal, or equal."""
    weights, vectors = draw(random, texts, share=0.4), random.standard_normal((texts, DIM)).astype(np.float32)
    if kind == "nearly equal":
        weights, vectors = 1 + weights / 1000, 1 + vectors / 1000
    if kind == "copies":
        weights[texts // 2 :], vectors[texts // 2 :] = weights[: texts // 2], vectors[: texts // 2]
    return weights, vectors


@pytest.mark.parametrize("kind", ["far apart", "nearly equal", "copies"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_rounded_vectors_do_not_change_the_hits(tmp_path, monkeypatch, kind, dtype):
    """To the last bit; only nearly equal texts are searched again without them."""
    monkeypatch.setattr(bf16_filter, "multiplies_bf16", lambda: True)
    monkeypatch.setattr(dense_sparse, "PART_VECTORS", 150)
    monkeypatch.setattr(rounded, "MOST_TERMS", 11)
    random = np.random.default_rng(0)
    weights, vectors = alike(kind, random, 600)
    store = write(tmp_path / "v", weights=weights, vectors=vectors.astype(dtype), shard=70)
    queries = Representation(torch.randn(80, 1, DIM), None, torch.from_numpy(draw(random, 80)))
    whole = opened("dense_sparse", store, tmp_path / "whole", rounded=False)
    quick = opened("dense_sparse", store, tmp_path / "quick")
    assert (tmp_path / "quick" / "rounded").exists()
    assert not (tmp_path / "whole" / "rounded").exists()
    searched = []
    usual = quick._whole
    monkeypatch.setattr(quick, "_whole", lambda k: lambda asked: searched.append(len(asked)) or usual(k)(asked))
    for k in (1, 10, 1000):
        (ids, values), (expected_ids, expected) = quick.search(queries, k), whole.search(queries, k)
        assert ids == expected_ids
        assert [one.tobytes() for one in values] == [one.tobytes() for one in expected]
    assert (sum(searched) > 80) == (kind == "nearly equal")


def test_vectors_with_large_norms_are_not_rounded(tmp_path, monkeypatch):
    monkeypatch.setattr(bf16_filter, "multiplies_bf16", lambda: True)
    random = np.random.default_rng(0)
    vectors = random.standard_normal((30, DIM)).astype(np.float32)
    vectors[3] *= 1e19
    store = write(tmp_path / "v", weights=draw(random, 30), vectors=vectors)
    indexer = opened("dense_sparse", store, tmp_path / "i")
    assert not (tmp_path / "i" / "rounded").exists()
    ids, _ = indexer.search(Representation(torch.rand(80, 1, DIM), None, torch.from_numpy(draw(random, 80))), 30)
    assert {ids[0][0], ids[0][-1]} & {"t3"}
