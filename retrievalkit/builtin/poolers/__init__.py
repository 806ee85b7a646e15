"""Poolers: from token states to a representation."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_poolers(register: Register) -> None:
    """The built-in poolers, through the same hook as everybody's."""
    register("cls", "retrievalkit.builtin.poolers.cls:Cls")
    register("mean", "retrievalkit.builtin.poolers.mean:Mean")
    register("last", "retrievalkit.builtin.poolers.last:Last")
    register("colbert", "retrievalkit.builtin.poolers.colbert:ColBERT")
