"""The indexer `impact` compared with matrix products and with Pyserini's searcher."""

import numpy as np
import pytest
import scipy.sparse
import torch
from retrievalkit_pyserini.impact import Impact
from retrievalkit_pyserini.quantization import Loss, Quantizer, heaviest

from retrievalkit.contracts import Representation
from retrievalkit.errors import OptionError, UnsupportedError


def representation(weights):
    return Representation(weights=torch.from_numpy(np.asarray(weights, dtype=np.float32)))


def built(source, folder, **options):
    folder.mkdir()
    index = Impact(**options)
    counts = index.build(source, folder)
    index.open(folder)
    return index, counts


def rounded(weights, scale, levels):
    return np.clip(np.rint(weights.astype(np.float64) * scale), 0, levels)


def brute_force(queries, impacts, scale, k):
    """Yield each query's best texts and scores, ties in index order, without texts that share no term."""
    for scores in queries.astype(np.float64) @ impacts.T / scale:
        best = np.argsort(-scores, kind="stable")[:k]
        yield best[scores[best] > 0], scores[best][scores[best] > 0]


@pytest.mark.parametrize("k", [3, 1000])
def test_hits_equal_those_of_the_rounded_weights(tmp_path, store, random_weights, k):
    weights, queries = random_weights(300), random_weights(20, seed=1)
    index, counts = built(store(300, weights=weights), tmp_path / "index")
    scale = 255 / weights.max()
    impacts = rounded(weights, scale, 255)
    ids, scores = index.search(representation(queries), k)
    for ours, ours_scores, (rows, expected) in zip(ids, scores, brute_force(queries, impacts, scale, k), strict=True):
        assert ours_scores.dtype == np.float32
        np.testing.assert_allclose(ours_scores, expected, rtol=1e-5)
        assert set(ours) == {f"t{row}" for row in rows}
    assert counts["texts"] == 300
    assert counts["terms"] == np.count_nonzero(impacts)
    assert counts["terms_dropped"] == np.count_nonzero(weights) - np.count_nonzero(impacts)


def test_pyserini_opens_it(tmp_path, store, random_weights, pyserini_import):
    """LuceneImpactSearcher finds the same texts for integer query weights; terms are column numbers."""
    from retrievalkit_pyserini.java import pyserini_module

    del pyserini_import
    weights, queries = random_weights(120), rounded(random_weights(5, seed=2), 20, 255)
    index, _ = built(store(120, weights=weights), tmp_path / "index")

    class Encoder:
        def encode(self, number):
            return {str(term): int(queries[int(number), term]) for term in np.flatnonzero(queries[int(number)])}

    searcher = pyserini_module("pyserini.search.lucene").LuceneImpactSearcher(str(tmp_path / "index/lucene"), Encoder())
    ids, scores = index.search(representation(queries), 10)
    scale = 255 / weights.max()
    for number, (ours, ours_scores) in enumerate(zip(ids, scores, strict=True)):
        hits = searcher.search(str(number), 10)
        np.testing.assert_allclose(ours_scores * scale, [hit.score for hit in hits], rtol=1e-5)
        whole = np.round(ours_scores * scale)
        # Pyserini orders equal scores by id.
        assert sorted(zip(-whole, ours, strict=True)) == [(-round(hit.score), hit.docid) for hit in hits]


def test_more_bits_lose_less(tmp_path, store, random_weights):
    """The reported loss falls with the bits; with many bits, hits equal those of exact weights."""
    weights, queries = random_weights(200), random_weights(10, seed=1)
    source = store(200, weights=weights)
    errors, shares = [], []
    for bits in (2, 4, 8, 16):
        index, counts = built(source, tmp_path / str(bits), bits=bits)
        errors.append(counts["relative_error"])
        shares.append(counts["overlap_at_10"])
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 0.1 > 1e-4 > errors[-1]
    assert shares[0] < shares[2] <= shares[3] == 1.0
    exact = queries @ weights.T
    ids, scores = index.search(representation(queries), 10)
    assert ids == [[f"t{row}" for row in np.argsort(-of_query)[:10]] for of_query in exact]
    np.testing.assert_allclose(scores, -np.sort(-exact)[:, :10], rtol=1e-3)


