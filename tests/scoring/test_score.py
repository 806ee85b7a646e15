"""The scoring rule, and exact search by it."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit import scoring
from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorBlock
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.scoring import tiles


def brute_force(query, document):
    """The scoring rule for a query and a document of (vectors, weights)."""
    (q_vectors, q_weights), (d_vectors, d_weights) = query, document
    total = 0.0
    if q_vectors is not None:
        total += sum(max(float(q @ d) for d in d_vectors) for q in q_vectors)
    if q_weights is not None:
        total += float(q_weights @ d_weights)
    return total


@st.composite
def collections(draw):
    """Queries and documents of small whole numbers: sums are exact, and often equal."""
    random = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    kind = draw(st.sampled_from(["vectors", "weights", "both"]))
    m_query = draw(st.sampled_from([1, 1, 3]))
    uniform = draw(st.booleans())
    most, dim = draw(st.integers(1, 4)), 3
    texts, queries = draw(st.integers(1, 30)), draw(st.integers(1, 5))

    def text(m):
        vectors = None if kind == "weights" else random.integers(-1, 2, (m, dim)).astype(np.float32)
        weights = None if kind == "vectors" else random.integers(0, 2, 4).astype(np.float32)
        return vectors, weights

    counts = [most if uniform else int(random.integers(1, most + 1)) for _ in range(texts)]
    query_counts = [m_query if uniform else int(random.integers(1, m_query + 1)) for _ in range(queries)]
    return [text(m) for m in query_counts], [text(m) for m in counts]


def representation(texts):
    """Texts of (vectors, weights) as a Representation, padded and masked if their lengths differ."""
    vectors, mask, weights = None, None, None
    if texts[0][0] is not None:
        longest = max(len(one) for one, _ in texts)
        vectors = torch.full((len(texts), longest, texts[0][0].shape[1]), 7.0)
        mask = torch.zeros(len(texts), longest, dtype=torch.bool)
        for row, (one, _) in enumerate(texts):
            vectors[row, : len(one)] = torch.from_numpy(one)
            mask[row, : len(one)] = True
        mask = None if mask.all() else mask
    if texts[0][1] is not None:
        weights = torch.from_numpy(np.stack([one for _, one in texts]))
    return Representation(vectors, mask, weights)


def blocks(documents, size):
    """The documents in blocks of `size` texts."""
    for first in range(0, len(documents), size):
        part = documents[first : first + size]
        vectors, starts, weights = None, None, None
        if part[0][0] is not None:
            vectors = np.concatenate([one for one, _ in part])
            counts = [len(one) for one, _ in part]
            starts = np.cumsum([0, *counts]) if len(set(counts)) > 1 else None
        if part[0][1] is not None:
            weights = scipy.sparse.csr_matrix(np.stack([one for _, one in part]))
        yield VectorBlock(first, len(part), vectors, starts, weights)


def expected_top(queries, documents, k):
    """The first k of all scores, sorted; ties by position; with weights only, documents that share a term."""
    for query in queries:
        ranked = sorted((-brute_force(query, document), row) for row, document in enumerate(documents))
        if query[0] is None:
            ranked = [one for one in ranked if one[0] < 0]
        yield [(row, -negative) for negative, row in ranked[:k]]


def found(scores, rows):
    """The (row, score) pairs of each query's hits."""
    for query_scores, query_rows in zip(scores.tolist(), rows.tolist(), strict=True):
        yield [(row, value) for value, row in zip(query_scores, query_rows, strict=True) if row >= 0]


@settings(max_examples=40, deadline=None)
@given(collection=collections())
def test_scores_follow_the_rule(collection):
    """The sum over query vectors of the greatest inner product, plus the product of the weights, without padding."""
    queries, documents = collection
    all_scores = scoring.scores(representation(queries), representation(documents))
    expected = [[brute_force(query, document) for document in documents] for query in queries]
    np.testing.assert_array_equal(all_scores.numpy(), np.array(expected, np.float32))


@settings(max_examples=100, deadline=None)
@given(collection=collections(), k=st.integers(1, 40), size=st.integers(1, 31), width=st.sampled_from([0, 5, 64]))
def test_top_k_equals_sorting_all_scores(collection, k, size, width):
    """With one and many vectors, weights, ties, k above the number of documents, and blocks of any size."""
    queries, documents = collection
    result = scoring.top_k(representation(queries), blocks(documents, size), k, width=width)
    expected = list(expected_top(queries, documents, k))
    assert list(found(*result)) == expected
    # Documents in memory are one block.
    assert list(found(*scoring.top_k(representation(queries), representation(documents), k))) == expected


