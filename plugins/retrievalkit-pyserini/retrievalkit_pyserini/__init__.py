"""Lucene for retrievalkit, through Pyserini: the indexers `bm25`, `impact` and `lucene_hnsw`."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_indexers(register: Register) -> None:
    """Register the Lucene indexers."""
    register("bm25", "retrievalkit_pyserini.bm25:BM25")
    register("impact", "retrievalkit_pyserini.impact:Impact")
    register("lucene_hnsw", "retrievalkit_pyserini.lucene_hnsw:LuceneHnsw")


@hookimpl
def register_checks(register: Register) -> None:
    """Register the check of Java and Lucene."""
    register("lucene", "retrievalkit_pyserini.java:check")
