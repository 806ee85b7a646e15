"""Search over HTTP, on a web page, and for language model agents: `rkit serve`.

A request becomes a task. Tasks that can share a batch are answered together, by the same programs as on the command
line (`batching`, `collection`).
"""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register

__version__ = "0.1.0"
retrievalkit_contract = "0.1"


@hookimpl
def register_commands(register: Register) -> None:
    """Register `rkit serve`."""
    register(
        "serve",
        "retrievalkit_serve.serve:serve",
        help="Serve each INDEX, or several together, over HTTP, in a web page, and to LLM agents (MCP).",
        group="search",
    )
