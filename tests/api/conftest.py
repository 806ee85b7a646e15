"""Fixtures for tests of the Python functions: passages in memory, a model, and two indexes."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

import retrievalkit as rk
from retrievalkit.cli import main


@pytest.fixture(scope="session")
def command():
    def run(*words):
        result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, result.output
        return result.stdout

    return run


@pytest.fixture(scope="session")
def passages(tiny_collection):
    return [json.loads(line) for line in tiny_collection.corpus.read_text().splitlines()]


@pytest.fixture(scope="session")
def queries(tiny_collection):
    rows = (json.loads(line) for line in tiny_collection.queries.read_text().splitlines())
    return {row["_id"]: row["text"] for row in rows}


@pytest.fixture(scope="session")
def model(tiny_model):
    return rk.Retriever.load(tiny_model, pooler="mean")


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    return tmp_path_factory.mktemp("indexes")


@pytest.fixture(scope="session")
def dense(folders, passages, model):
    return rk.Index.build(passages, model, folders / "dense")


@pytest.fixture(scope="session")
def late(folders, passages, tiny_model):
    """Late-interaction index, whose hits have reasons."""
    return rk.Index.build(passages, tiny_model, folders / "late", pooler="colbert")


@pytest.fixture(scope="session")
def both(dense, late):
    return rk.Hybrid([dense, late], fusion="linear", weights=[0.3, 0.7], normalization="min_max")


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory, tiny_model):
    """Checkpoint folder with the weights of the model."""
    from retrievalkit.models.retriever import Retriever

    folder = tmp_path_factory.mktemp("checkpoint")
    Retriever.create(tiny_model, pooler="mean").save(folder)
    return folder
