"""Queries in all formats, and errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from id_texts import id_texts
from retrievalkit.data import files, inputs
from retrievalkit.data.queries import Query, hashed_id, read_queries, write_queries
from retrievalkit.errors import DataError


def jsonl(tmp_path, rows, name="queries.jsonl"):
    path = tmp_path / name
    files.write_jsonl(path, rows)
    return path


@pytest.mark.parametrize(
    "row",
    [
        {"_id": "7", "text": "who?", "answers": ["me", "you"]},
        {"_id": 7, "text": "who?", "answers": ["me", "you"], "metadata": {}},
        {"query_id": "7", "query": "who?", "answers": ["me", "you"]},
        {"query_id": 7, "query_text": "who?", "query_image": None, "answers": ["me", "you"]},
        {"query_id": "7", "query": "who?", "positives": ["1"], "negatives": [], "answers": ["me", "you"]},
        {"qid": "7", "question": "who?", "answers": ["me", "you"]},
        {"id": "7", "text": "who?", "answers": ["me", "you"]},
    ],
)
@pytest.mark.parametrize("name", ["q.jsonl", "q.jsonl.gz"])
def test_json_lines(tmp_path, row, name):
    assert read_queries(jsonl(tmp_path, [row], name)) == [Query("7", "who?", ("me", "you"))]


@pytest.mark.parametrize("row", [
    {"_id": "7", "text": "who?", "task": "qa", "metadata": {"year": 2020}},
    {"query_id": "7", "query": "who?", "task": "qa", "year": 2020, "positives": ["1"], "teacher": [1.0]},
    {"_id": "7", "query": "who?", "task": "qa", "year": 2020, "positive": "one", "negative_1": "two", "answers": []},
])  # fmt: skip
def test_other_fields_are_metadata(tmp_path, row):
    """Like those of passages, they are written as BEIR's metadata."""
    (query,) = read_queries(jsonl(tmp_path, [row]))
    assert query.fields == {"task": "qa", "year": 2020}
    write_queries(tmp_path / "written.jsonl", [query])
    assert read_queries(tmp_path / "written.jsonl") == [query]
    assert read_queries(inputs.queries([query])) == [query]


def test_a_table(tmp_path):
    (tmp_path / "q.tsv").write_text('1\twho "am I\n2\twhat\n')
    assert read_queries(tmp_path / "q.tsv") == [Query("1", 'who "am I'), Query("2", "what")]


def test_dpr(tmp_path):
    """Answers are a Python list, ids are hashes of the question, and right quotation marks become apostrophes."""
    path = tmp_path / "nq-test.qa.csv"
    path.write_text(
        "who\u2019s on first\t['Who', \"it's\"]\n"
        '"when was ""x"" made"\t"[\'May 18 , 2018\', ""a \'quoted\' one""]"\n'
        "who's on first\t['again']\n"
    )
    first, second, third = read_queries(path)
    assert first == Query(hashed_id("who's on first"), "who's on first", ("Who", "it's"))
    assert (second.text, second.answers) == ('when was "x" made', ("May 18 , 2018", "a 'quoted' one"))
    assert third == Query(f"{first.id}-2", "who's on first", ("again",))


def test_dpr_answers_are_never_executed(tmp_path):
    path = tmp_path / "q.csv"
    path.write_text("fine\t['a']\nbad\t[__import__('os').getcwd()]\n")
    with pytest.raises(DataError, match=r"q\.csv:2: the answers are not a list of texts: .*Write them as"):
        read_queries(path)


def test_a_beir_folder(tmp_path):
    jsonl(tmp_path, [{"_id": name, "text": name * 2} for name in "abc"], "queries.jsonl.gz")
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nc\t1\t1\na\t1\t0\n")
    assert [query.id for query in read_queries(tmp_path)] == ["a", "b", "c"]
    assert [query.id for query in read_queries(tmp_path, "test")] == ["a", "c"]
    with pytest.raises(DataError, match=r"split 'dev' .*It has test\."):
        read_queries(tmp_path, "dev")


def test_examples_may_repeat_a_query(tmp_path):
    rows = [{"query_id": "1", "query": "who", "positives": [document], "negatives": []} for document in "ab"]
    assert read_queries(jsonl(tmp_path, rows)) == [Query("1", "who")]
    rows[1]["query"] = "what"
    for rows_of_one_id in (rows, [{"_id": "1", "text": "who"}] * 2):
        with pytest.raises(DataError, match=r"queries\.jsonl:2: the id '1' is already used at line 1"):
            read_queries(jsonl(tmp_path, rows_of_one_id))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
ID = id_texts(8)
QUERIES = st.lists(
    st.builds(Query, ID, TEXT, st.lists(TEXT, max_size=3).map(tuple)), min_size=1, unique_by=lambda query: query.id
)


@given(queries=QUERIES)
def test_written_queries_are_read_back(tmp_path_factory, queries):
    path = tmp_path_factory.getbasetemp() / "all-q.jsonl"
    assert write_queries(path, queries) == len(queries)
    assert read_queries(path) == queries
