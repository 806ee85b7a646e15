"""Search over HTTP, on a web page, and for language model agents: `rkit serve`.

Each request becomes a task. Equal tasks share a batch, which runs the same code as the command line (`batching`,
`tasks`).
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
