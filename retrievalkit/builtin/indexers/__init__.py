"""Indexers: build, open and search an index folder."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_indexers(register: Register) -> None:
    """The built-in indexers, through the same hook as any plugin's."""
    register("flat", "retrievalkit.builtin.indexers.flat:Flat")
    register("faiss", "retrievalkit.builtin.indexers.faiss:Faiss")
    register("sparse", "retrievalkit.builtin.indexers.sparse:Sparse")
    register("small", "retrievalkit.builtin.indexers.small:Small")
    register("dense_sparse", "retrievalkit.builtin.indexers.dense_sparse:DenseSparse")
