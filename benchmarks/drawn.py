"""Random vectors and weights, equal in every process, which both sides search."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

TERMS = 30_522
QUERY_TERMS = 30
RECALL = 0.95  # at k, of approximate indexes
_PART = 1 << 14


def parts(texts: int, dim: int, vectors: int, terms: int, latent: int = 0) -> Iterator[tuple[Any, Any]]:
    """Yield vectors (texts of a part, vectors, dim) or None, and weights (texts of a part, TERMS) or None.

    With `latent`, vectors have length 1 and lie near a subspace of that many dimensions, as the vectors of a model do.
    Without it all directions are equally likely, and no approximate index helps.
    """
    for number, start in enumerate(range(0, texts, _PART)):
        yield _draw(np.random.default_rng(number), min(_PART, texts - start), dim, vectors, terms, latent)


def queries(count: int, dim: int, terms: int, latent: int = 0) -> tuple[Any, Any]:
    """Queries as a part, each with one vector and QUERY_TERMS terms."""
    return _draw(np.random.default_rng(1_000_003), count, dim, 1, QUERY_TERMS if terms else 0, latent)


def nearest(texts: int, count: int, k: int, dim: int, latent: int) -> np.ndarray:
    """The rows (count, k) of the best texts of each query, by brute force."""
    vectors = queries(count, dim, 0, latent)[0][:, 0]
    scores = np.concatenate([vectors @ dense[:, 0].T for dense, _ in parts(texts, dim, 1, 0, latent)], axis=1)
    return np.argpartition(-scores, k, axis=1)[:, :k]


def recall(rows: np.ndarray, best: np.ndarray) -> float:
    """The fraction of each query's best rows that a search returns."""
    return float(np.mean([np.isin(*pair).mean() for pair in zip(best, rows, strict=True)]))


def least_effort(search: Callable[[int], np.ndarray], best: np.ndarray) -> int | None:
    """The smallest value of a search parameter that reaches RECALL, in steps of 20 %; None if no value does."""
    efforts = sorted({int(1.2**step) for step in range(35)})
    return next((effort for effort in efforts if recall(search(effort), best) >= RECALL), None)


def _draw(random: np.random.Generator, rows: int, dim: int, vectors: int, terms: int, latent: int) -> tuple[Any, Any]:
    dense = random.standard_normal((rows, vectors, dim), dtype=np.float32) if dim else None
    if latent:
        basis = np.random.default_rng(2_000_003).standard_normal((latent, dim), dtype=np.float32)
        dense = random.standard_normal((rows, vectors, latent), dtype=np.float32) @ basis + dense
        dense /= np.linalg.norm(dense, axis=-1, keepdims=True)
    return dense, _weights(random, rows, terms) if terms else None


def _weights(random: np.random.Generator, rows: int, each: int) -> scipy.sparse.csr_matrix:
    """Draw terms for each text, frequent terms far more often than rare terms, as in language."""
    share = 1 / (np.arange(TERMS) + 50.0)
    drawn = np.searchsorted(np.cumsum(share / share.sum()), random.random(rows * each, dtype=np.float32))
    values = random.random(rows * each, dtype=np.float32)
    indptr = np.arange(0, rows * each + 1, each)
    weights = scipy.sparse.csr_matrix((values, np.minimum(drawn, TERMS - 1), indptr), shape=(rows, TERMS))
    weights.sum_duplicates()
    return weights


def run_file(folder: Path, queries: int, depth: int) -> tuple[Path, Path]:
    """Write a run (TREC) and judgements of one document per query, unless the files exist."""
    run, qrels = folder / f"run-{queries}-{depth}.trec", folder / f"run-{queries}-{depth}.qrels"
    if not qrels.exists():
        random = np.random.default_rng(0)
        judged = []
        with run.open("w") as stream:
            for query in range(queries):
                documents = random.choice(8_841_823, depth, replace=False).tolist()
                scores = np.sort(random.normal(80, 5, depth).astype(np.float32))[::-1].astype(str).tolist()
                pairs = zip(documents, scores, strict=True)
                stream.writelines(
                    f"{query} Q0 {document} {rank} {score} t\n" for rank, (document, score) in enumerate(pairs, 1)
                )
                judged.append(f"{query} 0 {documents[int(random.integers(depth))]} 1\n")
        qrels.write_text("".join(judged))
    return run, qrels
