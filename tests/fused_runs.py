"""The fusion of whole runs, query by query: what tests compare searches with."""

from __future__ import annotations

from retrievalkit.search.fusion import as_hits, fusion_of, gather, ranking


def fuse(runs, *, method="rrf", weights=None, k=None, normalization=None, missing=None, depth=1000):
    """Several runs as one, best first; queries in order of first appearance."""
    made = {"weights": weights, "normalization": normalization, "missing": missing, "rrf_k": k}
    fusion = fusion_of(0, method, **made)
    fusion.weights_of(len(runs))
    queries = dict.fromkeys(query for run in runs for query in run)
    return {one: as_hits(*fusion(gather([ranking(run, one) for run in runs], one), depth)) for one in queries}
