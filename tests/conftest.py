"""Fixtures of the core's tests, in addition to those of the conftest.py above."""

from __future__ import annotations

import importlib.util

import pytest

from places import ROOT


@pytest.fixture(scope="session")
def tiny_t5(tmp_path_factory):
    """Folder of a T5 with two layers of width 32."""
    import retrievalkit_testing as testing

    return testing.tiny_model(tmp_path_factory.mktemp("t5"), architecture="t5")


@pytest.fixture
def memory(monkeypatch, tmp_path):
    """Empty file system memory://."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    import fsspec

    files = fsspec.filesystem("memory")
    files.store.clear()
    return files


@pytest.fixture
def generate():
    """The module docs/_generate.py."""
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "_generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
