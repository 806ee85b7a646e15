"""From the command line: texts encoded, indexed in a folder and on a server, searched and fused."""

import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.data.runs import read_run

pytestmark = pytest.mark.precision


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("commands")


@pytest.fixture(scope="module")
def succeed(folder):
    """Runs a command in a folder of its own."""

    def run(*words):
        with pytest.MonkeyPatch.context() as patch:
            patch.chdir(folder)
            result = CliRunner().invoke(main, [str(word) for word in words])
        assert result.exit_code == 0, f"{words}\n{result.output}\n{result.exception!r}"

    return run


@pytest.fixture(scope="module")
def collection(folder, succeed):
    """A tiny collection, encoded by a tiny model: a vector a text, and a vector a token."""
    collection = testing.tiny_collection(folder / "data")
    model = testing.tiny_model(folder / "model")
    succeed("encode", model, collection.corpus, "--pooler", "mean", "--output", "vectors")
    late = ("--pooler", "colbert", "--set", "pooler.dimension=16")
    succeed("encode", model, collection.corpus, *late, "--output", "tokens")
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


def test_fused_with_another_index(succeed, search):
    """Scores that only the other index found are computed, so that a sum is what it is for two exact indexes."""
    pytest.importorskip("retrievalkit_pyserini", reason="fuses with Lucene")
    succeed("index", "data/corpus.jsonl", "--indexer", "bm25", "--output", "bm25")
    succeed("index", "vectors", "--indexer", "flat", "--output", "flat")
    succeed("index", "vectors", "--indexer", "milvus", "--output", "milvus")
    fusion = ("--fusion", "linear", "--weights", "0.3,0.7")
    assert_same(search("milvus", "bm25", *fusion), search("flat", "bm25", *fusion))
