"""Detection of the kind of data in a source."""

from __future__ import annotations

import json

import pytest

from retrievalkit.data.kinds import kind_of
from retrievalkit.errors import DataError

OBJECTS = {
    "corpus": [
        {"_id": "1", "title": "", "text": ""},
        {"docid": "1", "text": ""},
        {"id": "1", "contents": ""},
        {"doc_id": "1", "text": ""},
    ],
    "queries": [
        {"_id": "1", "text": "", "answers": []},
        {"query_id": "1", "query": ""},
        {"question": "", "answers": []},
        {"qid": "1", "text": ""},
    ],
    "examples": [
        {"query_id": "1", "query": "", "positives": [], "negatives": []},
        {"query_id": "1", "query": "", "positive_passages": []},
        {"query_id": "1", "query_text": "", "positive_document_ids": []},
        {"question": "", "positive_ctxs": []},
        {"anchor": "", "positive": ""},
        {"query": "", "pos": [], "neg": []},
    ],
}
ROWS = {
    "corpus": ["id\ttext\ttitle\n1\ta\tb\n", "docid\tbody\n1\ta\n", "pid\tpassage\n1\ta\n", "body\tID\na\t1\n"],
    "queries": ["who\t['me']\n", "query_id\tquery\n1\twho\n"],
    "examples": ["anchor\tpositive\tnegative\na\tb\tc\n"],
    "qrels": [
        "1 0 d2 1\n1 0 d3 0\n",
        "1\t7\t1\n1\t8\t1\n",
        "1\t7\t0\n",
        "7 1 d2 0\n",
        "1 0 2 1\n",
        "1\t0\t2\t-1\n",
        "query-id\tcorpus-id\tscore\n1\t2\t1\n",
    ],
    "run": [
        "1 Q0 2 1 0.5 tag\n",
        "a b\tQ0\t2\t1\t0.5\ttag\n",
        "1\t7\t1\n1\t8\t2\n2\t7\t1\n",
        "1\t7\t0.5\n",
        "1\t7\t1\t0.5\n",
        "1\t7\t1\t12\n1\t8\t2\t11\n",
        "1\t7\twho is it\tIt is I.\n",
        '{"1": {"7": 0.5}}\n',
        '{\n "1": {\n  "7": 2\n }\n}\n',
    ],
}


@pytest.mark.parametrize(("kind", "row"), [(kind, row) for kind, rows in OBJECTS.items() for row in rows])
def test_by_keys(tmp_path, kind, row):
    (tmp_path / "a.jsonl").write_text(json.dumps(row) + "\n")
    (tmp_path / "a.json").write_text(json.dumps([row], indent=1))
    assert kind_of(tmp_path / "a.jsonl") == kind_of(tmp_path / "a.json") == kind


@pytest.mark.parametrize(("kind", "text"), [(kind, text) for kind, texts in ROWS.items() for text in texts])
def test_by_columns(tmp_path, kind, text):
    (tmp_path / "a").write_text(text)
    assert kind_of(tmp_path / "a") == kind


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("queries.jsonl", '{"_id": "1", "text": "x"}', "queries"),
        ("corpus.jsonl", '{"_id": "1", "text": "x"}', "corpus"),
        ("topics.tsv", "1\tx\n", "queries"),
        ("collection.tsv", "1\tx\n", "corpus"),
        ("qrels.dev.tsv", "1\t2\t3\n", "qrels"),
        ("run.dev.small.tsv", "1\t2\t3\n", "run"),
    ],
)
def test_by_name_where_the_content_fits_two_kinds(tmp_path, name, text, kind):
    (tmp_path / name).write_text(text)
    assert kind_of(tmp_path / name) == kind


def test_folders(tmp_path):
    assert kind_of(tmp_path) == "corpus"
    (tmp_path / "queries.jsonl.gz").touch()
    assert kind_of(tmp_path) == "collection"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the file is empty"),
        ('{"_id": "1", "text": "x"}', r"fields _id, text fits more than one kind .* Set its kind: corpus, queries"),
        ("1\tx\n", r"a line like '1\\tx' fits more than one"),
        ('{"a": 1}', r"no known kind of data has these fields: a"),
    ],
)
def test_ambiguous_data_is_refused(tmp_path, text, message):
    (tmp_path / "a").write_text(text)
    with pytest.raises(DataError, match=message):
        kind_of(tmp_path / "a")
