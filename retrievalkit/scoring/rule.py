"""The scoring rule, which compares two representations.

    score(q, d) = sum over query vectors j of  max over document vectors i of  <q_j, d_i>   +   <weights_q, weights_d>

If vectors have keys, the maximum is over the document vectors of the key of q_j, and 0 if there are none.

DPR has one vector on each side; MLR, ME-BERT and MVR one query vector and m document vectors; ColBERT many of both
(late interaction, MaxSim; Khattab and Zaharia 2020); SPLADE only weights; CoT-MAE v2 a vector and weights. COIL (Gao
et al. 2021) has many vectors with their tokens as keys, CITADEL (Li et al. 2023) with the lexical keys of a router.

`scores` compares all pairs; `ranking.top_k` finds the top documents of a collection block by block.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn import functional

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorBlock, View
from retrievalkit.errors import UnsupportedError

# Inner products in memory at a time.
LIMIT = 1 << 24


def scores(queries: Representation, documents: Representation) -> Tensor:
    """Return the scores (Q, D) of every query with every document.

    Raises:
        UnsupportedError: One side has vectors or weights that the other lacks, or their sizes differ.
    """
    check_comparable(queries, documents)
    total = None
    if queries.vectors is not None:
        best = _best_products(queries, documents)
        if queries.vector_mask is not None:
            best = best.masked_fill(~queries.vector_mask[:, :, None], 0.0)
        total = best.sum(dim=1)
    if queries.weights is not None and documents.weights is not None:
        lexical = queries.weights @ documents.weights.T
        total = lexical if total is None else total + lexical
    assert total is not None
    return total


def _best_products(queries: Representation, documents: Representation) -> Tensor:
    """Return the greatest inner product of each query vector with each document's vectors of its key, (Q, m_q, D).

    Late interaction (MaxSim) of 128 queries of 32 vectors with 1,024 documents of 200 computes 840 million products.
    Only the maximum has a gradient, so a few documents are compared at a time, and the index of the greatest product is
    kept. Of equal products, the first receives the gradient, unlike in amax.
    """
    assert queries.vectors is not None
    assert documents.vectors is not None
    n_queries, m_q, _ = queries.vectors.shape
    texts, m_d, _ = documents.vectors.shape
    if m_d == 1:
        best = vector_scores(queries, documents).squeeze(3)
    else:
        size = max(1, LIMIT // max(1, n_queries * m_q * m_d))
        parts = (documents.rows(slice(first, first + size)) for first in range(0, texts, size))
        best = torch.cat([vector_scores(queries, part).max(dim=3).values for part in parts], dim=2)
    return best if queries.keys is None else best.masked_fill(best == float("-inf"), 0.0)


def vector_scores(queries: Representation, documents: Representation) -> Tensor:
    """Return the inner products of query and document vectors, (Q, m_q, D, m_d); -inf if missing, or if keys differ."""
    assert queries.vectors is not None
    assert documents.vectors is not None
    n_queries, m_q, dim = queries.vectors.shape
    n_documents, m_d, _ = documents.vectors.shape
    # One matrix product, which is far faster than an einsum over four axes.
    flat = queries.vectors.reshape(-1, dim) @ documents.vectors.reshape(-1, dim).T
    products = flat.view(n_queries, m_q, n_documents, m_d)
    if documents.vector_mask is not None:
        products = products.masked_fill(~documents.vector_mask, float("-inf"))
    if queries.keys is not None and documents.keys is not None:
        products = products.masked_fill(queries.keys[:, :, None, None] != documents.keys, float("-inf"))
    return products


def own_scores(queries: Representation, documents: Representation, positives: Tensor) -> Tensor:
    """Return the scores of single-vector queries with the vectors of their positives, (Q, m); -inf if missing."""
    assert queries.vectors is not None
    assert documents.vectors is not None
    own = (documents.vectors[positives] @ queries.vectors.transpose(1, 2))[:, :, 0]
    return own if documents.vector_mask is None else own.masked_fill(~documents.vector_mask[positives], float("-inf"))


def cross_entropy_in_batch(logits: Tensor, positives: Tensor, ignore: Tensor | None) -> Tensor:
    """Return the mean cross-entropy of logits (Q, D) and positives (Q,); `ignore` (Q, D) masks in-batch negatives."""
    if ignore is not None:
        logits = logits.masked_fill(ignore, float("-inf"))
    return functional.cross_entropy(logits, positives)


def viewed(queries: Representation, view: View) -> Representation:
    """Return the part of the queries that an index compares; UnsupportedError if they lack it."""
    if view == "all":
        return queries
    if getattr(queries, view) is None:
        msg = f"the index holds {view}, and the queries have none. Use the model that encoded the index."
        raise UnsupportedError(msg)
    return replace(queries, weights=None) if view == "vectors" else Representation(weights=queries.weights)


def vectors_alone(queries: Representation, dim: int) -> Tensor:
    """Return the vectors of queries, for an index of only vectors of this size; UnsupportedError for other queries."""
    if queries.vectors is None or queries.weights is not None or queries.keys is not None:
        has = "keys of vectors" if queries.keys is not None else "weights"
        msg = f"the index holds only vectors, and the queries also have {has}. Use the model that encoded the index."
        raise UnsupportedError(msg)
    _check_sizes("vectors", queries.vectors.shape[2], dim)
    return queries.vectors


def check_comparable(queries: Representation, documents: Representation | VectorBlock) -> None:
    """Refuse texts that the queries cannot be compared with."""
    for kind in ("vectors", "weights"):
        query, document = getattr(queries, kind), getattr(documents, kind)
        _check_sizes(kind, 0 if query is None else query.shape[-1], 0 if document is None else document.shape[-1])
    _check_sizes("keys of vectors", int(queries.keys is not None), int(documents.keys is not None))


def _check_sizes(kind: str, query: int, document: int) -> None:
    if bool(query) != bool(document):
        has, lacks = ("documents", "queries") if not query else ("queries", "documents")
        msg = f"{has} have {kind} and {lacks} have none, so they cannot be compared. Encode both with one model."
        raise UnsupportedError(msg)
    if query != document:
        msg = f"queries have {kind} of size {query} and documents of size {document}. Encode both with one model."
        raise UnsupportedError(msg)
