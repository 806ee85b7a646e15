"""A tiny model and a tiny collection."""

from __future__ import annotations

import os

os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
import retrievalkit_testing as testing


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of a BERT of two layers, width 32."""
    return testing.tiny_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def tiny_collection(tmp_path_factory):
    """42 passages about countries and 126 questions, in BEIR form."""
    return testing.tiny_collection(tmp_path_factory.mktemp("countries"))
