"""Quantisation of weights to integers, and measures of its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

SHARES = 10
"""Number of top texts per query compared before and after rounding."""

TERMS = 32
"""Number of heaviest terms of a sampled text that form a query."""


@dataclass(frozen=True)
class Quantizer:
    """Quantises weights to impacts: scales, rounds and clips them.

    Attributes:
        scale: Factor applied to the weights.
        levels: The largest impact.
    """

    scale: float
    levels: int

    def __call__(self, weights: Any) -> Any:
        """Return the impacts of a CSR of weights, as a CSR of int32 without zeros."""
        impacts = weights.astype(np.float64)
        impacts.data = np.clip(np.rint(impacts.data * self.scale), 0, self.levels)
        impacts = impacts.astype(np.int32)
        impacts.eliminate_zeros()
        return impacts


class Loss:
    """Accumulates, block by block, the quantisation error and its effect on the hits of sampled queries.

    Args:
        quantizer: The quantizer that produces the impacts.
        sample: CSR (queries, vocabulary): the weights of sampled texts, used as queries.
        rows: (queries,) the rows of these texts, which are excluded from their own hits.
    """

    def __init__(self, quantizer: Quantizer, sample: Any, rows: np.ndarray) -> None:
        self.quantizer = quantizer
        self.queries = heaviest(sample, TERMS)
        self.rows = rows
        self.terms = self.dropped = self.clipped = 0
        self.error = self.total = 0.0
        self._exact = _Best(len(rows))
        self._rounded = _Best(len(rows))

    def add(self, first: int, weights: Any, impacts: Any) -> None:
        """Add a block of texts.

        Args:
            first: The row of its first text.
            weights: CSR of their weights.
            impacts: CSR of their impacts.
        """
        restored = impacts.astype(np.float32) / np.float32(self.quantizer.scale)
        self.terms += impacts.nnz
        self.dropped += weights.nnz - impacts.nnz
        self.clipped += int(np.count_nonzero(np.rint(weights.data * self.quantizer.scale) > self.quantizer.levels))
        self.error += float(np.abs((weights - restored).data).sum(dtype=np.float64))
        self.total += float(weights.data.sum(dtype=np.float64))
        for best, texts in ((self._exact, weights), (self._rounded, restored)):
            best.add(first, (self.queries @ texts.T).toarray(), self.rows)

    def report(self) -> dict[str, float]:
        """Report terms rounded to 0, terms clipped, the relative error, and the share of hits preserved."""
        pairs = zip(self._exact.hits(), self._rounded.hits(), strict=True)
        shares = [len(exact & rounded) / len(exact) for exact, rounded in pairs if exact]
        counts = {"terms": self.terms, "terms_dropped": self.dropped, "terms_clipped": self.clipped}
        error = {"relative_error": round(self.error / self.total, 6) if self.total else 0.0}
        overlap = {f"overlap_at_{SHARES}": round(float(np.mean(shares)), 4)} if shares else {}
        return counts | error | overlap


class _Best:
    """The best texts of each query so far."""

    def __init__(self, queries: int) -> None:
        self.scores = np.zeros((queries, SHARES), dtype=np.float32)
        self.texts = np.full((queries, SHARES), -1)

    def add(self, first: int, scores: np.ndarray, themselves: np.ndarray) -> None:
        for query, (row, itself) in enumerate(zip(scores, themselves.tolist(), strict=True)):
            better = np.flatnonzero(row > self.scores[query, -1])
            better = better[better != itself - first]
            together = np.concatenate([self.scores[query], row[better]])
            order = np.argsort(-together, kind="stable")[:SHARES]
            self.scores[query] = together[order]
            self.texts[query] = np.concatenate([self.texts[query], better + first])[order]

    def hits(self) -> list[set[int]]:
        return [set(texts[scores > 0].tolist()) for texts, scores in zip(self.texts, self.scores, strict=True)]


def heaviest(weights: Any, most: int) -> Any:
    """Keep the `most` largest weights of each row of a CSR."""
    largest = weights.copy()
    for start, end in zip(largest.indptr[:-1], largest.indptr[1:], strict=True):
        largest.data[start:end][np.argsort(-largest.data[start:end], kind="stable")[most:]] = 0
    largest.eliminate_zeros()
    return largest
