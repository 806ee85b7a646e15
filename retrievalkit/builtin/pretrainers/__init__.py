"""Pretrainers: objectives that train an encoder on plain text."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_pretrainers(register: Register) -> None:
    """The built-in pretrainers, through the same hook as everybody's."""
    register("mlm", "retrievalkit.builtin.pretrainers.mlm:MaskedLanguageModel")
    register("retromae", "retrievalkit.builtin.pretrainers.retromae:RetroMAE")
