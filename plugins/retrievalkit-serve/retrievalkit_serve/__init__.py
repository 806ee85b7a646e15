"""Indexes searched over HTTP, on a page, and by language models' agents: `rkit serve`.

A request becomes a task; tasks that may be answered together are, by the programs that the command line runs
(`batching`, `collection`).
"""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "1"


@hookimpl
def register_commands(register: Register) -> None:
    """Register `rkit serve`."""
    register(
        "serve",
        "retrievalkit_serve.serve:serve",
        help="Search each INDEX, or several together, over HTTP, on a page, and from language models' agents (MCP).",
        group="search",
    )
