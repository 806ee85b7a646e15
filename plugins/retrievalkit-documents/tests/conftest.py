"""Fixtures for `rkit sync`: a folder of documents, and a command that syncs it."""

from __future__ import annotations

import json

import pytest
from document_folders import CITIES, rkit, write


@pytest.fixture
def docs(tmp_path):
    """A folder of five documents of five kinds."""
    folder = tmp_path / "docs"
    kinds = (".txt", ".md", ".html", ".docx", ".txt")
    for (name, text), kind in zip(CITIES.items(), kinds, strict=True):
        write(folder / f"{name}{kind}", text)
    return folder


@pytest.fixture
def sync(docs, tiny_model, tmp_path):
    """Sync the folder with the collection `index`, and return the report."""

    def synced(*words):
        return json.loads(rkit("sync", docs, tmp_path / "index", "--model", tiny_model, "--json", *words))[0]

    return synced
