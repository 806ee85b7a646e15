"""Random vectors in many shards, queries for them, and the comparison of two indexes."""

from __future__ import annotations

import numpy as np
import torch

from retrievalkit.contracts import Representation
from vector_folders import write as write_store

TEXTS, DIM, TERMS, QUERIES = 700, 16, 40, 70
# Indexer, vectors of a text, weights over a vocabulary, vectors of a query.
KINDS = {
    "flat": ("flat", 1, False, 1),
    "flat, eight vectors": ("flat", 8, False, 1),
    "flat, late interaction": ("flat", 0, False, 4),
    "flat, vectors and weights": ("flat", 1, True, 1),
    "faiss": ("faiss", 1, False, 1),
    "faiss, varying vectors": ("faiss", 0, False, 1),
    "sparse": ("sparse", 1, True, 1),
    "dense_sparse": ("dense_sparse", 1, True, 1),
}


def write(folder, m, *, weighted):
    """Write random vectors, some of them twice, in shards of 64 texts; m 0 = one to four vectors per text."""
    random = np.random.default_rng(m)
    counts = random.integers(1, 5, TEXTS) if m == 0 else np.full(TEXTS, m)
    rows = [random.standard_normal((count, DIM)).astype(np.float32) for count in counts]
    terms = random.random((TEXTS, TERMS)).astype(np.float32) * (random.random((TEXTS, TERMS)) < 0.2)
    for copy in range(300, TEXTS, 7):
        rows[copy], counts[copy], terms[copy] = rows[copy % 50], counts[copy % 50], terms[copy % 50]
    ids = [f"d{row}" for row in range(TEXTS)]
    weights = terms if weighted else None
    options = {"shard_texts": 64}
    write_store(
        folder, ids=ids, vectors=np.concatenate(rows), counts=counts, weights=weights, shard=64, options=options
    )
    return folder


def asked(m, *, weighted):
    random = np.random.default_rng(9)
    vectors = torch.from_numpy(random.standard_normal((QUERIES, m, DIM)).astype(np.float32))
    return Representation(vectors, None, torch.rand(QUERIES, TERMS) if weighted else None)


def assert_same(one, other, queries):
    """Check that two indexes return equal hits and scores, bit by bit."""
    for k in (1, 50, 2 * TEXTS):
        (ids, scores), (wanted_ids, wanted) = one.search(queries, k), other.search(queries, k)
        assert ids == wanted_ids
        assert [values.tobytes() for values in scores] == [values.tobytes() for values in wanted]
    names = [["d3", "d699", "nobody", "d64"]] * QUERIES
    for found, right in zip(one.scores(queries, names), other.scores(queries, names), strict=True):
        assert found.tobytes() == right.tobytes()
