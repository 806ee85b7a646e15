"""Objects of Python find what the command line writes: the same vectors, runs, hits and weights."""

from __future__ import annotations

import json

import numpy as np
import pytest

import retrievalkit as rk
from retrievalkit.data.vectors import VectorStore

pytestmark = pytest.mark.precision

MODEL = ("--pooler", "mean")


@pytest.fixture(scope="module")
def made(tmp_path_factory, command, tiny_model, tiny_collection):
    """Vectors, an index and a run of the command line."""
    folder = tmp_path_factory.mktemp("commands")
    command("encode", tiny_model, tiny_collection.corpus, *MODEL, "--output", folder / "vectors")
    command("index", folder / "vectors", "--output", folder / "dense")
    command("search", folder / "dense", "--queries", tiny_collection.queries, "--k", 20, "--output", folder / "a.trec")
    return folder


def test_vectors(made, model, passages, tiny_collection, command, tmp_path):
    """Of dicts, of the file, in a folder; and of queries."""
    stored = VectorStore(made / "vectors")
    for texts in (passages, tiny_collection.corpus):
        encoded = model.encode_documents(texts)
        assert list(encoded.ids) == list(stored.ids)
        np.testing.assert_array_equal(encoded.to_numpy(), np.load(made / "vectors" / "vectors-00000.npy"))
    folder = model.encode_documents(tiny_collection.corpus, output=tmp_path / "vectors")
    for name in ("ids.txt", "vectors-00000.npy"):
        assert (folder / name).read_bytes() == (made / "vectors" / name).read_bytes()
    words = (model.source, tiny_collection.queries, *MODEL, "--side", "query", "--output", tmp_path / "queries")
    command("encode", *words)
    asked = model.encode_queries(tiny_collection.queries)
    np.testing.assert_array_equal(np.asarray(asked), np.load(tmp_path / "queries" / "vectors-00000.npy"))


def test_runs(made, dense, queries, tiny_collection, tmp_path):
    """Of an index that was built here of passages in memory, and of one of the command line."""
    for index, asked in ((dense, queries), (rk.Index.open(made / "dense"), tiny_collection.queries)):
        index.search(asked, k=20).save(tmp_path / "run")
        assert (tmp_path / "run").read_bytes() == (made / "a.trec").read_bytes()


def test_an_index_of_a_file_has_the_same_bytes(made, model, tiny_collection, tmp_path):
    index = rk.Index.build(tiny_collection.corpus, model, tmp_path / "dense", vectors=tmp_path / "vectors")
    for name in ("ids.txt", "vectors-00000.npy"):
        assert (index.folder / "vectors" / name).read_bytes() == (made / "dense" / "vectors" / name).read_bytes()
    assert index.manifest["corpus"]["path"] == str(tiny_collection.corpus)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_hits_are_those_that_are_printed(made, command):
    """Titles, snippets and reasons too."""
    printed = json.loads(command("search", made / "dense", "--query", "the capital of peru", "--k", 3, "--json"))
    found = rk.Index.open(made / "dense").search("the capital of peru", k=3)
    for hit, shown in zip(found, printed["hits"], strict=True):
        assert (hit.rank, hit.id, hit.title, hit.snippet) == tuple(
            shown[one] for one in ("rank", "id", "title", "snippet")
        )
        assert hit.score == pytest.approx(shown["score"])


@pytest.mark.parametrize(
    "options",
    [{"fusion": "rrf", "rrf_k": 10}, {"fusion": "linear", "weights": [0.3, 0.7], "normalization": "min_max"}],
)
def test_fused_runs(options, dense, late, command, tiny_collection, tmp_path):
    rk.Hybrid([dense, late], depth=30, **options).search(tiny_collection.queries, k=10).save(tmp_path / "here")
    words = [word for name, value in options.items() for word in (f"--{name.replace('_', '-')}", value)]
    words = [",".join(map(str, word)) if isinstance(word, list) else word for word in words]
    places = (dense.folder, late.folder, "--queries", tiny_collection.queries, "--k", 10, "--depth", 30)
    command("search", *places, *words, "--output", tmp_path / "there")
    assert (tmp_path / "here").read_bytes() == (tmp_path / "there").read_bytes()


def test_tuned_weights(dense, late, command, tiny_collection, tmp_path):
    """And the file of weights is read by either side."""
    train = tiny_collection.folder / "qrels" / "train.tsv"
    tuned = rk.Hybrid([dense, late], fusion="linear").tune(train, tiny_collection.queries, metric="RR@10", k=20)
    tuned.save_weights(tmp_path / "here.json")
    words = ("--tune", train, "--tune-queries", tiny_collection.queries, "--tune-metric", "RR@10", "--k", 20)
    command("search", dense.folder, late.folder, *words, "--output", tmp_path / "there.json")
    assert (tmp_path / "here.json").read_bytes() == (tmp_path / "there.json").read_bytes()
    again = rk.Hybrid([dense.folder, late.folder], weights=tmp_path / "there.json")
    assert again.fusion == tuned.fusion
    assert again.search("peru", k=3) == tuned.search("peru", k=3)
