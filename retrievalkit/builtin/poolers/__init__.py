"""Poolers turn token states into a representation."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_poolers(register: Register) -> None:
    """The built-in poolers, through the same hook as those of any plugin."""
    register("cls", "retrievalkit.builtin.poolers.single_vector:Cls")
    register("mean", "retrievalkit.builtin.poolers.single_vector:Mean")
    register("max", "retrievalkit.builtin.poolers.single_vector:Max")
    register("last", "retrievalkit.builtin.poolers.single_vector:Last")
    register("projected", "retrievalkit.builtin.poolers.projected:Projected")
    register("colbert", "retrievalkit.builtin.poolers.colbert:ColBERT")
