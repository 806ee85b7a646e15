"""Searches with keyword options, and the fusion of whole runs as a reference for them."""

from __future__ import annotations

from retrievalkit.data.runs import ranking
from retrievalkit.registry.component_options import check_options
from retrievalkit.reporting import notices
from retrievalkit.search.fusion import as_hits, gather
from retrievalkit.search.options import FusionOptions, HybridOptions
from retrievalkit.search.searcher import Searcher, find


def search(indexes, *, queries, k=1000, model=None, options=None, note=notices.note, **named):
    """Search; return the run."""
    chosen = HybridOptions(**check_options("search", HybridOptions, named))
    fusion = chosen.fused(len(indexes))
    searcher = Searcher(indexes, model=model, options=options, note=note)
    return dict(find(searcher, queries, k, fusion, depth=chosen.depth))


def fuse(runs, *, method="rrf", k=None, depth=1000, **named):
    """Fuse runs; queries are in order of first appearance."""
    options = FusionOptions(**check_options("fuse", FusionOptions, {"fusion": method, "rrf_k": k, **named}))
    fusion = options.fused(0)
    fusion.weights_of(len(runs))
    queries = dict.fromkeys(query for run in runs for query in run)
    rankings = {query: gather([ranking(run, query) for run in runs], query) for query in queries}
    return {query: as_hits(*fusion(candidates, depth)) for query, candidates in rankings.items()}
