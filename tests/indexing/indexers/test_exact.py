"""Exact indexers return the top k of the scoring rule: for one and many vectors, and for weights."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retrievalkit.contracts import Representation
from retrievalkit.indexing.indexers import dense_sparse
from retrievalkit.scoring import ranking, scores
from vector_folders import DIM, assert_best, drawn, drawn_weights, opened, representation, write

ONE, MANY, VARYING = [1] * 90, [4] * 90, [1, 3, 7] * 30
OPTIONS = {"flat": {"block": 16}, "faiss": {"shard_vectors": 60}}


@pytest.mark.parametrize("query_vectors", [1, 3])
@pytest.mark.parametrize(
    ("name", "counts", "lexical", "dtype"),
    [
        *((name, counts, False, np.float32) for name in ("flat", "faiss") for counts in (ONE, MANY, VARYING)),
        *((name, ONE, False, np.float16) for name in ("flat", "faiss")),
        *((name, counts, True, np.float32) for name in ("flat", "dense_sparse") for counts in (ONE, MANY, VARYING)),
        *((name, None, True, np.float32) for name in ("flat", "sparse")),
        ("sparse", MANY, True, np.float32),
    ],
)
def test_hits_equal_brute_force(tmp_path, monkeypatch, name, counts, lexical, dtype, query_vectors):
    """With parts and blocks across shards; the score of an unknown text is NaN."""
    monkeypatch.setattr(dense_sparse, "PART_VECTORS", 60)
    random = np.random.default_rng(0)
    vectors = None if counts is None else drawn(sum(counts)).astype(dtype)
    weights, asked = (drawn_weights(random, texts, share=0.1) if lexical else None for texts in (90, 5))
    store = write(tmp_path / "vectors", vectors=vectors, counts=counts or ONE, weights=weights)
    mask = torch.arange(query_vectors) < torch.tensor([1, 3, 2, 3, 1])[:, None]
    queries = Representation(
        None if vectors is None else torch.from_numpy(drawn(5 * query_vectors, 1)).view(5, query_vectors, DIM),
        None if vectors is None or query_vectors == 1 else mask,
        None if asked is None else torch.from_numpy(asked),
    )
    indexer = opened(name, store, tmp_path / "index", **OPTIONS.get(name, {}))
    if name == "sparse":
        vectors, compared = None, Representation(weights=queries.weights)
        assert not list((tmp_path / "index").rglob("vectors*"))
    else:
        compared = queries
    expected = scores(compared, representation(vectors, counts, weights)).numpy()
    for k in (1, 9, 1000):
        assert_best(indexer, queries, expected, k, least=0 if vectors is None else None)
    rows = [[69, 0, 33, 33], [], [5], [*range(90)], [89]]
    ids = [[f"t{row}" for row in some] for some in rows]
    ids[0].insert(1, "nobody")
    for vectors_read in (1, 1 << 16):
        monkeypatch.setattr(ranking, "VECTORS_READ", vectors_read)
        found = indexer.scores(queries, ids)
        assert [one.dtype for one in found] == [np.float32] * 5
        assert np.isnan(found[0]).tolist() == [False, True, False, False, False]
        for row, (one, some) in enumerate(zip(found, rows, strict=True)):
            np.testing.assert_allclose(one[~np.isnan(one)], expected[row, some], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize(("dim", "texts", "values"), [(1, 3, 2), (8, 90, 2), (8, 700, None), (384, 300, None)])
def test_a_query_without_torch_has_the_same_hits(tmp_path, dim, texts, values, dtype):
    """Bit for bit, with ties, across shards and blocks."""
    random = np.random.default_rng(0)
    size = texts + 1, dim
    drawn_values = random.standard_normal(size) if values is None else random.integers(-values, values, size)
    vectors = (drawn_values / 3).astype(dtype)
    store = write(tmp_path / "vectors", vectors=vectors[:-1], shard=70)
    indexer = opened("flat", store, tmp_path / "index", block=64)
    query = vectors[-1:].astype(np.float32)
    tensor = torch.from_numpy(query)
    assert indexer.array_size == dim
    for k in (1, 10, texts, texts + 5):
        (ids, scores), (expected, exact) = (indexer.search(one, k) for one in (query, Representation(tensor[:, None])))
        assert ids == expected
        np.testing.assert_array_equal(scores, exact)
        assert scores[0].dtype == np.float32


@pytest.mark.parametrize("options", [{"precision": "bf16"}, {"view": "all"}, {"view": "weights"}])
def test_only_exact_search_of_vectors_runs_without_torch(tmp_path, options):
    random, many = np.random.default_rng(0), "precision" not in options
    weights = drawn_weights(random, 30) if many else None
    store = write(tmp_path / "vectors", vectors=drawn(30), weights=weights)
    assert not opened("flat", store, tmp_path / "index", **options).array_size
    several = write(tmp_path / "several", vectors=drawn(60), counts=[2] * 30)
    assert not opened("flat", several, tmp_path / "several-index").array_size


@pytest.mark.parametrize("name", ["flat", "dense_sparse"])
def test_the_number_of_threads_changes_nothing(tmp_path, name):
    random = np.random.default_rng(0)
    vectors, weights, asked = drawn(90), drawn_weights(random, 90), drawn_weights(random, 40)
    store = write(tmp_path / "vectors", vectors=vectors, weights=weights)
    queries = Representation(torch.from_numpy(drawn(40, 1))[:, None], None, torch.from_numpy(asked))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        expected = scores(queries, representation(vectors, ONE, weights)).numpy()
        assert_best(opened(name, store, tmp_path / "index"), queries, expected, 10)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_precision_changes_the_scores_a_little(tmp_path):
    store = write(tmp_path / "vectors", vectors=drawn(70))
    queries = Representation(torch.from_numpy(drawn(5, 1))[:, None])
    (exact, *_), (rough, *_) = (
        opened("flat", store, tmp_path / name, precision=name).search(queries, 5)[1] for name in ("fp32", "bf16")
    )
    assert not np.array_equal(exact, rough)
    np.testing.assert_allclose(exact, rough, rtol=0.1)