@pytest.mark.parametrize("m", [1, 3])
@pytest.mark.parametrize("order", ["drawn", "ascending", "descending", "equal"])
def test_top_k_over_many_blocks_in_any_order(monkeypatch, m, order):
    """Also if each block is better than all earlier blocks, and if the queries are split into small tiles."""
    monkeypatch.setattr(tiles, "CPU_TILE", 1024)
    monkeypatch.setattr(tiles, "LEAST_PART", 1)
    random = np.random.default_rng(3)
    documents = random.integers(-9, 10, (900, m, 4)).astype(np.float32)
    queries = np.abs(random.integers(1, 9, (11, 1, 4))).astype(np.float32)
    if order != "drawn":
        documents = np.sort(documents, axis=0) if order != "equal" else np.ones_like(documents)
    if order == "descending":
        documents = documents[::-1].copy()
    parts = [(one, None) for one in documents]
    result = scoring.top_k(Representation(torch.from_numpy(queries)), blocks(parts, 50), 7, width=50 * m)
    assert list(found(*result)) == list(expected_top([(one, None) for one in queries], parts, 7))


def test_equal_documents_tie_at_any_position():
    """Copies of a document in blocks of different sizes have equal scores, and keep their order."""
    random = np.random.default_rng(0)
    documents = random.standard_normal((500, 1, 33)).astype(np.float32)
    copies = [3, 77, 130, 131, 240, 499]
    documents[copies] = documents[3]
    for count in (1, 2, 9):
        queries = np.repeat(documents[3:4], count, axis=0)
        parts = [(one, None) for one in documents]
        scores, rows = scoring.top_k(Representation(torch.from_numpy(queries)), blocks(parts, 120), 6, width=128)
        assert rows.tolist() == [copies] * count
        assert [len(set(one.tolist())) for one in scores] == [1] * count


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("limit", [0, 100, 300])
def test_scores_in_bounded_memory_have_the_same_gradient(monkeypatch, masked, limit):
    """Scores and the gradients of both sides do not depend on the number of documents compared at a time."""
    generator = torch.Generator().manual_seed(0)
    mask = torch.rand(7, 5, generator=generator) < 0.6
    mask[:, 0] = True
    query_mask = torch.arange(3) < torch.tensor([[3], [1], [2], [3]])
    weighting = torch.randn(4, 7, generator=generator)
    found = []
    for most in (1 << 26, limit):
        monkeypatch.setattr(scoring.rule, "LIMIT", most)
        again = torch.Generator().manual_seed(1)
        queries = torch.randn(4, 3, 6, generator=again, requires_grad=True)
        documents = torch.randn(7, 5, 6, generator=again, requires_grad=True)
        sides = (queries, query_mask if masked else None), (documents, mask if masked else None)
        scores = scoring.scores(*(Representation(*side) for side in sides))
        (scores * weighting).sum().backward()
        found.append((scores.detach(), queries.grad, documents.grad))
    for plain, chunked in zip(*found, strict=True):
        torch.testing.assert_close(plain, chunked)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("limit", [0, 100, 1 << 26])
def test_the_first_of_equal_products_receives_the_gradient(monkeypatch, limit, dtype):
    """Not all of a document's vectors with equal products, nor a vector that depends on the size of the batch."""
    monkeypatch.setattr(scoring.rule, "LIMIT", limit)
    generator = torch.Generator().manual_seed(0)
    # Whole numbers, whose sums are exact in bf16.
    queries = torch.randint(-1, 2, (3, 2, 4), generator=generator).to(dtype)
    documents = torch.randint(-1, 2, (9, 5, 4), generator=generator).to(dtype)
    mask = torch.rand(9, 5, generator=generator) < 0.8
    mask[:, 1] = True
    expected = torch.zeros(9, 5, 4)
    ties = 0
    for query, (row, document) in itertools.product(queries.flatten(0, 1), enumerate(documents)):
        products = [float(query @ vector) if real else -99.0 for vector, real in zip(document, mask[row], strict=True)]
        expected[row, products.index(max(products))] += query.float()
        ties += products.count(max(products)) > 1
    assert ties > 10
    documents.requires_grad_()
    scoring.scores(Representation(queries), Representation(documents, mask)).sum().backward()
    torch.testing.assert_close(documents.grad.float(), expected, rtol=0, atol=0)


def test_sides_that_do_not_fit_are_refused():
    """Vectors or weights on one side only, and different sizes."""
    dense, wide = Representation(torch.zeros(1, 1, 3)), Representation(torch.zeros(1, 1, 4))
    sparse = Representation(weights=torch.zeros(1, 5))
    for function in (scoring.scores, lambda queries, documents: scoring.top_k(queries, documents, 1)):
        with pytest.raises(UnsupportedError, match="queries have vectors of size 3 and documents of size 4"):
            function(dense, wide)
        with pytest.raises(UnsupportedError, match="have vectors and"):
            function(dense, sparse)
        with pytest.raises(UnsupportedError, match="have vectors and"):
            function(sparse, dense)
    with pytest.raises(OptionError, match="k is 0"):
        scoring.top_k(dense, dense, 0)


def test_missing_vectors_are_left_out():
    """faiss pads with -1; equal scores are in the order of the documents, not of the vectors."""
    rows, values = scoring.documents_of_vectors(np.array([5, 4, 2, -1]), np.array([2.0, 1.0, 1.0, -9.0]), 5, m=2)
    assert (rows.tolist(), values.tolist()) == ([2, 1], [2.0, 1.0])
    rows, _ = scoring.documents_of_vectors(np.array([4, 0]), np.array([1.0, 1.0]), 5, m=2)
    assert rows.tolist() == [0, 2]
