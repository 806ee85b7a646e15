"""The classic collection CACM, if available."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import retrievalkit as rk
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries

REPOSITORY = Path(__file__).parents[3]
CACM = Path(os.environ.get("RKIT_SHARED_DATA", REPOSITORY.parent / "shared" / "data")) / "cacm"
pytestmark = pytest.mark.skipif(not CACM.is_dir(), reason="RKIT_SHARED_DATA has no cacm")


def test_cacm(tmp_path):
    """Metrics equal those measured before; Anserini has AP 0.3123 and P@30 0.1942 on records with more fields."""
    index = rk.Index.build(CACM, None, tmp_path / "index", indexer="bm25")
    assert len(index) == 3204
    scores = index.search(CACM, k=1000).evaluate(CACM, "AP P@30 nDCG@10")
    assert dict(scores) == pytest.approx({"AP": 0.3270, "P@30": 0.1929, "nDCG@10": 0.4754}, abs=0.001)


@pytest.mark.slow
def test_the_run_equals_that_of_pyserinis_command_line(tmp_path):
    """Pyserini's commands and rkit's give runs with the same hits and scores."""
    # Pyserini mistakes a file whose path contains 'cacm' for its own topics.
    collection, queries = tmp_path / "collection", tmp_path / "queries.tsv"
    collection.mkdir()
    with (collection / "texts.jsonl").open("w", encoding="utf-8") as stream:
        for passage in open_corpus(CACM / "corpus.jsonl.gz"):
            contents = f"{passage.title}\n{passage.text}".strip()
            stream.write(json.dumps({"id": passage.id, "contents": contents}) + "\n")
    questions = read_queries(CACM / "queries.jsonl.gz")
    queries.write_text(
        "".join(f"{query.id}\t{' '.join(query.text.split())}\n" for query in questions), encoding="utf-8"
    )
    theirs = tmp_path / "pyserini"
    shape = ["--collection", "JsonCollection", "--generator", "DefaultLuceneDocumentGenerator"]
    pyserini("pyserini.index.lucene", *shape, "--input", str(collection), "--index", str(theirs), "--threads", "1")
    output = ["--output", str(tmp_path / "pyserini.trec"), "--hits", "100", "--bm25"]
    pyserini("pyserini.search.lucene", "--index", str(theirs), "--topics", str(queries), *output)
    index = rk.Index.build(CACM / "corpus.jsonl.gz", None, tmp_path / "rkit", indexer="bm25")
    index.search(queries, k=100).save(tmp_path / "rkit.trec")
    # Line by line: with the six decimals that Pyserini writes, different scores may read as equal.
    expected, own = lines(tmp_path / "pyserini.trec"), lines(tmp_path / "rkit.trec")
    assert len(own) > 3000
    assert [row[:4] for row in own] == [row[:4] for row in expected]
    assert [float(row[4]) for row in own] == pytest.approx([float(row[4]) for row in expected], abs=2e-6)


def lines(run):
    """Return the fields of a run's lines, in the order of the queries' numbers."""
    rows = [line.split() for line in run.read_text(encoding="utf-8").splitlines()]
    return sorted(rows, key=lambda row: (int(row[0]), int(row[3])))


def pyserini(program, *arguments):
    """Run a program of Pyserini on the installed Java, with Anserini's own settings."""
    code = """
import runpy, sys, jnius_config
from retrievalkit_pyserini import java
jnius_config.set_classpath(str(java.anserini_jar()))
with java.environment(JAVA_HOME=str(java.find_java().home), JVM_PATH=None):
    import jnius
sys.argv = sys.argv[1:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""
    environment = os.environ | {"OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY", "none")}
    command = [sys.executable, "-c", code, program, *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
