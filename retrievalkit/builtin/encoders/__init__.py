"""Encoders: from texts to token states."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_encoders(register: Register) -> None:
    """The built-in encoders, through the same hook as everybody's."""
    register("transformer", "retrievalkit.builtin.encoders.transformer:Transformer")
