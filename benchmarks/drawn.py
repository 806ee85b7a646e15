"""Vectors and weights drawn at random, the same in every process: what the searches of both sides look through."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

TERMS = 30_522
QUERY_TERMS = 30
_PART = 1 << 14


def parts(texts: int, dim: int, vectors: int, terms: int) -> Iterator[tuple[Any, Any]]:
    """Vectors (texts of a part, vectors, dim) or None, and weights (texts of a part, TERMS) or None, part by part."""
    for number, start in enumerate(range(0, texts, _PART)):
        yield _draw(np.random.default_rng(number), min(_PART, texts - start), dim, vectors, terms)


def queries(count: int, dim: int, terms: int) -> tuple[Any, Any]:
    """As a part, of one vector and QUERY_TERMS terms each."""
    return _draw(np.random.default_rng(1_000_003), count, dim, 1, QUERY_TERMS if terms else 0)


def _draw(random: np.random.Generator, rows: int, dim: int, vectors: int, terms: int) -> tuple[Any, Any]:
    dense = random.standard_normal((rows, vectors, dim), dtype=np.float32) if dim else None
    return dense, _weights(random, rows, terms) if terms else None


def _weights(random: np.random.Generator, rows: int, each: int) -> scipy.sparse.csr_matrix:
    """So many draws of terms a text, frequent ones far more often than rare ones, as in language."""
    share = 1 / (np.arange(TERMS) + 50.0)
    drawn = np.searchsorted(np.cumsum(share / share.sum()), random.random(rows * each, dtype=np.float32))
    values = random.random(rows * each, dtype=np.float32)
    indptr = np.arange(0, rows * each + 1, each)
    found = scipy.sparse.csr_matrix((values, np.minimum(drawn, TERMS - 1), indptr), shape=(rows, TERMS))
    found.sum_duplicates()
    return found


def run_file(folder: Path, queries: int, depth: int) -> tuple[Path, Path]:
    """A run (TREC) and judgements of one document a query, as files; what is there already stays."""
    run, qrels = folder / f"run-{queries}-{depth}.trec", folder / f"run-{queries}-{depth}.qrels"
    if not qrels.exists():
        random = np.random.default_rng(0)
        judged = []
        with run.open("w") as stream:
            for query in range(queries):
                documents = random.choice(8_841_823, depth, replace=False).tolist()
                scores = np.sort(random.normal(80, 5, depth).astype(np.float32))[::-1].astype(str).tolist()
                pairs = zip(documents, scores, strict=True)
                stream.writelines(f"{query} Q0 {one} {rank} {score} t\n" for rank, (one, score) in enumerate(pairs, 1))
                judged.append(f"{query} 0 {documents[int(random.integers(depth))]} 1\n")
        qrels.write_text("".join(judged))
    return run, qrels
