"""Rough products, their error bound, and exact search with them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retrievalkit import scoring
from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorBlock
from retrievalkit.scoring import bf16_filter, tiles, two_stage
from vector_folders import write

QUERIES = bf16_filter.ENOUGH_QUERIES + 6


@pytest.fixture(autouse=True)
def bf16(monkeypatch):
    """A processor that multiplies bf16; torch emulates it on others."""
    monkeypatch.setattr(bf16_filter, "multiplies_bf16", lambda: True)


def drawn(kind, rows, dim, seed):
    """Vectors with different rounding errors: of any size, nearly equal, of one sign, or worst for bf16."""
    random = np.random.default_rng(seed)
    vectors = random.standard_normal((rows, dim), dtype=np.float32)
    if kind == "sizes":
        vectors *= np.exp(random.uniform(-20, 20, (rows, 1))).astype(np.float32)
    if kind == "alike":
        vectors = 1 + vectors / 1000
    if kind == "positive":
        vectors = np.abs(vectors)
    if kind == "halfway":
        # Exactly between two bf16 numbers, where rounding errs most.
        vectors = np.where(vectors > 0, np.float32(1 + 2**-8), np.float32(1 + 3 * 2**-8))
    return vectors


@pytest.mark.parametrize("kind", ["normal", "sizes", "alike", "positive", "halfway"])
@pytest.mark.parametrize("dim", [1, 48, 768])
@pytest.mark.parametrize("in_bf16", [True, False])
def test_the_error_of_rough_products_is_at_most_the_slack(kind, dim, in_bf16):
    """A rough product bounds the exact product from above and below; the exact product equals that of float64."""
    queries, documents = drawn(kind, 20, dim, 1), drawn(kind, 150, dim, 2)
    sides = [bf16_filter.Side.of(one, in_bf16=in_bf16) for one in (queries, documents)]
    slack, found = bf16_filter.slack(*sides), (sides[0].rough @ sides[1].rough.T).float()
    rows, columns = np.divmod(np.arange(20 * 150), 150)
    exact = torch.from_numpy(bf16_filter.of_pairs(queries, documents, rows, columns)).view(20, 150)
    assert (exact >= slack.below(found)).all()
    assert (exact <= slack.above(found)).all()
    assert (found >= slack.below(exact)).all()
    true = queries.astype(np.float64) @ documents.astype(np.float64).T
    np.testing.assert_allclose(exact.numpy(), true, rtol=1e-5, atol=1e-5 * np.abs(true).max())


def test_the_exact_product_of_a_pair_does_not_depend_on_other_pairs():
    """Alone, among others and at another position, it is the same to the last bit."""
    queries, documents = drawn("normal", 3, 77, 0), drawn("normal", 400, 77, 1)
    rows, columns = np.divmod(np.arange(1200), 400)
    together = bf16_filter.of_pairs(queries, documents, rows, columns)
    for pair in (0, 1, 399, 400, 1199):
        alone = bf16_filter.of_pairs(
            queries[rows[pair]][None], documents[columns[pair]][None], np.zeros(1, int), np.zeros(1, int)
        )
        assert alone.item() == together[pair]


def brute_force(queries, vectors, counts, k):
    """The top-k texts and scores by all exact products; ties in text order."""
    text_of = np.repeat(np.arange(len(counts)), counts)
    for query in queries:
        products = bf16_filter.of_query(query, vectors)
        best = np.full(len(counts), -np.inf, dtype=np.float32)
        np.maximum.at(best, text_of, products)
        order = np.argsort(-best, kind="stable")[:k]
        yield order.tolist(), best[order].tolist()


@pytest.mark.parametrize("kind", ["normal", "alike", "halfway", "copies"])
@pytest.mark.parametrize("form", ["single", "uniform", "varying"])
@pytest.mark.parametrize("k", [1, 7, 130])
def test_search_of_a_folder_returns_the_exact_top_k(tmp_path, monkeypatch, kind, form, k):
    """To the last bit, also if texts are nearly or exactly equal, have many vectors, or are few."""
    monkeypatch.setattr(two_stage, "_READ", 1 << 12)
    random = np.random.default_rng(5)
    texts = 700
    counts = {"single": np.full(texts, 1), "uniform": np.full(texts, 4), "varying": random.integers(1, 6, texts)}[form]
    vectors = drawn("normal" if kind == "copies" else kind, counts.sum(), 24, 8)
    if kind == "copies":
        vectors = vectors[random.integers(0, 5, len(vectors))]
    queries = drawn("normal", QUERIES, 24, 9)
    store = write(tmp_path / "vectors", vectors=vectors, counts=counts, shard=234)
    asked = Representation(torch.from_numpy(queries)[:, None])
    scores, rows = scoring.top_k_of_store(asked, store, k, block=97)
    expected = list(brute_force(queries, vectors, counts, k))
    assert list(zip(rows.tolist(), scores.tolist(), strict=True)) == expected
    for place in (0, QUERIES - 1):
        few = Representation(torch.from_numpy(queries[place : place + 1])[:, None])
        alone = scoring.top_k_of_store(few, store, k, block=64)
        assert (alone[1].tolist()[0], alone[0].tolist()[0]) == expected[place], "a single query has the same hits"


def test_weights_are_added_exactly(monkeypatch):
    """The score of a vector and weights is the sum of both exact products."""
    import scipy.sparse

    monkeypatch.setattr(tiles, "CPU_TILE", 4096)
    random = np.random.default_rng(0)
    vectors, queries = drawn("normal", 900, 16, 0), drawn("normal", QUERIES, 16, 1)
    weights = scipy.sparse.random(900, 50, 0.1, "csr", np.float32, rng=random)
    asked = scipy.sparse.random(QUERIES, 50, 0.2, "csr", np.float32, rng=random)
    blocks = [
        VectorBlock(start, 300, vectors[start : start + 300], None, weights[start : start + 300].tocsc())
        for start in (0, 300, 600)
    ]
    representation = Representation(torch.from_numpy(queries)[:, None], None, torch.from_numpy(asked.toarray()))
    scores, rows = scoring.top_k(representation, blocks, 9)
    lexical = (asked @ weights.T).toarray()
    for query in range(QUERIES):
        sums = bf16_filter.of_query(queries[query], vectors) + lexical[query]
        order = np.argsort(-sums, kind="stable")[:9]
        assert rows[query].tolist() == order.tolist()
        np.testing.assert_allclose(scores[query].numpy(), sums[order], rtol=1e-6)
