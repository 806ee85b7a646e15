"""A tiny model, a tiny collection and the conformance kit: for the tests of plugin authors, and our own.

    from retrievalkit import testing

    test_conforms = testing.conformance("max_pooling")

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
    from retrievalkit.testing.collection import Collection, tiny_collection
    from retrievalkit.testing.conformance import conformance
    from retrievalkit.testing.damage import check_damage
    from retrievalkit.testing.encoders import check_encoder
    from retrievalkit.testing.indexers import check_indexer
    from retrievalkit.testing.losses import check_loss
    from retrievalkit.testing.models import ARCHITECTURES, tiny_model
    from retrievalkit.testing.packages import check_package
    from retrievalkit.testing.poolers import check_pooler
    from retrievalkit.testing.pretrainers import check_pretrainer
    from retrievalkit.testing.properties import PropertyError

_MODULES = {
    "Collection": "collection",
    "tiny_collection": "collection",
    "ARCHITECTURES": "models",
    "tiny_model": "models",
    "conformance": "conformance",
    "check_pooler": "poolers",
    "check_loss": "losses",
    "check_encoder": "encoders",
    "check_indexer": "indexers",
    "check_damage": "damage",
    "check_pretrainer": "pretrainers",
    "check_package": "packages",
    "PropertyError": "properties",
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
    if name not in _MODULES:
        msg = f"module '{__name__}' has no attribute '{name}'"
        raise AttributeError(msg)
    # The function of the same name as its module takes the module's place.
    found = getattr(importlib.import_module(f"retrievalkit.testing.{_MODULES[name]}"), name)
    globals()[name] = found
    return found
