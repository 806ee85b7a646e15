"""The one rule by which two representations are compared.

    score(q, d) = sum over query vectors j of  max over document vectors i of  <q_j, d_i>   +   <weights_q, weights_d>

DPR has one vector on each side; MLR, ME-BERT and MVR one query vector and m document vectors; ColBERT many of both (its
MaxSim, Khattab and Zaharia 2020); SPLADE weights alone; CoT-MAE v2 a vector and weights.
"""

from __future__ import annotations

from torch import Tensor

from retrievalkit.contracts import Representation
from retrievalkit.errors import UnsupportedError


def scores(queries: Representation, documents: Representation) -> Tensor:
    """The score of every query with every document.

    Args:
        queries: Q texts.
        documents: D texts.

    Returns:
        (Q, D) scores.

    Raises:
        UnsupportedError: One side has vectors or weights that the other has not, or their sizes differ.
    """
    _check_comparable(queries, documents)
    total = None
    if queries.vectors is not None:
        best = vector_scores(queries, documents).amax(dim=3)
        if queries.vector_mask is not None:
            best = best.masked_fill(~queries.vector_mask[:, :, None], 0.0)
        total = best.sum(dim=1)
    if queries.weights is not None and documents.weights is not None:
        lexical = queries.weights @ documents.weights.T
        total = lexical if total is None else total + lexical
    assert total is not None
    return total


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


def _check_comparable(queries: Representation, documents: Representation) -> None:
    for what in ("vectors", "weights"):
        query, document = getattr(queries, what), getattr(documents, what)
        if (query is None) != (document is None):
            has, lacks = ("documents", "queries") if query is None else ("queries", "documents")
            msg = f"{has} have {what} and {lacks} have none, so they cannot be compared. Encode both with one model."
            raise UnsupportedError(msg)
        if query is not None and query.shape[-1] != document.shape[-1]:
            msg = (
                f"queries have {what} of size {query.shape[-1]} and documents of size {document.shape[-1]}. "
                f"Encode both with one model."
            )
            raise UnsupportedError(msg)
