"""The classic collection CACM, where it is at hand."""

import gzip
import os
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
