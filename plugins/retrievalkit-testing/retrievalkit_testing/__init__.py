"""A tiny model, a tiny collection and the conformance kit: for the tests of plugin authors, and our own.

    from retrievalkit_testing import conformance

    test_conforms = conformance("max_pooling")

This line makes a test of each property of the component, named: what every component of a kind must do, whatever its
method. Padding, batch order and batch size change nothing; saving and loading give equal vectors; gradients reach the
encoder; an index finds what brute force finds. A failure says the property, the numbers, and the file and line to look
at. `rkit plugins check NAME` prints the same as a table.

What needs torch is imported when it is first asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from retrievalkit_testing.conforming import conformance
    from retrievalkit_testing.encoders import check_encoder
    from retrievalkit_testing.indexers import check_damage, check_indexer
    from retrievalkit_testing.losses import check_loss
    from retrievalkit_testing.packages import check_package
    from retrievalkit_testing.poolers import check_pooler
    from retrievalkit_testing.pretrainers import check_pretrainer
    from retrievalkit_testing.properties import PropertyError
    from retrievalkit_testing.samples import ARCHITECTURES, Collection, tiny_collection, tiny_model

__version__ = "0.1.0"

_MODULES = {
    "conforming": ("conformance",),
    "encoders": ("check_encoder",),
    "indexers": ("check_damage", "check_indexer"),
    "losses": ("check_loss",),
    "packages": ("check_package",),
    "poolers": ("check_pooler",),
    "pretrainers": ("check_pretrainer",),
    "properties": ("PropertyError",),
    "samples": ("ARCHITECTURES", "Collection", "tiny_collection", "tiny_model"),
}

__all__ = [
    "Collection",
    "tiny_collection",
    "ARCHITECTURES",
    "tiny_model",
    "conformance",
    "check_pooler",
    "check_loss",
    "check_encoder",
    "check_indexer",
    "check_damage",
    "check_pretrainer",
    "check_package",
    "PropertyError",
]


def __getattr__(name: str) -> Any:
    for module, names in _MODULES.items():
        if name in names:
            return getattr(importlib.import_module(f"{__name__}.{module}"), name)
    msg = f"module '{__name__}' has no attribute '{name}'"
    raise AttributeError(msg)
