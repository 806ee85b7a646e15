"""From the command line: real texts encoded, indexed in a folder and on a server, searched, fused; and mistakes."""

import json

import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.data.runs import read_run

pytestmark = pytest.mark.precision

NOBODY = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def rkit(folder):
    """Runs a command in a folder of its own; returns click's result."""

    def run(*words):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            return CliRunner().invoke(main, [str(word) for word in words])

    return run


@pytest.fixture(scope="module")
def succeed(rkit):
    def run(*words):
        result = rkit(*words)
        assert result.exit_code == 0, f"{words}\n{result.output}\n{result.exception!r}"
        return result.stdout

    return run


@pytest.fixture(scope="module")
def collection(folder, succeed):
    """A tiny collection, encoded by a tiny model: a vector a text, and a vector a token."""
    collection = testing.tiny_collection(folder / "data")
    model = testing.tiny_model(folder / "model")
    succeed("encode", model, collection.corpus, "--pooler", "mean", "--output", "vectors")
    succeed(
        "encode", model, collection.corpus, "--pooler", "colbert", "--set", "pooler.dimension=16", "--output", "tokens"
    )
    return collection


@pytest.fixture(scope="module")
def search(succeed, collection, folder):
    def run(*words):
        succeed("search", *words, "--queries", collection.folder, "--split", "test", "--k", 10, "--output", "run.trec")
        return read_run(folder / "run.trec")

    return run


def assert_same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for query, hits in ours.items():
        assert [one for one, _ in hits] == [one for one, _ in theirs[query]]
        assert [score for _, score in hits] == pytest.approx([score for _, score in theirs[query]], rel=1e-4)


@pytest.mark.parametrize("vectors", ["vectors", "tokens"])
def test_finds_what_flat_finds(succeed, search, vectors, folder, server):
    """In a folder and on a server, the run is that of the exact index."""
    succeed("index", vectors, "--indexer", "flat", "--output", f"flat-{vectors}")
    succeed("index", vectors, "--indexer", "milvus", "--output", f"folder-{vectors}")
    succeed("index", vectors, "--indexer", "milvus", "--set", f"uri={server}", "--output", f"server-{vectors}")
    expected = search(f"flat-{vectors}")
    assert_same(search(f"folder-{vectors}"), expected)
    assert_same(search(f"server-{vectors}"), expected)
    assert not (folder / f"server-{vectors}" / "milvus.db").exists()


def test_another_address(succeed, search, collection, server):
    """An index can be opened at another address than the one it was built with; an option of searching can differ."""
    succeed("index", "vectors", "--indexer", "milvus", "--output", "moving")
    succeed("index", "vectors", "--indexer", "milvus", "--set", f"uri={server}", "--output", "moved")
    assert_same(search("moving", "--set", f"milvus.uri={server}"), search("moved"))


def test_fused_with_another_index(succeed, search):
    """Scores that only the other index found are computed, so that a sum is what it is for two exact indexes."""
    pytest.importorskip("retrievalkit_pyserini", reason="fuses with Lucene")
    succeed("index", "data/corpus.jsonl", "--indexer", "bm25", "--output", "bm25")
    succeed("index", "vectors", "--indexer", "flat", "--output", "flat")
    succeed("index", "vectors", "--indexer", "milvus", "--output", "milvus")
    fusion = ("--fusion", "linear", "--weights", "0.3,0.7")
    assert_same(search("milvus", "bm25", *fusion), search("flat", "bm25", *fusion))


def test_a_query_typed(succeed, collection):
    """One query prints hits to read."""
    succeed("index", "vectors", "--indexer", "milvus", "--output", "typed")
    found = json.loads(succeed("search", "typed", "--query", "what is the capital of Peru", "--json"))
    assert len(found["hits"]) == 10


def test_nobody_answers(rkit, succeed, collection, folder, server):
    """An unreachable server is one line and exit code 2, building and searching; no folder appears."""
    result = rkit("index", "vectors", "--indexer", "milvus", "--set", f"uri={NOBODY}", "--output", "none")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no Milvus answers" in result.stderr
    assert "Traceback" not in result.stderr
    assert not [path for path in folder.iterdir() if path.name.startswith(("none", ".none"))]
    succeed("index", "vectors", "--indexer", "milvus", "--set", f"uri={server}", "--output", "reachable")
    result = rkit("search", "reachable", "--query", "Peru", "--set", f"milvus.uri={NOBODY}")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no Milvus answers" in result.stderr


def test_options_are_shown(succeed):
    """Each option is printed with what it does."""
    shown = succeed("plugins", "show", "milvus")
    for option in ("uri", "collection", "index_type", "search_parameters", "candidates", "batch", "replace", "timeout"):
        assert option in shown
