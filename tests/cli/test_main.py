"""The command line, end to end on a tiny collection: the whole walk, and what a mistake prints."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from click.testing import CliRunner

from retrievalkit.cli import main

pytestmark = pytest.mark.precision

pytest.importorskip("retrievalkit_pyserini", reason="the walk uses Lucene")
pytest.importorskip("retrievalkit_mlr", reason="the walk uses self-contrastive pooling")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("walk")


def rkit(*words, folder=None):
    """Run a command in this process; returns click's result."""
    before = os.getcwd()
    os.chdir(folder or before)
    try:
        return CliRunner().invoke(main, [str(word) for word in words], standalone_mode=True)
    finally:
        os.chdir(before)


def succeed(*words, folder):
    result = rkit(*words, folder=folder)
    assert result.exit_code == 0, f"{' '.join(map(str, words))}\n{result.output}\n{result.exception!r}"
    return result.stdout


@pytest.fixture(scope="module")
def walked(folder, tiny_model, tiny_collection):
    """The folder after BM25, mining, two stages, encoding and indexing."""
    corpus, data = tiny_collection.corpus, tiny_collection.folder
    train = ("--model", tiny_model, "--corpus", corpus, "--pooler", "self_contrastive", "--set", "pooler.layers=1,2")
    train += ("--batch-size", 16, "--learning-rate", 3e-3, "--set", "encoder.dropout=0")
    succeed("index", corpus, "--indexer", "bm25", "--output", "bm25", folder=folder)
    mine = ("mine-negatives", "--corpus", corpus, "--negatives", 5)
    succeed(*mine, "--from", "bm25", "--examples", data, "--output", "train.jsonl", folder=folder)
    # The first stage only mines.
    succeed("train", *train, "--epochs", 2, "--examples", "train.jsonl", "--output", "stage1", folder=folder)
    mine2 = ("--from", "stage1", "--examples", "train.jsonl", "--merge-with", "train.jsonl", "--output", "stage2.jsonl")
    succeed(*mine, *mine2, folder=folder)
    succeed("train", *train, "--epochs", 12, "--examples", "stage2.jsonl", "--output", "stage2", folder=folder)
    succeed("encode", "stage2", corpus, "--side", "document", "--output", "vectors", folder=folder)
    succeed("index", "vectors", "--indexer", "flat", "--output", "dense", folder=folder)
    succeed("encode", tiny_model, corpus, "--pooler", "cls", "--output", "untrained-vectors", folder=folder)
    succeed("index", "untrained-vectors", "--output", "untrained", folder=folder)
    search = ("search", "--queries", data, "--split", "test", "--k", 20)
    succeed(*search, "dense", "--output", "dense.trec", folder=folder)
    succeed(*search, "bm25", "--output", "bm25.trec", folder=folder)
    succeed(*search, "untrained", "--output", "untrained.trec", folder=folder)
    succeed(*search, "dense", "bm25", "--fusion", "rrf", "--output", "hybrid.trec", folder=folder)
    return folder


def metric(folder, run, qrels, name="nDCG@10"):
    return json.loads(succeed("evaluate", run, "--qrels", qrels, "--json", folder=folder))["metrics"][name]


def test_training_from_the_command_line_beats_the_untrained_encoder(walked, tiny_collection):
    trained = metric(walked, "dense.trec", tiny_collection.qrels)
    assert trained > metric(walked, "untrained.trec", tiny_collection.qrels) + 0.1


def test_bm25_answers_questions_that_name_the_country(walked, tiny_collection):
    assert metric(walked, "bm25.trec", tiny_collection.qrels) > 0.95


def test_answers_are_found_in_the_passages(walked, tiny_collection):
    words = ("evaluate", "bm25.trec", "--answers", tiny_collection.folder, "--split", "test")
    found = json.loads(succeed(*words, "--corpus", tiny_collection.corpus, "--json", folder=walked))
    assert found["metrics"]["top5"] > 0.95


def test_compare_prints_each_run(walked, tiny_collection):
    runs = ("untrained.trec", "dense.trec", "hybrid.trec")
    printed = succeed("compare", *runs, "--qrels", tiny_collection.qrels, folder=walked)
    for name in ("untrained", "dense", "hybrid"):
        assert name in printed


def test_a_query_prints_hits_to_read(walked):
    printed = succeed(
        "search", "dense", "bm25", "--fusion", "rrf", "--query", "capital of Peru", "--k", 3, folder=walked
    )
    assert "Peru" in printed
    assert "Lima" in printed


def test_an_index_is_refused_with_another_checkpoint(walked):
    result = rkit("search", "dense", "--model", "stage1", "--query", "x", folder=walked)
    assert result.exit_code == 2
    assert "another one" in result.stderr


def test_a_failure_that_is_a_bug_keeps_its_traceback():
    code = "from retrievalkit import cli, registry\nregistry.plugins = lambda: 1 / 0\ncli.main(['plugins', 'list'])\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "ZeroDivisionError" in done.stderr


def test_the_quickstart_on_own_files(tmp_path, tiny_model, tiny_collection):
    words = ["quickstart", "--output", "out", "--model", tiny_model]
    words += ["--corpus", tiny_collection.corpus, "--examples", tiny_collection.folder]
    words += ["--queries", tiny_collection.folder, "--qrels", tiny_collection.qrels]
    words += ["--set", "layers=1,2", "--set", "document_length=64", "--set", "plot=false"]
    printed = succeed(*words, folder=tmp_path)
    rows = json.loads((tmp_path / "out" / "results.json").read_text())
    names = [row["system"] for row in rows]
    assert names[:3] == ["BM25", "untrained encoder", "dual encoder"]
    assert len(names) == 6
    for row in rows:
        assert {"nDCG@10", "RR@10", "R@100", "top5", "top20", "seconds"} <= set(row)
        assert row["system"] in printed
    assert (tmp_path / "out" / "compare.html").exists()
    assert "search out/bm25 --query 'what" in printed  # the best system here, and a question of this collection
    assert printed.count("\n") < 60
    assert all(0 <= row["p_corrected"] <= 1 for row in rows[1:])
    again = rkit(*words, folder=tmp_path)
    assert again.exit_code == 0, again.output
    assert "[1-22/22] Unchanged, kept from the run before" in again.stderr
