"""A tiny model, a tiny collection and conformance checks: for the tests of plugin authors, and our own.

    from retrievalkit import testing

    def test_my_pooler_keeps_the_contract(tmp_path):
        testing.check_pooler("first_token", model=testing.tiny_model(tmp_path / "model"))

The checks cover what every component of a kind must do, whatever its method: padding, batch order and batch size change
nothing; saving and loading give equal vectors; gradients reach the encoder; an index finds what brute force finds, and
damage to its files is found.
"""

from __future__ import annotations

from retrievalkit.testing.collection import Collection, tiny_collection
from retrievalkit.testing.damage import check_damage
from retrievalkit.testing.encoders import check_encoder
from retrievalkit.testing.indexers import check_indexer
from retrievalkit.testing.losses import check_loss
from retrievalkit.testing.models import ARCHITECTURES, tiny_model
from retrievalkit.testing.poolers import check_pooler
from retrievalkit.testing.pretrainers import check_pretrainer

__all__ = [
    "Collection",
    "tiny_collection",
    "ARCHITECTURES",
    "tiny_model",
    "check_pooler",
    "check_loss",
    "check_encoder",
    "check_indexer",
    "check_damage",
    "check_pretrainer",
]
