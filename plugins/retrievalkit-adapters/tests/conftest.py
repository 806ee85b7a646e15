"""An index of words and one of vectors."""

from __future__ import annotations

import os

import pytest

import retrievalkit as rk

# Before it is imported: a test tells nobody anything.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

PASSAGES = [
    {"id": "a", "title": "Rivers", "text": "The river runs from the mountains to the sea."},
    {"id": "b", "title": "Engines", "text": "An engine burns fuel, and drives a wheel."},
    {"id": "c", "title": "", "text": "A wheel at the river drives the mill."},
]


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """The folder of an index of words."""
    return rk.Index.build(PASSAGES, output=tmp_path_factory.mktemp("adapters") / "words").folder


@pytest.fixture(scope="session")
def dense(tmp_path_factory, tiny_model):
    """The folder of an index of vectors."""
    return rk.Index.build(PASSAGES, tiny_model, tmp_path_factory.mktemp("adapters") / "dense", pooler="mean").folder
