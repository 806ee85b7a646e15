"""Fixtures of all test suites: no network, a tiny model and a tiny collection."""

from __future__ import annotations

import os

# Before torch and transformers are imported: no network, and one CPU thread, so that sums are equal in every run.
# CUDA_VISIBLE_DEVICES=0 runs the tests on a GPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"
# Exporting a tiny model takes longer than computing with it; tests of other backends set them.
os.environ.setdefault("RKIT_BACKEND", "torch")

import gc

import pytest
from hypothesis import settings

# Machines may be slow, and derandomised examples are the same in every run, so more of them add nothing.
settings.register_profile("rkit", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("rkit")


@pytest.fixture(scope="module", autouse=True)
def _imported_modules_are_no_garbage() -> None:
    """Exempt torch's objects from the full collection at the end of each training, which takes most of its time."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of a BERT of two layers, width 32."""
    from retrievalkit_testing import tiny_model

    return tiny_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def model_of(tmp_path_factory):
    """Function that returns the folder of a tiny model of an architecture."""
    from retrievalkit_testing import tiny_model

    folders = {}

    def model_of(architecture):
        if architecture not in folders:
            folder = tmp_path_factory.mktemp(architecture)
            folders[architecture] = tiny_model(folder, architecture=architecture)
        return folders[architecture]

    return model_of


@pytest.fixture(scope="session")
def tiny_collection(tmp_path_factory):
    """42 passages about countries and 126 questions, in BEIR format."""
    from retrievalkit_testing import tiny_collection

    return tiny_collection(tmp_path_factory.mktemp("countries"))


@pytest.fixture
def fresh_registry():
    """Clear the registry's cache before and after the test; calling the value clears it again."""
    from retrievalkit import registry

    registry.default_registry.cache_clear()
    yield registry.default_registry.cache_clear
    registry.default_registry.cache_clear()
