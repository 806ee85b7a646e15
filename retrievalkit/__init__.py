"""retrievalkit: train, index, search and compare first-stage text retrievers; every method is a plugin.

    import retrievalkit as rk

    index = rk.Index.open("my-index")
    hits = index.search("pairwise distances", k=10)

Names are imported on first use.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pluggy import HookimplMarker

if TYPE_CHECKING:  # the public names; `__getattr__` gets their modules from these lines
    from retrievalkit_documents.collection import Collection as Collection
    from retrievalkit_documents.sync import sync as sync
    from retrievalkit_export.export import export as export
    from retrievalkit_pretrain.pretrain import pretrain as pretrain
    from retrievalkit_serve.serve import serve as serve

    from retrievalkit.cli.command import command as command
    from retrievalkit.cli.doctor import doctor as doctor
    from retrievalkit.cli.plugins import plugins as plugins
    from retrievalkit.cli.plugins import show_plugin as show_plugin
    from retrievalkit.cli.run import quickstart as quickstart
    from retrievalkit.cli.run import run as run
    from retrievalkit.data.convert import convert as convert
    from retrievalkit.data.example_table import Examples as Examples
    from retrievalkit.data.passage_parts import Document as Document
    from retrievalkit.evaluation.compare.compare import compare as compare
    from retrievalkit.evaluation.compare.comparison import Comparison as Comparison
    from retrievalkit.evaluation.evaluation import Evaluation as Evaluation
    from retrievalkit.evaluation.run import Run as Run
    from retrievalkit.indexing.encode import encode as encode
    from retrievalkit.indexing.index import IndexFolder as IndexFolder
    from retrievalkit.indexing.index import index as index
    from retrievalkit.indexing.retriever import Retriever as Retriever
    from retrievalkit.indexing.vectors import Vectors as Vectors
    from retrievalkit.mining.mine import mine_negatives as mine_negatives
    from retrievalkit.reporting.table import Table as Table
    from retrievalkit.search.hybrid import Hybrid as Hybrid
    from retrievalkit.search.index import Index as Index
    from retrievalkit.search.rerank import rerank as rerank
    from retrievalkit.search.searchable import Hit as Hit
    from retrievalkit.search.searchable import Hits as Hits
    from retrievalkit.storage.manifest import Folder as Folder
    from retrievalkit.training.train import train as train
    from retrievalkit.training.train_reranker import train_reranker as train_reranker
    from retrievalkit.training.tune import tune as tune

__version__ = "0.1.0"

hookimpl = HookimplMarker("retrievalkit")
"""Marks a function of a plugin as the implementation of a hook in `retrievalkit.hookspecs`."""

_MODULES = {
    node.names[0].name: str(node.module)
    for block in ast.parse(Path(__file__).read_bytes()).body
    if isinstance(block, ast.If)
    for node in block.body
    if isinstance(node, ast.ImportFrom)
}
__all__ = ["__version__", "hookimpl", *_MODULES]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        msg = f"module '{__name__}' has no attribute '{name}'"
        raise AttributeError(msg)
    if not _MODULES[name].startswith(f"{__name__}."):
        from retrievalkit import registry

        # The error comes on the call: `from retrievalkit import *` works without the distribution.
        distribution = _MODULES[name].partition(".")[0].replace("_", "-")
        command = next(known for known, provider in registry.DISTRIBUTIONS.items() if provider == distribution)
        if command not in registry.names("command"):
            return lambda *_, **__: registry.component("command", command)
    return getattr(importlib.import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
