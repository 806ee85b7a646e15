"""Search API for plugins, in addition to the contracts: open indexes, fusion, explanations, re-rankers.

    searcher = opened(["dense", "bm25"], OpenOptions())
    results = searcher.search(searcher.ask([Query("1", "eigenvalues")]), 10, Fusion("rrf"))

As stable for plugins as `retrievalkit.contracts`; Python programs use `rk.Index` and `rk.Hybrid`. `opened` returns the
`Searcher`; `described` adds the explanations of `explain` and the texts of `describe_hits` to passages or documents.
Heavy to import. The options are in `retrievalkit.contracts.commands`.
"""

from __future__ import annotations

from retrievalkit.indexing.open_indexes import OpenIndex
from retrievalkit.indexing.query_encoders import QueryBatch
from retrievalkit.models.rerankers import open_reranker, score_pairs
from retrievalkit.search.explain import described, explain
from retrievalkit.search.fusion import Fusion, as_hits, gather
from retrievalkit.search.hits import DescribedHit, describe_hits, reasons_of
from retrievalkit.search.searcher import FUSION_DEPTH, HITS_TO_READ, Searcher, facets, hit_count, open_texts, opened

__all__ = [
    "DescribedHit", "FUSION_DEPTH", "Fusion", "HITS_TO_READ", "OpenIndex", "QueryBatch", "Searcher", "as_hits",
    "described", "describe_hits", "explain", "facets", "gather", "hit_count", "open_reranker", "open_texts",
    "opened", "reasons_of", "score_pairs",
]  # fmt: skip
