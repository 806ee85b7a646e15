"""Unusual sizes have a result, or are refused with exit code 2."""

from __future__ import annotations

import json

import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.data.runs import read_run, write_run
from retrievalkit.mining.parts import HITS_AT_ONCE, PART, PART_HITS, part_size, searched_at_once
from retrievalkit.search.searcher import BATCH_QUERIES, queries_at_once


def rkit(*words):
    result = CliRunner().invoke(main, [str(word) for word in words])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.output
    return result


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    """Index of a single document of a megabyte, and index of three documents."""
    folder = tmp_path_factory.mktemp("sizes")
    model = testing.tiny_model(folder / "model")
    texts = {"one": ["rome paris " * 100_000], "three": ["rome", "paris", "lima"]}
    for name, bodies in texts.items():
        rows = (json.dumps({"_id": f"d{n}", "text": text}) for n, text in enumerate(bodies))
        (folder / f"{name}.jsonl").write_text("\n".join(rows) + "\n")
        encoded = rkit("encode", model, folder / f"{name}.jsonl", "--output", folder / f"{name}.vectors")
        assert encoded.exit_code == 0, encoded.output
        assert rkit("index", folder / f"{name}.vectors", "--output", folder / name).exit_code == 0
    return folder


def searched(places, index, query, tmp_path, *options):
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": query}) + "\n")
    words = ["search", places / index, "--queries", tmp_path / "queries.jsonl", "--output", tmp_path / "run", *options]
    result = rkit(*words)
    assert result.exit_code == 0, result.output
    return read_run(tmp_path / "run"), result


@pytest.mark.precision
def test_a_document_of_a_megabyte_in_an_index_of_its_own(places, tmp_path):
    run, _ = searched(places, "one", "rome", tmp_path)
    assert [document for document, _ in run["q"]] == ["d0"]


@pytest.mark.parametrize("content", ["", "\n", "[]"])
def test_files_without_queries_are_refused(places, tmp_path, content):
    (tmp_path / "queries.jsonl").write_text(content)
    result = rkit("search", places / "three", "--queries", tmp_path / "queries.jsonl", "--output", tmp_path / "run")
    assert result.exit_code == 2
    assert "queries.jsonl" in result.stderr
    assert not (tmp_path / "run").exists()


def test_many_queries_are_fused(tmp_path):
    run = {f"q{n}": [("a", 2.0), (f"d{n}", 1.0)] for n in range(10_000)}
    write_run(tmp_path / "one", run)
    write_run(tmp_path / "two", reversed(run.items()))
    result = rkit("search", tmp_path / "one", tmp_path / "two", "--output", tmp_path / "fused")
    assert result.stdout == f"{tmp_path / 'fused'}: 10,000 queries, 20,000 hits\n"
    fused = read_run(tmp_path / "fused")
    assert list(fused) == list(run)
    assert [document for document, _ in fused["q77"]] == ["a", "d77"]


def test_a_result_is_printed_as_json(tmp_path):
    write_run(tmp_path / "one", {"q1": [("a", 2.0), ('"é\n'.strip(), 1.0)], "q2": [("b", 1.0)]})
    write_run(tmp_path / "two", {"q1": [("a", 2.0)]})
    result = rkit("search", tmp_path / "one", tmp_path / "two", "--json")
    printed = json.loads(result.stdout)
    assert result.stdout == json.dumps(printed, indent=2, ensure_ascii=False) + "\n"
    assert list(printed) == ["queries", "hits", "run", "fusion", "results"]
    assert (printed["queries"], printed["hits"], list(printed["results"])) == (2, 3, ["q1", "q2"])


@pytest.mark.parametrize("depth", [1, 200, 1000, 2048, 5_000, 100_000, 10_000_000])
def test_hits_in_memory_are_limited_at_any_depth(depth):
    """Fewer queries at a time bound the hits; for usual depths the batches are constant."""
    at_once, part = searched_at_once(depth), part_size(depth)
    assert at_once % part == 0
    assert at_once == 1 or at_once * depth <= HITS_AT_ONCE
    assert part == 1 or part * depth <= PART_HITS
    assert depth > 1024 or part == PART
    assert depth > 2048 or (at_once % 1024 == 0 and queries_at_once(depth) == BATCH_QUERIES)
    assert queries_at_once(depth) == 1 or queries_at_once(depth) * depth <= HITS_AT_ONCE
