"""What all tests share: a tiny model of each kind and a tiny collection, made once, and no network."""

from __future__ import annotations

import os

# Before torch and transformers are imported: no network, and one thread of a CPU, so that sums come out equal.
# CUDA_VISIBLE_DEVICES=0 runs the tests on a GPU.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["OMP_NUM_THREADS"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import pytest
from hypothesis import settings

# A slow machine is no failure, and what passes once passes again: more examples would be the same at every run.
settings.register_profile("rkit", deadline=None, derandomize=True, max_examples=50)
settings.load_profile("rkit")


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory):
    """The folder of a BERT of two layers, width 32."""
    from retrievalkit import testing

    return testing.tiny_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory):
    """The folder of a T5 of two layers, width 32."""
    from retrievalkit import testing

    return testing.tiny_model(tmp_path_factory.mktemp("t5"), architecture="t5")


@pytest.fixture(scope="session")
def tiny_collection(tmp_path_factory):
    """42 passages about countries and 126 questions, in BEIR form."""
    from retrievalkit import testing

    return testing.tiny_collection(tmp_path_factory.mktemp("countries"))


@pytest.fixture
def fresh_registry():
    """The registry is read anew, before the test and after it; call the value to have it read once more."""
    from retrievalkit import registry

    registry.default_registry.cache_clear()
    yield registry.default_registry.cache_clear
    registry.default_registry.cache_clear()


@pytest.fixture
def memory(monkeypatch, tmp_path):
    """The file system of memory://, empty."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    import fsspec

    files = fsspec.filesystem("memory")
    files.store.clear()
    return files
