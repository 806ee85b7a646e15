"""What the tests of the encoder share: tiny models of several architectures."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing


@pytest.fixture(scope="session")
def model_of(tmp_path_factory):
    """The folder of a tiny model of an architecture."""
    made = {}

    def model_of(architecture):
        if architecture not in made:
            folder = tmp_path_factory.mktemp(architecture)
            made[architecture] = testing.tiny_model(folder, architecture=architecture)
        return made[architecture]

    return model_of
