"""Tiny models of two architectures."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a BERT of two layers, width 32."""
    return testing.tiny_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a RoBERTa of two layers, width 32, whose positions begin behind its padding id."""
    return testing.tiny_model(tmp_path_factory.mktemp("roberta"), architecture="roberta")
