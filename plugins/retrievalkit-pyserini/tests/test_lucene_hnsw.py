"""The graph compared with brute force: a search as wide as the index finds the same texts."""

import numpy as np
import pytest
import torch
from retrievalkit_pyserini.lucene_hnsw import LuceneHnsw

from retrievalkit.contracts import Representation
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.scoring import scores as all_scores


def drawn(texts, m=1, dim=8, seed=0):
    return np.random.default_rng(seed).standard_normal((texts, m, dim)).astype(np.float32)


def representation(vectors, mask=None):
    return Representation(torch.from_numpy(vectors), None if mask is None else torch.from_numpy(mask))


def built(source, folder, **options):
    folder.mkdir()
    index = LuceneHnsw(**options)
    counts = index.build(source, folder)
    index.open(folder)
    return index, counts


def assert_exact(index, queries, documents, k):
    exact = all_scores(queries, documents).numpy()
    results = index.search(queries, k)
    for ids, ours, theirs in zip(*results, exact, strict=True):
        order = np.argsort(-theirs, kind="stable")[:k]
        assert ids == [f"t{row}" for row in order]
        assert ours.dtype == np.float32
        np.testing.assert_allclose(ours, theirs[order], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("k", [1, 10, 1000])
@pytest.mark.parametrize("threads", [1, 3])
def test_one_vector_per_text(tmp_path, store, k, threads):
    vectors = drawn(250)
    index, counts = built(store(250, vectors=vectors), tmp_path / "index", ef_search=250, threads=threads)
    assert counts == {"texts": 250, "vectors": 250}
    assert_exact(index, representation(drawn(12, seed=1)), representation(vectors), k)


def test_several_vectors_per_text(tmp_path, store):
    """The best vector of a text counts; the score of several query vectors is the sum of the best matches (MaxSim)."""
    vectors = drawn(60, m=3)
    index, _ = built(store(60, vectors=vectors), tmp_path / "index", ef_search=60)
    assert_exact(index, representation(drawn(6, seed=1)), representation(vectors), 20)
    mask = np.array([[True, True], [True, False]])
    assert_exact(index, representation(drawn(2, m=2, seed=2), mask), representation(vectors), 60)


def test_a_varying_number_of_vectors(tmp_path, store):
    """Texts with one to nine vectors are found by any of them; there are k hits even if a text has most vectors."""
    counts = np.array([9, 1, 2, 1, 3, 1, 1, 2])
    rows = drawn(counts.sum())[:, 0]
    rows[:9] *= 5
    padded, mask = np.zeros((8, 9, 8), dtype=np.float32), np.arange(9) < counts[:, None]
    padded[mask] = rows
    index, _ = built(store(8, vectors=rows, counts=counts), tmp_path / "index", ef_search=1)
    assert_exact(index, representation(drawn(5, seed=1)), representation(padded, mask), 8)


def test_a_wider_search_has_higher_recall(tmp_path, store):
    vectors, queries = drawn(900, dim=24), drawn(30, dim=24, seed=1)
    exact = all_scores(representation(queries), representation(vectors)).numpy()
    best = [{f"t{row}" for row in np.argsort(-of_query)[:10]} for of_query in exact]
    built(store(900, vectors=vectors), tmp_path / "index", threads=1)
    recalls = []
    for width in (10, 100, 900):
        index = LuceneHnsw(ef_search=width)
        index.open(tmp_path / "index")
        ids, _ = index.search(representation(queries), 10)
        recalls.append(np.mean([len(right & set(names)) / 10 for right, names in zip(best, ids, strict=True)]))
    assert recalls[0] < recalls[1] <= recalls[2]
    assert recalls[2] > 0.99


def test_pyserini_opens_it(tmp_path, store, pyserini):
    """LuceneHnswDenseSearcher's Java searcher finds the same texts; its scores are Lucene's, never below 0."""
    vectors, query = drawn(50), drawn(1, seed=1)
    index, _ = built(store(50, vectors=vectors), tmp_path / "index")
    searcher = pyserini.LuceneHnswDenseSearcher(str(tmp_path / "index/lucene"), ef_search=50).searcher
    hits = searcher.search(query[0, 0].tolist(), 5)
    (ids,), (scores,) = index.search(representation(query), 5)
    assert [hit.docid for hit in hits] == ids
    np.testing.assert_allclose(scores, [hit.score - 1 for hit in hits], rtol=1e-4)


def test_long_vectors_and_half_precision(tmp_path, store):
    vectors = drawn(12, dim=1024).astype(np.float16)
    index, _ = built(store(12, vectors=vectors), tmp_path / "index")
    assert_exact(index, representation(drawn(2, dim=1024, seed=1)), representation(vectors.astype(np.float32)), 3)


def test_unsuitable_vectors_are_refused(tmp_path, store, random_weights):
    folder = tmp_path / "index"
    folder.mkdir()
    for name, problem, part in (
        ("weights", "no vectors.*--indexer impact", {"weights": random_weights(6)}),
        ("both", "vectors and weights.*--indexer flat", {"weights": random_weights(6), "vectors": drawn(6)}),
        ("long", "1025 dimensions, but Lucene allows at most 1024", {"vectors": drawn(6, dim=1025)}),
    ):
        with pytest.raises(UnsupportedError, match=problem):
            LuceneHnsw().build(store(6, name=name, **part), folder)
    assert not list(folder.iterdir())


def test_unsuitable_queries_are_refused(tmp_path, store):
    index, _ = built(store(10, vectors=drawn(10)), tmp_path / "index")
    with pytest.raises(UnsupportedError, match="have weights"):
        index.search(Representation(weights=torch.ones(1, 5)), 5)
    with pytest.raises(UnsupportedError, match="size 3 and documents of size 8"):
        index.search(representation(drawn(1, dim=3)), 5)
    with pytest.raises(OptionError, match="k is 0"):
        index.search(representation(drawn(1)), 0)
