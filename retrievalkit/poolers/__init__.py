"""Poolers: from token states to a representation."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_poolers(register: Register) -> None:
    """The built-in poolers, through the same hook as everybody's."""
    register("cls", "retrievalkit.poolers.cls:Cls")
    register("mean", "retrievalkit.poolers.mean:Mean")
    register("last", "retrievalkit.poolers.last:Last")
    register("colbert", "retrievalkit.poolers.colbert:ColBERT")
