"""Training examples in all formats, and errors."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from id_texts import id_texts
from retrievalkit.data import files
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.examples import Example, against_corpus, read_examples, write_examples
from retrievalkit.data.queries import hashed_id, read_queries
from retrievalkit.errors import DataError
from retrievalkit.training.examples import open_examples


def jsonl(tmp_path, rows, name="train.jsonl"):
    path = tmp_path / name
    files.write_jsonl(path, rows)
    return path


def passage(number, key="docid", **more):
    return {key: number, "title": f"T{number}", "text": f"text {number}", **more}


OURS = {"query_id": "q1", "query": "who", "positives": ["1", "2"], "negatives": ["3"], "answers": ["me"]}
PASSAGES = {number: Passage(number, f"T{number}", f"text {number}") for number in "123"}


ONE, TWO = hashed_id("text 1"), hashed_id("text 2")
HASHED = {ONE: Passage(ONE, "", "text 1"), TWO: Passage(TWO, "", "text 2")}
TEVATRON = {"positive_passages": [passage("1"), passage(2)], "negative_passages": [passage("3")]}
TEVATRON |= {"query_id": "q1", "query": "who", "answers": ["me"]}
TEVATRON_2 = {"query_id": 1, "query_text": "who", "query_image": None, "source": None}
TRIPLE = Example(hashed_id("who"), "who", (ONE,), (TWO,))


@pytest.mark.parametrize("name", ["train.jsonl", "train.jsonl.gz", "train.jsonl.zst"])
@pytest.mark.parametrize(
    ("row", "expected", "passages"),
    [
        ({**OURS, "teacher": {"1": 2}}, Example("q1", "who", ("1", "2"), ("3",), ("me",), {"1": 2.0}), {}),
        ({"query_id": 1, "query": "who", "positives": [5]}, Example("1", "who", ("5",)), {}),
        ({**TEVATRON_2, "positive_document_ids": ["1", 2]}, Example("1", "who", ("1", "2")), {}),
        (TEVATRON, Example("q1", "who", ("1", "2"), ("3",), ("me",)), PASSAGES),
        ({"anchor": "who", "positive": "text 1", "negative": "text 2"}, TRIPLE, HASHED),
        ({"query": "who", "pos": ["text 1"], "neg": ["text 2"]}, TRIPLE, HASHED),
        ({"question": "who", "positive": "text 1", "negative_1": "text 2"}, TRIPLE, HASHED),
        ({"query": "who", "positive": "text 1", "negatives": ["text 2"]}, TRIPLE, HASHED),
    ],
    ids=["ours", "ours, short", "tevatron 2", "tevatron", "triple", "lists", "numbered", "negatives"],
)
def test_forms(tmp_path, row, expected, passages, name):
    none = {**OURS, "query_id": "none", "positives": []}
    examples = read_examples(jsonl(tmp_path, [row, none], name))
    assert (examples.rows, examples.passages, examples.dropped) == ([expected], passages, 1)
    assert (list(examples), len(examples), examples.lines) == ([expected], 1, [1])


@pytest.mark.parametrize("anchor", ["query", "question", "anchor"])
@pytest.mark.parametrize("corpus", [None, Corpus.of(PASSAGES.values())])
def test_positives_are_ids_with_and_without_a_query_id(tmp_path, anchor, corpus):
    examples = read_examples(jsonl(tmp_path, [{anchor: "who", "positives": ["1"], "negatives": [3]}]), corpus=corpus)
    assert examples.rows == [Example(hashed_id("who"), "who", ("1",), ("3",))]
    assert examples.passages == {}


@pytest.mark.parametrize(
    "row",
    [
        {"anchor": "who", "positive": "1", "negative": "text 2"},
        {"query": "who", "pos": ["text 1"], "neg": ["text 2", "3"]},
        {"question": "who", "positive": "text 1", "negative_1": "2"},
        {"query_id": "q", "query": "who", "positive": "text 1", "negatives": ["1"]},
    ],
)
@pytest.mark.parametrize(
    "read",
    [
        lambda path, corpus: read_examples(path, corpus=corpus),
        lambda path, corpus: open_examples(path, corpus, "train"),
        lambda path, corpus: against_corpus(read_examples(path), corpus),
    ],
    ids=["read", "open", "against"],
)
def test_an_id_in_a_field_of_texts_is_refused(tmp_path, row, read):
    path = jsonl(tmp_path, [{"anchor": "what", "positive": "text 1"}, row])
    with pytest.raises(DataError, match=r"train\.jsonl:2: '[123]' is the id of a passage"):
        read(path, Corpus.of(PASSAGES.values()))


def test_dpr(tmp_path):
    rows = [
        {
            "dataset": "nq",
            "question": "who\u2019s",
            "answers": ["me", "you"],
            "positive_ctxs": [passage("1", "passage_id", score=1000, title_score=1), passage("2", "psg_id")],
            "negative_ctxs": [passage("9", "passage_id")],
            "hard_negative_ctxs": [passage("3", "passage_id", title_score="x")],
        },
        {"question": "no positive", "answers": [], "positive_ctxs": [], "hard_negative_ctxs": [passage("4")]},
        {
            "question": "no hard negative",
            "answers": ["x"],
            "positive_ctxs": [{"title": None, "text": "untitled", "passage_id": "5"}],
            "negative_ctxs": [passage("6", "passage_id")],
            "hard_negative_ctxs": [],
        },
        {"question": "no negative", "answers": ["x"], "positive_ctxs": [{"title": "T", "text": "no id"}]},
    ]
    (tmp_path / "train.json").write_text(json.dumps(rows))
    examples = read_examples(tmp_path / "train.json")
    hashed = hashed_id("T\nno id")
    assert examples.rows == [
        Example(hashed_id("who's"), "who's", ("1", "2"), ("3",), ("me", "you"), fields={"dataset": "nq"}),
        Example(hashed_id("no hard negative"), "no hard negative", ("5",), ("6",), ("x",)),
        Example(hashed_id("no negative"), "no negative", (hashed,), (), ("x",)),
    ]
    assert examples.dropped == 1
    assert examples.passages == {
        **PASSAGES,
        "5": Passage("5", "", "untitled"),
        "6": Passage("6", "T6", "text 6"),
        hashed: Passage(hashed, "T", "no id"),
    }


@pytest.mark.parametrize("named", [{}, {"query_id": "q1"}])
@pytest.mark.parametrize(
    "row",
    [
        {"query": "who", "positives": ["1"]},
        {"question": "who", "positives": ["1"]},
        {"anchor": "who", "positive": "text 1"},
        {"sentence1": "who", "pos": ["text 1"], "text": "other"},
    ],
)
def test_a_file_of_examples_is_also_a_file_of_queries_with_the_same_ids(tmp_path, row, named):
    path = jsonl(tmp_path, [named | row, named | row])
    (query,) = read_queries(path)
    assert [(example.query_id, example.query) for example in read_examples(path)] == [(query.id, query.text)] * 2
    assert query.id == named.get("query_id", hashed_id("who"))


def test_triples_in_a_table(tmp_path):
    (tmp_path / "t.tsv").write_text("anchor\tpositive\tnegative\nwho\ttext 1\ttext 2\nwho\ttext 2\ttext 1\n")
    assert read_examples(tmp_path / "t.tsv").rows == [TRIPLE, Example(TRIPLE.query_id, "who", (TWO,), (ONE,))]


Q2 = {"query_id": "q2", "query": "x"}


@pytest.fixture
def beir(tmp_path):
    files.write_jsonl(
        tmp_path / "queries.jsonl", ({"_id": name, "text": name * 2, "answers": [name]} for name in "abc")
    )
    (tmp_path / "qrels").mkdir()
    judged = "query-id\tcorpus-id\tscore\nc\t1\t1\na\t2\t0\nc\t3\t2\nb\t3\t1\n"
    (tmp_path / "qrels" / "train.tsv").write_text(judged)
    return tmp_path


def test_a_beir_folder(beir):
    """Documents judged above 0 are positives; a query without positives is dropped and counted."""
    examples = read_examples(beir)
    assert examples.rows == [Example("c", "cc", ("1", "3"), (), ("c",)), Example("b", "bb", ("3",), (), ("b",))]
    assert (examples.dropped, examples.lines) == (1, [2, 5])


def test_a_judged_query_without_text(beir):
    with (beir / "qrels" / "train.tsv").open("a") as stream:
        stream.write("d\t1\t1\n")
    with pytest.raises(DataError, match=r"train\.tsv:6: the judged query 'd' is not among the 3 queries"):
        read_examples(beir)


def test_ids_are_looked_up(tmp_path):
    path = jsonl(tmp_path, [{**OURS, "positives": ["1"]}, {**OURS, "query_id": "q2", "negatives": ["1", "33"]}])
    corpus = Corpus.of(PASSAGES.values())
    with pytest.raises(DataError, match=r"train\.jsonl:2: unknown document id '33'; did you mean '3'\?"):
        read_examples(path, corpus=corpus)
    known = Corpus.of([*PASSAGES.values(), Passage("33", "", "")])
    assert len(read_examples(path, corpus=known)) == 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"a": 1}, r"no known format of a training example has these fields: a\. Known formats: ours .*; DPR"),
        ({"_id": "1", "text": "who"}, r"no known format of a training example has these fields: _id, text"),
        ({"positives": ["1"], "query_id": "q2"}, r"missing: query; it has positives, query_id\. Known"),
        ({"query": "x", "positives": ["1"], "negative": "2"}, r"'positives' holds ids, but 'negative' a text"),
        ({"positive_passages": []}, r"missing: query_id, query; it has positive_passages"),
        ({"positive_ctxs": []}, r"missing: question; it has positive_ctxs"),
        ({**OURS, "query_id": "q2", "positives": "1"}, r"'positives' is '1', but should be a list"),
        ({**OURS, "query_id": "q2", "positives": [None]}, r"'positives' is null; an id is text or"),
        ({**OURS, "query_id": "q2", "query": None}, r"'query' is null, but should be text"),
        ({**OURS, "query": "other"}, r"the query id 'q1' is already used at line 1, for another query"),
        ({**Q2, "positive_passages": ["1"]}, r"'positive_passages' should hold passages"),
        ({**Q2, "positive_passages": [passage("1"), passage("1", text="x")]}, r".*'1' is used for another text"),
        ({**Q2, "positive_passages": [{"docid": "1"}]}, r"a passage in 'positive_passages' has no text; .* docid"),
    ],
)
def test_errors_name_line_and_problem(tmp_path, row, message):
    with pytest.raises(DataError, match=rf"train\.jsonl:2: {message}"):
        read_examples(jsonl(tmp_path, [OURS, row]))


@pytest.mark.parametrize(
    ("rows", "message"), [([{**OURS, "positives": []}], "1 example, but no positive"), ([], "the file is empty")]
)
def test_nothing_to_train_on(tmp_path, rows, message):
    with pytest.raises(DataError, match=message):
        read_examples(jsonl(tmp_path, rows))


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
ID = id_texts(5)
IDS = st.lists(ID, max_size=4).map(tuple)


@st.composite
def example(draw):
    positives, negatives = draw(st.lists(ID, min_size=1, max_size=4).map(tuple)), draw(IDS)
    number = st.floats(allow_nan=False, allow_infinity=False)
    scores = st.dictionaries(st.sampled_from([*positives, *negatives]), number, max_size=3)
    answers = st.lists(TEXT, max_size=2).map(tuple)
    fields = st.dictionaries(st.sampled_from(["task", "year"]), st.sampled_from(["qa", "nli"]) | st.integers(0, 3000))
    return Example(draw(ID), draw(TEXT), positives, negatives, draw(answers), draw(st.none() | scores), draw(fields))


EXAMPLES = st.lists(example(), min_size=1, unique_by=lambda row: row.query_id)


@given(examples=EXAMPLES)
def test_written_examples_are_read_back(tmp_path_factory, examples):
    path = tmp_path_factory.getbasetemp() / "all-e.jsonl"
    assert write_examples(path, examples) == len(examples)
    assert read_examples(path).rows == examples
