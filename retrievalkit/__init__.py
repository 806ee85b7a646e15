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

    from retrievalkit.api.commands import (
        check_plugin,
        command,
        doctor,
        install_plugin,
        new_plugin,
        package_plugin,
        plugins,
        remove_plugin,
        show_plugin,
    )
    from retrievalkit.api.hits import Hit, Hits
    from retrievalkit.api.hybrid import Hybrid
    from retrievalkit.api.index import Index
    from retrievalkit.api.mining import Examples, mine_negatives
    from retrievalkit.api.recipes import quickstart, run
    from retrievalkit.api.reranking import rerank
    from retrievalkit.api.retriever import Retriever
    from retrievalkit.api.runs import Run
    from retrievalkit.api.tables import Table
    from retrievalkit.api.vectors import Vectors
    from retrievalkit.artifacts.folder import Folder
    from retrievalkit.conversion import convert
    from retrievalkit.evaluate.compare.compare import compare
    from retrievalkit.evaluate.compare.result import Comparison
    from retrievalkit.evaluate.program import Evaluation
    from retrievalkit.indexing.encode import encode
    from retrievalkit.indexing.index import IndexFolder, index
    from retrievalkit.training.pretrain import pretrain
    from retrievalkit.training.train import train
    from retrievalkit.training.train_reranker import train_reranker

__version__ = "0.1.0"

hookimpl = HookimplMarker("retrievalkit")
"""Marks a function of a plugin as the implementation of a hook in `retrievalkit.hookspecs`."""

_MODULES = {
    "api.commands": (
        "check_plugin",
        "command",
        "doctor",
        "install_plugin",
        "new_plugin",
        "package_plugin",
        "plugins",
        "remove_plugin",
        "show_plugin",
    ),
    "api.hits": ("Hit", "Hits"),
    "api.hybrid": ("Hybrid",),
    "api.index": ("Index",),
    "api.mining": ("Examples", "mine_negatives"),
    "api.recipes": ("quickstart", "run"),
    "api.reranking": ("rerank",),
    "api.retriever": ("Retriever",),
    "api.runs": ("Run",),
    "api.tables": ("Table",),
    "api.vectors": ("Vectors",),
    "artifacts.folder": ("Folder",),
    "conversion": ("convert",),
    "evaluate.compare.compare": ("compare",),
    "evaluate.compare.result": ("Comparison",),
    "evaluate.program": ("Evaluation",),
    "indexing.encode": ("encode",),
    "indexing.index": ("IndexFolder", "index"),
    "training.pretrain": ("pretrain",),
    "training.train": ("train",),
    "training.train_reranker": ("train_reranker",),
}
_COMMANDS_OF_DISTRIBUTIONS = ("export", "serve")
"""Functions of distributions of ours, such as retrievalkit-export."""

_MODULES_TOO = ("rerank",)
"""Names of modules of ours too, which can be called (`modules.make_callable`): the same whoever comes first."""

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
    "check_plugin",
    "command",
    "compare",
    "convert",
    "doctor",
    "encode",
    "export",
    "hookimpl",
    "index",
    "install_plugin",
    "mine_negatives",
    "new_plugin",
    "package_plugin",
    "plugins",
    "pretrain",
    "quickstart",
    "remove_plugin",
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
    if name in _MODULES_TOO:
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
