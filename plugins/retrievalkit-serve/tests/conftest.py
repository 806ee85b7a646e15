"""Fixtures of the tests of `rkit serve`: indexes, a re-ranker, and a service."""

from __future__ import annotations

import json

import pytest
from services import HOSTILE, service

import retrievalkit as rk


@pytest.fixture(scope="session")
def folders(tmp_path_factory, tiny_model, tiny_collection):
    """Two indexes of the tiny collection and a hostile passage: with a vector per text, and per token."""
    folder = tmp_path_factory.mktemp("served")
    rows = [*map(json.loads, tiny_collection.corpus.read_text().splitlines()), HOSTILE]
    lines = [json.dumps({**row, "metadata": {"number": number}}) + "\n" for number, row in enumerate(rows)]
    (folder / "corpus.jsonl").write_text("".join(lines))
    rk.Index.build(folder / "corpus.jsonl", tiny_model, folder / "dense", pooler="mean")
    rk.Index.build(folder / "corpus.jsonl", tiny_model, folder / "late", pooler="colbert")
    return folder


@pytest.fixture(scope="session")
def reranker(tmp_path_factory, tiny_model):
    """A cross-encoder with random weights."""
    from retrievalkit.models.cross_encoder import CrossEncoder

    folder = tmp_path_factory.mktemp("rerankers") / "reranker"
    folder.mkdir()
    CrossEncoder.create(tiny_model).save(folder)
    return folder


@pytest.fixture(scope="session")
def served(folders, reranker):
    """A service of both indexes, which re-ranks on request."""
    arguments = (folders / "dense", folders / "late", "--reranker", reranker, "--rerank", "0")
    with service(*arguments, "--max-body", "20000", "--max-query", "200", "--max-k", "60") as process:
        yield process


@pytest.fixture(scope="session")
def client(served):
    with served.client() as client:
        yield client
