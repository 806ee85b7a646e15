"""Poolers turn token states into a representation."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_poolers(register: Register) -> None:
    """The built-in poolers, through the same hook as those of any plugin."""
    register("cls", "retrievalkit.builtin.poolers.cls:Cls")
    register("mean", "retrievalkit.builtin.poolers.mean:Mean")
    register("max", "retrievalkit.builtin.poolers.max:Max")
    register("last", "retrievalkit.builtin.poolers.last:Last")
    register("projected", "retrievalkit.builtin.poolers.projected:Projected")
    register("colbert", "retrievalkit.builtin.poolers.colbert:ColBERT")
