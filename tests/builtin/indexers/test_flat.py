"""The flat index: exact, for every kind of representation, from a folder of its own."""

from __future__ import annotations

import numpy as np
import pytest
import scipy.sparse
import torch

from retrievalkit import registry
from retrievalkit.builtin.indexers.flat import Flat
from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.score import ranking, scores


def written(folder, *, texts=70, m=1, ragged=False, dense=True, sparse=False, dtype=np.float32, shard=20):
    """Write a random vectors folder; returns its Representation, in memory."""
    random = np.random.default_rng(1)
    folder.mkdir()
    writer = VectorWriter(folder)
    mask, vectors, weights, counts = None, None, None, np.full(texts, m)
    if ragged:
        counts = random.integers(1, m + 1, texts)
        mask = torch.from_numpy(np.arange(m) < counts[:, None])
    if dense:
        vectors = torch.from_numpy(random.standard_normal((texts, m, 8)).astype(dtype))
    if sparse:
        weights = torch.from_numpy(random.random((texts, 30)) * (random.random((texts, 30)) < 0.3)).float()
    for number, start in enumerate(range(0, texts, shard)):
        part = slice(start, start + shard)
        rows = None
        if vectors is not None:
            rows = (vectors[part].reshape(-1, 8) if mask is None else vectors[part][mask[part]]).numpy()
        writer.write_shard(
            number,
            [f"t{row}" for row in range(texts)][part],
            rows,
            counts=counts[part],
            weights=None if weights is None else scipy.sparse.csr_matrix(weights[part].numpy()),
        )
    writer.finish()
    return Representation(None if vectors is None else vectors.float(), mask, weights)


def opened(vectors, folder, **options):
    """The index of a vectors folder, built by one indexer and opened by another."""
    folder.mkdir()
    counts = Flat(**options).build(VectorStore(vectors), folder)
    assert counts["texts"] == len(VectorStore(vectors))
    indexer = Flat(**options)
    indexer.open(folder)
    return indexer


def queries_like(documents, *, m=1, count=5):
    random = torch.Generator().manual_seed(7)
    vectors, weights = None, None
    if documents.vectors is not None:
        vectors = torch.randn(count, m, documents.vectors.shape[2], generator=random)
    if documents.weights is not None:
        weights = torch.rand(count, documents.weights.shape[1], generator=random)
        weights = weights * (weights > 0.6)
    return Representation(vectors, None, weights)


def assert_exact(indexer, queries, documents, k):
    ids, values = indexer.search(queries, k)
    expected = scores(queries, documents).topk(min(k, len(documents)))
    for row in range(len(queries)):
        assert ids[row] == [f"t{text}" for text in expected.indices[row].tolist()]
        np.testing.assert_allclose(values[row], expected.values[row].numpy(), rtol=1e-5, atol=1e-5)
        assert values[row].dtype == np.float32


@pytest.mark.parametrize("query_vectors", [1, 3])
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"m": 4},
        {"m": 4, "ragged": True},
        {"dense": False, "sparse": True},
        {"sparse": True},
        {"m": 3, "ragged": True, "sparse": True},
        {"dtype": np.float16, "m": 2},
    ],
    ids=str,
)
def test_it_finds_what_comparing_with_every_text_finds(tmp_path, kind, query_vectors):
    """One and many vectors on both sides, weights, both together, half precision; with blocks that cut shards."""
    documents = written(tmp_path / "vectors", **kind)
    queries = queries_like(documents, m=query_vectors)
    indexer = opened(tmp_path / "vectors", tmp_path / "index", block=16)
    for k in (1, 9):
        assert_exact(indexer, queries, documents, k)


def test_weights_alone_find_only_what_shares_a_term(tmp_path):
    """As in every lexical search engine; a score of 0 is no hit."""
    documents = written(tmp_path / "vectors", dense=False, sparse=True)
    query = torch.zeros(1, 30)
    query[0, 5] = 1.0
    ids, values = opened(tmp_path / "vectors", tmp_path / "index").search(Representation(weights=query), 70)
    assert len(ids[0]) == int((documents.weights[:, 5] > 0).sum())
    assert (values[0] > 0).all()


def test_precision_changes_the_scores(tmp_path):
    """bf16 scores are rough."""
    documents = written(tmp_path / "vectors")
    queries = queries_like(documents)
    exact = opened(tmp_path / "vectors", tmp_path / "a").search(queries, 5)[1]
    rough = opened(tmp_path / "vectors", tmp_path / "b", precision="bf16").search(queries, 5)[1]
    assert not np.array_equal(exact[0], rough[0])
    np.testing.assert_allclose(exact[0], rough[0], rtol=0.1)


@pytest.mark.parametrize("query_vectors", [1, 3])
@pytest.mark.parametrize(
    "kind",
    [{}, {"m": 4, "ragged": True}, {"dense": False, "sparse": True}, {"m": 3, "sparse": True}, {"dtype": np.float16}],
    ids=str,
)
def test_given_texts_get_the_score_of_the_rule(tmp_path, monkeypatch, kind, query_vectors):
    """Each query its own texts, in any order, of any shard, in groups of any size; NaN for a text that is not there."""
    documents = written(tmp_path / "vectors", **kind)
    queries = queries_like(documents, m=query_vectors, count=4)
    indexer = opened(tmp_path / "vectors", tmp_path / "index")
    expected = scores(queries, documents).numpy()
    asked = [[69, 0, 33, 33], [], [5], list(range(70))]
    ids = [[f"t{text}" for text in row] for row in asked]
    ids[0].insert(1, "nobody")
    ids[1].append("t")
    for taken in (1, 1 << 16):
        monkeypatch.setattr(ranking, "TAKEN", taken)
        found = indexer.scores(queries, ids)
        assert [one.dtype for one in found] == [np.float32] * 4
        assert np.isnan(found[0][1])
        assert np.isnan(found[1]).tolist() == [True]
        for row in (0, 2, 3):
            known = found[row][~np.isnan(found[row])]
            np.testing.assert_allclose(known, expected[row, asked[row]], rtol=1e-5, atol=1e-5)


def test_wrong_options_are_refused():
    """A block of nothing, a GPU that is not there, a precision that nobody knows."""
    with pytest.raises(OptionError, match="'block'"):
        registry.create("indexer", "flat", block=0)
    with pytest.raises(OptionError, match="precision"):
        registry.create("indexer", "flat", precision="fp8")
    if not torch.cuda.is_available():
        with pytest.raises(UnsupportedError, match="no GPU"):
            registry.create("indexer", "flat", device="cuda")
