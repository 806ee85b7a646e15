"""The documentation of installed Python packages as a collection: `pydoc:numpy,scipy`."""

from __future__ import annotations

from collections.abc import Callable

from retrievalkit import hookimpl

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_sources(register: Callable[[str, str], None]) -> None:
    """Register the source `pydoc:`."""
    register("pydoc", "retrievalkit_pydoc.source:PythonDocumentation")
