"""The one rule by which two representations are compared.

    score(q, d) = sum over query vectors j of  max over document vectors i of  <q_j, d_i>   +   <weights_q, weights_d>

DPR has one vector on each side; MLR, ME-BERT and MVR one query vector and m document vectors; ColBERT many of both (its
MaxSim, Khattab and Zaharia 2020); SPLADE weights alone; CoT-MAE v2 a vector and weights.

`scores` compares all with all; `top_k` finds the best documents of a collection that is given block by block, exactly,
in memory that does not grow with it.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import View
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring import max_products


def scores(queries: Representation, documents: Representation) -> Tensor:
    """The score of every query with every document.

    Args:
        queries: Q texts.
        documents: D texts.

    Returns:
        (Q, D) scores.

    Raises:
        UnsupportedError: One side has vectors or weights that the other lacks, or their sizes differ.
    """
    _check_comparable(queries, documents)
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
    """(Q, m_q, D): the greatest inner product of each query vector with each document's vectors.

    Of equal products, the first receives the gradient, whichever way the size chooses.
    """
    assert queries.vectors is not None
    assert documents.vectors is not None
    rows, (texts, m, _) = queries.vectors.flatten(0, 1), documents.vectors.shape
    if m == 1:
        return vector_scores(queries, documents).squeeze(3)
    if len(rows) * texts * m <= max_products.LIMIT:
        # Not amax, which divides the gradient among equal products.
        return vector_scores(queries, documents).max(dim=3).values
    found = max_products.max_products(rows, documents.vectors, documents.vector_mask)
    return found.view(*queries.vectors.shape[:2], texts)


def vector_scores(queries: Representation, documents: Representation) -> Tensor:
    """The inner product of every query vector with every document vector.

    Returns:
        (Q, m_q, D, m_d) inner products, -inf where the document has no such vector.
    """
    assert queries.vectors is not None
    assert documents.vectors is not None
    n_queries, m_q, dim = queries.vectors.shape
    n_documents, m_d, _ = documents.vectors.shape
    # One matrix product, which is far faster than an einsum over four axes.
    flat = queries.vectors.reshape(-1, dim) @ documents.vectors.reshape(-1, dim).T
    products = flat.view(n_queries, m_q, n_documents, m_d)
    if documents.vector_mask is not None:
        products = products.masked_fill(~documents.vector_mask, float("-inf"))
    return products


def viewed(queries: Representation, view: View) -> Representation:
    """The queries with what an index compares of them.

    Raises:
        UnsupportedError: They have not got it.
    """
    if view == "all":
        return queries
    if getattr(queries, view) is None:
        msg = f"the index holds {view}, and the queries have none. Use the model that the index was made with."
        raise UnsupportedError(msg)
    return replace(queries, weights=None) if view == "vectors" else Representation(weights=queries.weights)


def vectors_alone(queries: Representation, dim: int) -> Tensor:
    """The vectors of queries, for an index that holds vectors of this length and nothing else.

    Raises:
        UnsupportedError: They have weights, no vectors, or vectors of another length.
    """
    if queries.vectors is None or queries.weights is not None:
        msg = "the index holds vectors alone, and the queries have weights. Use the model that the index was made with."
        raise UnsupportedError(msg)
    check_sizes("vectors", queries.vectors.shape[2], dim)
    return queries.vectors


def _check_comparable(queries: Representation, documents: Representation) -> None:
    for what in ("vectors", "weights"):
        query, document = getattr(queries, what), getattr(documents, what)
        check_sizes(what, 0 if query is None else query.shape[-1], 0 if document is None else document.shape[-1])


def check_sizes(what: str, query: int, document: int) -> None:
    """Refuse sizes that differ between the two sides; 0 means that a side has none."""
    if bool(query) != bool(document):
        has, lacks = ("documents", "queries") if not query else ("queries", "documents")
        msg = f"{has} have {what} and {lacks} have none, so they cannot be compared. Encode both with one model."
        raise UnsupportedError(msg)
    if query != document:
        msg = f"queries have {what} of size {query} and documents of size {document}. Encode both with one model."
        raise UnsupportedError(msg)
