"""Documents: `documents:FOLDER` reads them in many formats, and `rkit sync` keeps indexes in sync with a folder."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_commands(register: Register) -> None:
    """Register `rkit sync`."""
    register(
        "sync",
        "retrievalkit_documents.sync:sync",
        help="Keep indexes in sync with a folder of documents.",
        group="search",
    )


@hookimpl
def register_sources(register: Register) -> None:
    """Register `documents:`."""
    register("documents", "retrievalkit_documents.source:Documents")
