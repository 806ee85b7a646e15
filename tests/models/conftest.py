"""Tiny models of several architectures."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing


@pytest.fixture(scope="session")
def model_of(tmp_path_factory):
    """Function that returns the folder of a tiny model of an architecture."""
    folders = {}

    def model_of(architecture):
        if architecture not in folders:
            folder = tmp_path_factory.mktemp(architecture)
            folders[architecture] = testing.tiny_model(folder, architecture=architecture)
        return folders[architecture]

    return model_of
