"""Texts, and how another library's vectors of them are compared with ours."""

from __future__ import annotations

import numpy as np
import pytest

from retrievalkit.model.retriever import open_retriever

QUERIES = ["what is the capital of peru", "currency", " ".join(["language"] * 90)]
PASSAGES = [
    ("", "the seat of government is a city, and people pay with it."),
    ("peru", ""),
    ("capital of peru", "the seat of government is a city, and people pay with it."),
    ("the language", " ".join(["the number"] * 90)),
]
TEXTS = {"query": QUERIES, "document": [f"{title} {text}".strip() for title, text in PASSAGES]}
PARTS = {"query": [("", text) for text in QUERIES], "document": PASSAGES}
"""Queries and passages as other libraries take them, one text each, and as (title, text) pairs."""


def rows_of(representation, row):
    """The vectors, or the weights, of one text as rows."""
    if representation.weights is not None:
        return representation.weights[row : row + 1].numpy()
    vectors = representation.vectors[row]
    return (vectors if representation.vector_mask is None else vectors[representation.vector_mask[row]]).numpy()


def assert_equal_vectors(model, found, **encoder_options):
    """Another library's vectors by side are those of a model of ours: cosines of 0.99999, and equal lengths."""
    retriever = open_retriever(model, encoder_options=encoder_options).to("cpu")
    for side, texts in PARTS.items():
        ours = retriever.encode(texts, side)
        for row in range(len(texts)):
            expected, given = rows_of(ours, row), np.atleast_2d(np.asarray(found[side][row], dtype=np.float32))
            assert given.shape == expected.shape, (side, row)
            norms = [np.linalg.norm(one, axis=1) for one in (expected, given)]
            assert ((expected * given).sum(axis=1) >= 0.99999 * norms[0] * norms[1] - 1e-9).all(), (side, row)
            assert norms[1] == pytest.approx(norms[0], rel=1e-3)
