"""A tiny model, a tiny collection and conformance checks: for the tests of plugin authors, and our own.

    from retrievalkit import testing

    def test_my_pooler_keeps_the_contract(tmp_path):
        testing.check_pooler("first_token", model=testing.tiny_model(tmp_path / "model"))

A check fails with a `PropertyError`: the property that the component lacks, the numbers, and the line to look at.
`POOLERS`, `LOSSES` and `PRETRAINERS` are the properties themselves: `POOLERS.report(NAME)` says what became of each.
"""

from __future__ import annotations

from retrievalkit.testing.collection import Collection, tiny_collection
from retrievalkit.testing.damage import check_damage
from retrievalkit.testing.indexers import check_indexer
from retrievalkit.testing.losses import LOSSES, check_loss
from retrievalkit.testing.models import ARCHITECTURES, tiny_model
from retrievalkit.testing.places import Place
from retrievalkit.testing.poolers import POOLERS, check_pooler
from retrievalkit.testing.pretrainers import PRETRAINERS, check_pretrainer
from retrievalkit.testing.properties import Kit, Outcome, Property, PropertyError, Report

__all__ = [
    "Collection",
    "tiny_collection",
    "ARCHITECTURES",
    "tiny_model",
    "check_pooler",
    "check_loss",
    "check_indexer",
    "check_damage",
    "check_pretrainer",
    "POOLERS",
    "LOSSES",
    "PRETRAINERS",
    "Kit",
    "Property",
    "PropertyError",
    "Place",
    "Outcome",
    "Report",
]
