"""Sources: where passages, queries, judgements and examples come from, by prefix.

The classes are in `retrievalkit.data.sources`, beside the contract.
"""

from __future__ import annotations

from retrievalkit import hookimpl
from retrievalkit.hookspecs import Register


@hookimpl
def register_sources(register: Register) -> None:
    """The built-in sources, through the same hook as everybody's."""
    register("documents", "retrievalkit.data.sources.documents:Documents")
    register("hf", "retrievalkit.data.sources.hf:HuggingFace")
    register("irds", "retrievalkit.data.sources.irds:IrDatasets")
    register("pydoc", "retrievalkit.data.sources.pydoc:PythonDocumentation")
    register("parquet", "retrievalkit.data.sources.parquet:Parquet")
