"""Encoders turn texts into token states."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_encoders(register: Register) -> None:
    """The built-in encoders, through the same hook as those of any plugin."""
    register("transformer", "retrievalkit.builtin.encoders.transformer:Transformer")
