"""The scoring rule, and exact search by it: the only scoring code."""

from __future__ import annotations

from retrievalkit.scoring.ranking import (
    TextReader,
    best_of_candidates,
    check_k,
    documents_of_vectors,
    lexical_scores_of,
    scores_of,
    top_k,
)
from retrievalkit.scoring.rule import cross_entropy_in_batch, own_scores, scores, vector_scores, vectors_alone, viewed
from retrievalkit.scoring.tiles import is_single
from retrievalkit.scoring.two_stage import top_k_among, top_k_of_rounded, top_k_of_store

__all__ = [
    "scores", "vector_scores", "vectors_alone", "viewed", "cross_entropy_in_batch", "own_scores", "TextReader",
    "best_of_candidates", "check_k", "documents_of_vectors", "lexical_scores_of", "scores_of", "top_k",
    "top_k_among", "top_k_of_rounded", "top_k_of_store", "is_single",
]  # fmt: skip
