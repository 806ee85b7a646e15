"""Recall of an index against brute force: measured, recorded, refused."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner

from retrievalkit import storage
from retrievalkit.cli import main
from retrievalkit.errors import ArtifactError, UnsupportedError
from retrievalkit.indexing import recall
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.corpus_encoding import encode
from retrievalkit.indexing.indexers.flat import Flat
from vector_folders import write as write_store


@pytest.fixture
def halved(monkeypatch):
    """Every second hit, with 1.5 times its score; or unknown texts."""

    def search(self, queries, k, *, original=Flat.search):
        ids, scores = original(self, queries, k)
        ids = [[halved.name or name for name in one] for one in ids]
        return [one[::2] for one in ids], [one[::2] * 1.5 for one in scores]

    halved = SimpleNamespace(name=None)
    monkeypatch.setattr(Flat, "search", search)
    return halved


def write(folder, *, texts=120, m=1, ragged=False, weights=False, values=None):
    random = np.random.default_rng(0)
    counts = random.integers(1, m + 1, texts) if ragged else np.full(texts, m)
    vectors = random.standard_normal((counts.sum(), 8)).astype(np.float32)
    if values is not None:
        vectors = random.choice(values, vectors.shape).astype(np.float32)
    lexical = random.random((texts, 30), dtype=np.float32)
    lexical = lexical * (lexical > 0.8) if weights else None
    return write_store(folder, vectors=vectors, counts=counts, weights=lexical, shard=texts).folder


@pytest.mark.parametrize(
    ("indexer", "options", "kind"),
    [
        ("flat", {}, {"m": 3, "ragged": True}),
        ("flat", {}, {"weights": True}),
        ("flat", {"view": "vectors"}, {"weights": True}),
        ("flat", {"view": "weights"}, {"weights": True}),
        ("flat", {}, {"values": [0, 1]}),
        ("flat", {}, {"texts": 5}),
        ("faiss", {}, {"m": 3, "ragged": True}),
        ("faiss", {"view": "vectors"}, {"weights": True}),
        ("sparse", {}, {"weights": True}),
        ("dense_sparse", {}, {"weights": True, "m": 2}),
    ],
    ids=str,
)
def test_exact_indexers_have_full_recall(tmp_path, indexer, options, kind):
    """With one and many vectors, weights, both, ties, and views, which brute force also compares."""
    build_index(write(tmp_path / "v", **kind), indexer=indexer, output=tmp_path / "i", options=options)
    found = recall.check_index(tmp_path / "i", count=50, k=7)
    assert (found.queries, found.k, found.recall, found.exact) == (min(50, kind.get("texts", 50)), 7, 1.0, True)
    assert found.largest_difference < 1e-4
    assert storage.read_manifest(tmp_path / "i")["check"] == found.as_json()


def test_missed_hits_and_wrong_scores_are_measured(tmp_path, halved):
    build_index(write(tmp_path / "v"), output=tmp_path / "i")
    found = recall.check_index(tmp_path / "i", count=500, k=10)
    assert (found.queries, found.recall, found.exact) == (120, 0.5, False)
    assert found.largest_difference > 1
    assert "recall@10 0.5000 over 120 queries (texts of the folder), not exact" in found.summary


def test_search_options_can_be_tried(tmp_path):
    """Without building again; the manifest records them."""
    build_index(write(tmp_path / "v"), indexer="faiss", output=tmp_path / "i", options={"factory": "IVF16,Flat"})
    few = recall.check_index(tmp_path / "i")
    all_lists = recall.check_index(tmp_path / "i", options={"parameters": "nprobe=16"})
    assert few.recall < 1 == all_lists.recall
    assert storage.read_manifest(tmp_path / "i")["check"]["options"] == {"parameters": "nprobe=16"}


def test_altered_missing_and_other_vectors_are_refused(tmp_path, monkeypatch, halved):
    """Without writing the manifest; an index of texts has no vectors."""
    build_index(write(tmp_path / "v", weights=True), indexer="sparse", output=tmp_path / "i")
    before = (tmp_path / "i" / "manifest.json").read_text()
    path = tmp_path / "v" / "lexical-00000.npz"
    damaged = bytearray(path.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(ArtifactError, match=r"lexical-00000\.npz' was altered"):
        recall.check_index(tmp_path / "i")
    (tmp_path / "v").rename(tmp_path / "w")
    with pytest.raises(ArtifactError, match="are no longer at"):
        recall.check_index(tmp_path / "i")
    assert (tmp_path / "i" / "manifest.json").read_text() == before
    halved.name = "x"
    build_index(write(tmp_path / "few", texts=3), output=tmp_path / "j")
    with pytest.raises(ArtifactError, match="returns the text 'x'"):
        recall.check_index(tmp_path / "j")
    monkeypatch.setattr(Flat, "indexes", "texts")
    with pytest.raises(UnsupportedError, match="indexes texts"):
        recall.check_index(tmp_path / "j")


@pytest.mark.precision
def test_from_the_command_line(tmp_path):
    """An index is built and checked, and checked again with encoded queries, in JSON."""

    def run(*arguments):
        result = CliRunner().invoke(main, ["index", *map(str, arguments)])
        assert result.exit_code == 0
        return json.loads(result.output) if "--json" in arguments else result.output

    collection = testing.tiny_collection(tmp_path / "data")
    model = testing.tiny_model(tmp_path / "model")
    encode(model, collection.corpus, side="document", output=tmp_path / "v")
    output = run(tmp_path / "v", "--indexer", "faiss", "--output", tmp_path / "i", "--check")
    assert "42 texts indexed" in output
    assert "recall@10 1.0000 over 42 queries (texts of the folder), exact" in output
    found = run(tmp_path / "i", "--check", "--check-queries", collection.queries, "--check-k", 5, "--json")
    assert (found["queries"], found["k"], found["recall"], found["exact"]) == (100, 5, 1.0, True)
    assert found["source"] == str(collection.queries)
    assert run(tmp_path / "v", "-o", tmp_path / "j", "--check", "--check-count", 7, "--json")["queries"] == 7
