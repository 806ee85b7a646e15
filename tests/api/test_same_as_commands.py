"""Objects of Python find what the command line writes: the same vectors, runs, hits and weights."""

from __future__ import annotations

import pytest

import retrievalkit as rk

pytestmark = pytest.mark.precision


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