def test_scale(tmp_path, store):
    """A user's scale rounds small weights to 0 and clips large weights; both are counted."""
    weights = np.array([[0.02, 1.0, 0.0], [0.0, 0.3, 90.0]], dtype=np.float32)
    index, counts = built(store(2, weights=weights), tmp_path / "index", scale=10.0)
    assert (counts["terms"], counts["terms_dropped"], counts["terms_clipped"]) == (3, 1, 1)
    assert counts["relative_error"] == pytest.approx((0.02 + 64.5) / 91.32, abs=1e-6)
    ids, scores = index.search(representation(np.eye(3)), 5)
    assert ids == [[], ["t0", "t1"], ["t1"]]
    np.testing.assert_allclose(np.concatenate(scores), [1.0, 0.3, 25.5], rtol=1e-6)


def test_the_loss_by_hand():
    """Two texts find each other, until rounding removes the term that they share."""
    weights = scipy.sparse.csr_matrix(np.array([[1.0, 0.4, 0.0], [0.0, 0.4, 2.0]], dtype=np.float32))
    quantizer = Quantizer(scale=1.0, levels=255)
    impacts = quantizer(weights)
    assert impacts.toarray().tolist() == [[1, 0, 0], [0, 0, 2]]
    loss = Loss(quantizer, weights, np.array([0, 1]))
    loss.add(0, weights, impacts)
    assert loss.report() == {
        "terms": 2,
        "terms_dropped": 2,
        "terms_clipped": 0,
        "relative_error": round(0.8 / 3.8, 6),
        "overlap_at_10": 0.0,
    }


def test_the_heaviest_terms():
    weights = scipy.sparse.csr_matrix(np.array([[3, 1, 2, 2], [0, 0, 5, 0], [0, 0, 0, 0]], dtype=np.float32))
    assert heaviest(weights, 2).toarray().tolist() == [[3, 0, 2, 0], [0, 0, 5, 0], [0, 0, 0, 0]]


def test_vectors_are_ignored(tmp_path, store, random_weights):
    weights = random_weights(30)
    vectors = np.ones((30, 2, 4), dtype=np.float32)
    index, counts = built(store(30, weights=weights, vectors=vectors), tmp_path / "index")
    assert counts["vectors_left_aside"] == 60
    queries = Representation(vectors=torch.ones(1, 1, 4), weights=torch.from_numpy(weights[:1]))
    assert index.search(queries, 5)[0] == index.search(representation(weights[:1]), 5)[0]


@pytest.mark.parametrize(
    ("kind", "options", "problem"),
    [
        ("vectors", {}, "has vectors, but no weights"),
        ("zeros", {}, "no weights above 0"),
        ("negative", {}, "negative weights"),
        ("weights", {"scale": 1e-6}, "are 0 when multiplied"),
    ],
)
def test_unsuitable_weights_are_refused(tmp_path, store, random_weights, kind, options, problem):
    weights = random_weights(20)
    parts = {
        "vectors": {"vectors": np.ones((20, 1, 4), dtype=np.float32)},
        "zeros": {"weights": weights * 0},
        "negative": {"weights": -weights},
        "weights": {"weights": weights},
    }
    folder = tmp_path / "index"
    folder.mkdir()
    with pytest.raises(UnsupportedError, match=problem):
        Impact(**options).build(store(20, **parts[kind]), folder)
    assert not list(folder.iterdir())


def test_unsuitable_queries_are_refused(tmp_path, store, random_weights):
    index, _ = built(store(20, weights=random_weights(20)), tmp_path / "index")
    with pytest.raises(UnsupportedError, match="queries have none"):
        index.search(Representation(vectors=torch.ones(1, 1, 4)), 5)
    with pytest.raises(UnsupportedError, match="over 7 terms"):
        index.search(representation(np.ones((1, 7))), 5)
    with pytest.raises(UnsupportedError, match="negative"):
        index.search(representation(-random_weights(1)), 5)
    with pytest.raises(OptionError, match="k is 0"):
        index.search(representation(random_weights(1)), 0)
