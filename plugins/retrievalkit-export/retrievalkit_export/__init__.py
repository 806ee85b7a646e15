"""Export of checkpoints and vectors to the formats of other libraries, which need none of our code: `rkit export`."""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_commands(register: Register) -> None:
    """Register `rkit export`."""
    register(
        "export",
        "retrievalkit_export.export:export",
        help="Convert a checkpoint, a model or vectors to the format of another library.",
        group="search",
    )
