"""retrievalkit: train, index, search and compare first-stage text retrievers; every method is a plugin.

    import retrievalkit as rk

    index = rk.Index.open("my-index")
    hits = index.search("pairwise distances", k=10)

Names are imported on first use; `__init__.pyi` declares them for type checkers.
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

import lazy_loader
from pluggy import HookimplMarker

__version__ = "0.1.0"

hookimpl = HookimplMarker("retrievalkit")
"""Marks a function of a plugin as the implementation of a hook in `retrievalkit.hookspecs`."""

_NAMES = {
    "cli.command": ["command"],
    "cli.doctor": ["doctor"],
    "cli.plugins": ["plugins", "show_plugin"],
    "cli.run": ["quickstart", "run"],
    "data.convert": ["convert"],
    "data.example_table": ["Examples"],
    "data.passage_parts": ["Document"],
    "evaluation.compare.compare": ["compare"],
    "evaluation.compare.comparison": ["Comparison"],
    "evaluation.results": ["Evaluation"],
    "evaluation.run": ["Run"],
    "indexing.encode": ["encode"],
    "indexing.index": ["IndexFolder", "index"],
    "objects.retriever": ["Retriever"],
    "indexing.vectors": ["Vectors"],
    "mining.mine": ["mine_negatives"],
    "reporting.table": ["Table"],
    "objects.hybrid": ["Hybrid"],
    "objects.index": ["Index"],
    "search.rerank": ["rerank"],
    "search.searching": ["Hit", "Hits"],
    "storage.manifest": ["Folder"],
    "training.train": ["train"],
    "training.train_reranker": ["train_reranker"],
    "training.tune": ["tune"],
}
_NAMES_OF_PLUGINS = {
    "Collection": "retrievalkit_documents.collection",
    "sync": "retrievalkit_documents.sync",
    "export": "retrievalkit_export.export",
    "pretrain": "retrievalkit_pretrain.pretrain",
    "serve": "retrievalkit_serve.serve",
}

_of_core, _, _core_names = lazy_loader.attach(__name__, submod_attrs=_NAMES)
_installed = [name for name, module in _NAMES_OF_PLUGINS.items() if find_spec(module.partition(".")[0])]
__all__ = ["__version__", "hookimpl", *_core_names, *_installed]


def __getattr__(name: str) -> Any:
    if name not in _NAMES_OF_PLUGINS:
        return _of_core(name)
    package = _NAMES_OF_PLUGINS[name].partition(".")[0]
    try:
        importlib.import_module(package)
    except ModuleNotFoundError:
        distribution = package.replace("_", "-")
        msg = f"rk.{name} is part of {distribution}, which is not installed: pip install {distribution}"
        raise AttributeError(msg) from None
    return getattr(importlib.import_module(_NAMES_OF_PLUGINS[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
