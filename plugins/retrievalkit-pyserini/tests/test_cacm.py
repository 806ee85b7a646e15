"""The classic collection CACM, where it is at hand."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import ir_measures
import pytest
from retrievalkit_pyserini.bm25 import BM25

from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.queries import read_queries

REPOSITORY = Path(__file__).parents[3]
CACM = Path(os.environ.get("RKIT_SHARED_DATA", REPOSITORY.parent / "shared" / "data")) / "cacm"


@pytest.mark.skipif(not CACM.is_dir(), reason="CACM is not here; RKIT_SHARED_DATA names the folder that holds it")
def test_cacm(tmp_path):
    """What was measured once comes out; Anserini has AP 0.3123 and P@30 0.1942, on records with more fields."""
    index = BM25()
    assert index.build(open_corpus(CACM / "corpus.jsonl.gz"), tmp_path)["texts"] == 3204
    index.open(tmp_path)
    queries = read_queries(CACM / "queries.jsonl.gz")
    ids, scores = index.search([query.text for query in queries], 1000)
    hits = [dict(zip(*one, strict=True)) for one in zip(ids, (one.tolist() for one in scores), strict=True)]
    run = dict(zip([query.id for query in queries], hits, strict=True))
    with gzip.open(CACM / "qrels" / "test.tsv.gz", "rt", encoding="utf-8") as stream:
        rows = [line.rstrip("\n").split("\t") for line in stream][1:]
    qrels = [ir_measures.Qrel(query, document, int(grade)) for query, document, grade in rows]
    measures = [ir_measures.AP, ir_measures.P @ 30, ir_measures.nDCG @ 10]
    found = ir_measures.calc_aggregate(measures, qrels, run)
    assert found[ir_measures.AP] == pytest.approx(0.3270, abs=0.001)
    assert found[ir_measures.P @ 30] == pytest.approx(0.1929, abs=0.001)
    assert found[ir_measures.nDCG @ 10] == pytest.approx(0.4754, abs=0.001)


@pytest.mark.skipif(not CACM.is_dir(), reason="CACM is not here; RKIT_SHARED_DATA names the folder that holds it")
@pytest.mark.slow
def test_the_same_run_as_on_pyserini_s_command_line(tmp_path):
    """Index and search by Pyserini's own commands, and by rkit's: the two runs have the same hits and scores."""
    # Pyserini takes a file for one of its own topics where its path says 'cacm'.
    collection, queries = tmp_path / "collection", tmp_path / "queries.tsv"
    collection.mkdir()
    with (collection / "texts.jsonl").open("w", encoding="utf-8") as stream:
        for one in open_corpus(CACM / "corpus.jsonl.gz"):
            contents = f"{one.title}\n{one.text}".strip()
            stream.write(json.dumps({"id": one.id, "contents": contents}) + "\n")
    asked = read_queries(CACM / "queries.jsonl.gz")
    queries.write_text("".join(f"{one.id}\t{' '.join(one.text.split())}\n" for one in asked), encoding="utf-8")
    theirs, ours = tmp_path / "pyserini", tmp_path / "rkit"
    shape = ["--collection", "JsonCollection", "--generator", "DefaultLuceneDocumentGenerator"]
    pyserini("pyserini.index.lucene", *shape, "--input", str(collection), "--index", str(theirs), "--threads", "1")
    output = ["--output", str(tmp_path / "pyserini.trec"), "--hits", "100", "--bm25"]
    pyserini("pyserini.search.lucene", "--index", str(theirs), "--topics", str(queries), *output)
    rkit("index", str(CACM / "corpus.jsonl.gz"), "--indexer", "bm25", "--output", str(ours))
    run = ["--k", "100", "--output", str(tmp_path / "rkit.trec")]
    rkit("search", str(ours), "--queries", str(queries), *run)
    # Line by line: Pyserini writes six decimals, by which scores that it tells apart read as equal.
    expected, found = lines(tmp_path / "pyserini.trec"), lines(tmp_path / "rkit.trec")
    assert len(found) > 3000
    assert [row[:4] for row in found] == [row[:4] for row in expected]
    assert [float(row[4]) for row in found] == pytest.approx([float(row[4]) for row in expected], abs=2e-6)


def lines(run):
    """The fields of a run's lines, in the order of the queries' numbers."""
    rows = [line.split() for line in run.read_text(encoding="utf-8").splitlines()]
    return sorted(rows, key=lambda row: (int(row[0]), int(row[3])))


def pyserini(program, *arguments):
    """Run one of Pyserini's programs, on the Java that was installed along, with Anserini's own settings."""
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


def rkit(*arguments):
    """Run rkit."""
    command = [sys.executable, "-c", "from retrievalkit.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
