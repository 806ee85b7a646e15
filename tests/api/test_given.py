"""Data in memory: passages, queries, judgements and examples from Python objects."""

from __future__ import annotations

import pickle

import datasets
import numpy as np
import pandas
import pyarrow
import pytest

from retrievalkit.data import inputs as given
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.examples import Example, read_examples
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import Query, read_queries
from retrievalkit.errors import InputError

ROWS = [{"id": "a", "title": "A", "text": "first"}, {"id": "b", "title": None, "text": "second"}]
PASSAGES = [Passage("a", "A", "first"), Passage("b", "", "second")]


class Polars:
    """Table with only columns and Arrow's interface, like polars."""

    columns = ("id", "title", "text")

    def __init__(self, table):
        self._table = table

    def __arrow_c_stream__(self, schema=None):
        return self._table.__arrow_c_stream__(schema)


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        tuple(ROWS),
        PASSAGES,
        Corpus.of(PASSAGES),
        {"a": {"title": "A", "text": "first"}, "b": "second"},
        pandas.DataFrame(ROWS),
        pyarrow.table({name: [row[name] for row in ROWS] for name in ("id", "title", "text")}),
        Polars(pyarrow.table({name: [row[name] for row in ROWS] for name in ("id", "title", "text")})),
        datasets.Dataset.from_list(ROWS),
    ],
    ids=lambda data: type(data).__name__,
)
def test_passages_of_every_kind(data):
    corpus = open_corpus(given.passages(data))
    assert list(corpus) == PASSAGES
    assert list(corpus) == PASSAGES, "a second time"
    assert corpus.get("b") == PASSAGES[1]
    assert pickle.loads(pickle.dumps(corpus)).ids() == ["a", "b"]


@pytest.mark.parametrize(
    "data",
    [
        ["x", "y"],
        np.array(["x", "y"]),
        pandas.Series(["x", "y"]),
        (text for text in "xy"),
        [{"text": "x"}, {"text": "y"}],
        pandas.DataFrame({"text": ["x", "y"]}),
    ],
    ids=lambda data: type(data).__name__,
)
def test_texts_without_ids_are_numbered(data):
    assert [(one.id, one.text) for one in open_corpus(given.passages(data))] == [("0", "x"), ("1", "y")]


def test_addresses_stay_addresses(tiny_collection):
    """A path, a text, a source."""
    assert given.passages(tiny_collection.corpus) == str(tiny_collection.corpus)
    assert given.passages("pydoc:click") == "pydoc:click"


def test_queries_of_every_kind():
    asked = [Query("q", "who"), Query("r", "what")]
    for data in ({"q": "who", "r": "what"}, asked, pandas.DataFrame({"qid": ["q", "r"], "query": ["who", "what"]})):
        assert read_queries(given.queries(data)) == asked
    assert read_queries(given.queries(["who"])) == [Query("0", "who")]
    assert read_queries(given.queries([{"question": "who", "answers": ["me"]}]))[0].answers == ("me",)


def test_judgements_of_every_kind():
    judged = {"q": {"d": 2, "e": 1}}
    table = pandas.DataFrame({"query_id": ["q", "q"], "doc_id": ["d", "e"], "score": np.array([2, 1])})
    for data in (judged, table, table.to_dict("records")):
        assert read_qrels(given.judgements(data)) == judged
    assert read_qrels(given.judgements({"q": ["d", "e"]})) == {"q": {"d": 1, "e": 1}}


def test_examples_of_every_kind():
    example = Example("q", "who", ("a",), ("b",))
    row = {"query_id": "q", "query": "who", "positives": ["a"], "negatives": ["b"]}
    for data in ([example], [row], pandas.DataFrame([row]), datasets.Dataset.from_list([row])):
        assert read_examples(given.examples(data)).rows == [example]
    triple = read_examples(given.examples([{"anchor": "who", "positive": "me", "negative": "you"}]))
    assert len(triple.passages) == 2


@pytest.mark.parametrize(
    ("read", "kind", "data", "message"),
    [
        *(
            (open_corpus, given.passages, data, message)
            for data, message in [
                (5, "cannot read passages from int, which is not a supported type. Give the address"),
                ([5], "row 1 of the passages: the row is 5, but should be a text or a dict."),
                ([{"id": "a", "text": 3}], "row 1 of the passages: 'text' is 3, but should be text."),
                (
                    [{"id": "a"}],
                    "row 1 of the passages: the passage has no text (text, contents, content, body, passage).",
                ),
                ([ROWS[0], ROWS[0]], "row 2 of the passages: the id 'a' is already used at row 1."),
                ([], "the passages: the corpus is empty"),
                ("where is Rome", "Pass texts in a list"),
                (datasets.DatasetDict({"train": datasets.Dataset.from_list(ROWS)}), "Choose a split: data['train']"),
                (pandas.DataFrame({"text": ["a", 3]}), "the table of passages cannot be read"),
            ]
        ),
        (read_qrels, given.judgements, {"q": "d"}, "the judgements of query 'q' are 'd'"),
        (read_qrels, given.judgements, {"q": {"d": 0.5}}, "row 1 of the judgements: the grade is 0.5"),
        (read_examples, given.examples, ["x"], "row 1 of the examples: the row is 'x', but should be a dict"),
    ],
)
def test_invalid_data_is_reported(read, kind, data, message):
    """With the number of the row, if there is one."""
    with pytest.raises(InputError) as raised:
        list(read(kind(data)))
    assert message in str(raised.value)
