"""retrievalkit: train, index, search and compare first-stage text retrievers; every method is a plugin.

    import retrievalkit as rk

    index = rk.Index.open("my-index")
    hits = index.search("pairwise distances", k=10)

Names are imported when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from pluggy import HookimplMarker

if TYPE_CHECKING:
    from retrievalkit_export.export import export
    from retrievalkit_serve.serve import serve

    from retrievalkit.cli.command import command
    from retrievalkit.cli.doctor import doctor
    from retrievalkit.cli.plugins import new_plugin, package_plugin, plugins, show_plugin
    from retrievalkit.cli.run import quickstart, run
    from retrievalkit.data.convert import convert
    from retrievalkit.data.example_table import Examples
    from retrievalkit.evaluation.compare.compare import compare
    from retrievalkit.evaluation.compare.comparison import Comparison
    from retrievalkit.evaluation.evaluation import Evaluation
    from retrievalkit.evaluation.run import Run
    from retrievalkit.indexing.encode import encode
    from retrievalkit.indexing.index import IndexFolder, index
    from retrievalkit.indexing.retriever import Retriever
    from retrievalkit.indexing.vectors import Vectors
    from retrievalkit.mining.mine import mine_negatives
    from retrievalkit.reporting.table import Table
    from retrievalkit.search.hybrid import Hybrid
    from retrievalkit.search.index import Index
    from retrievalkit.search.rerank import rerank
    from retrievalkit.search.searchable import Hit, Hits
    from retrievalkit.storage import Folder
    from retrievalkit.training.pretrain import pretrain
    from retrievalkit.training.train import train
    from retrievalkit.training.train_reranker import train_reranker

__version__ = "0.1.0"

hookimpl = HookimplMarker("retrievalkit")
"""Marks a function of a plugin as the implementation of a hook in `retrievalkit.hookspecs`."""

_MODULES = {
    "cli.command": ("command",),
    "search.hybrid": ("Hybrid",),
    "search.index": ("Index",),
    "indexing.retriever": ("Retriever",),
    "search.searchable": ("Hit", "Hits"),
    "indexing.vectors": ("Vectors",),
    "storage": ("Folder",),
    "cli.doctor": ("doctor",),
    "cli.plugins": ("new_plugin", "package_plugin", "plugins", "show_plugin"),
    "cli.run": ("quickstart", "run"),
    "data.convert": ("convert",),
    "evaluation.compare.compare": ("compare",),
    "evaluation.compare.comparison": ("Comparison",),
    "evaluation.evaluation": ("Evaluation",),
    "evaluation.run": ("Run",),
    "indexing.encode": ("encode",),
    "indexing.index": ("IndexFolder", "index"),
    "data.example_table": ("Examples",),
    "mining.mine": ("mine_negatives",),
    "search.rerank": ("rerank",),
    "reporting.table": ("Table",),
    "training.pretrain": ("pretrain",),
    "training.train": ("train",),
    "training.train_reranker": ("train_reranker",),
}
_COMMANDS_OF_DISTRIBUTIONS = ("export", "serve")
"""Functions of distributions of ours, such as retrievalkit-export."""

_MODULE_OF = {name: module for module, names in _MODULES.items() for name in names}

__all__ = [
    "Comparison",
    "Evaluation",
    "Examples",
    "Folder",
    "Hit",
    "Hits",
    "Hybrid",
    "Index",
    "IndexFolder",
    "Retriever",
    "Run",
    "Table",
    "Vectors",
    "__version__",
    "command",
    "compare",
    "convert",
    "doctor",
    "encode",
    "export",
    "hookimpl",
    "index",
    "mine_negatives",
    "new_plugin",
    "package_plugin",
    "plugins",
    "pretrain",
    "quickstart",
    "rerank",
    "run",
    "serve",
    "show_plugin",
    "train",
    "train_reranker",
]


def __getattr__(name: str) -> Any:
    if name in _COMMANDS_OF_DISTRIBUTIONS:
        from retrievalkit import registry

        # Once it is called, so that `from retrievalkit import *` works without the distribution.
        if name not in registry.names("command"):
            return lambda *_, **__: registry.component("command", name)
        return registry.component("command", name).load()
    if name not in _MODULE_OF:
        msg = f"module '{__name__}' has no attribute '{name}'"
        raise AttributeError(msg)
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
