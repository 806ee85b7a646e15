"""What the suites of the core and of the plugins share: no network, a tiny model and a tiny collection."""

from __future__ import annotations

import os

# Before torch and transformers are imported: no network, and one thread of a CPU, so that sums come out equal.
# CUDA_VISIBLE_DEVICES=0 runs the tests on a GPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Exporting each tiny model takes longer than computing it; tests of the other backends name them.
os.environ.setdefault("RKIT_BACKEND", "torch")

import gc

import pytest
from hypothesis import settings

# A slow machine is no failure, and what passes once passes again: more examples would be the same at every run.
settings.register_profile("rkit", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("rkit")


@pytest.fixture(scope="module", autouse=True)
def _imported_modules_are_no_garbage() -> None:
    """Each training ends with a full collection, most of its time, which need not go through all of torch again."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of a BERT of two layers, width 32."""
    from retrievalkit_testing import tiny_model

    return tiny_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def tiny_collection(tmp_path_factory):
    """42 passages about countries and 126 questions, in BEIR form."""
    from retrievalkit_testing import tiny_collection

    return tiny_collection(tmp_path_factory.mktemp("countries"))


@pytest.fixture
def fresh_registry():
    """The registry is read anew, before the test and after it; call the value to have it read once more."""
    from retrievalkit import registry

    registry.default_registry.cache_clear()
    yield registry.default_registry.cache_clear
    registry.default_registry.cache_clear()
