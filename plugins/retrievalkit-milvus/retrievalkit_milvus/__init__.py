"""Milvus for retrievalkit: the indexer `milvus`."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_indexers(register: Register) -> None:
    """Register the indexer of vectors folders."""
    register("milvus", "retrievalkit_milvus.indexer:Milvus")
