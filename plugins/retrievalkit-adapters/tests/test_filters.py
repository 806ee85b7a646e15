"""A toolkit's filter selects the same documents in an index as in the toolkit."""

from __future__ import annotations

import os
from datetime import UTC, date, datetime, time

import pytest
from hypothesis import given
from hypothesis import strategies as st

import retrievalkit as rk
from retrievalkit.errors import InputError

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

FIELDS = {
    "a": {"year": 2019, "source": "faq", "draft": True},
    "b": {"year": 2020, "source": 'the "old" blog', "score of": 1.5, "tags": ["red", "green"]},
    "c": {"year": 2021, "draft": False, "score of": -2.0, "tags": ["green"], "at": time(9, 30)},
    "d": {"source": "back\\slash (and more)", "day": date(2020, 5, 1)},
}
YEARS, SOURCES = st.integers(2018, 2022), st.sampled_from(["faq", 'the "old" blog', "back\\slash (and more)", "x = 1"])


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    passages = [{"id": name, "text": "river", **fields} for name, fields in FIELDS.items()]
    return rk.Index.build(passages, output=tmp_path_factory.mktemp("filters") / "index")


def ids(documents):
    return sorted(document.id for document in documents)


def comparisons(field, operator, value, lists):
    """Comparisons with numbers and strings, in a toolkit's format."""
    ordered, plain, several = map(st.sampled_from, ([">", ">=", "<", "<="], ["==", "!="], lists))
    return st.one_of(
        st.fixed_dictionaries({field: st.just("year"), operator: ordered | plain, value: YEARS}),
        st.fixed_dictionaries({field: st.just("year"), operator: several, value: st.lists(YEARS, min_size=1)}),
        st.fixed_dictionaries({field: st.just("source"), operator: plain, value: SOURCES}),
        st.fixed_dictionaries({field: st.just("source"), operator: several, value: st.lists(SOURCES, min_size=1)}),
        st.fixed_dictionaries({field: st.just("score of"), operator: ordered, value: st.floats(-3, 3)}),
    )


HAYSTACK = st.recursive(
    comparisons("field", "operator", "value", ["in", "not in"]),
    lambda inner: st.fixed_dictionaries(
        {"operator": st.sampled_from(["AND", "OR", "NOT"]), "conditions": st.lists(inner, min_size=1, max_size=3)}
    ),
    max_leaves=5,
)


@given(filters=HAYSTACK)
def test_haystack(index, filters):
    pytest.importorskip("haystack")
    from haystack import Document
    from haystack.utils.filters import document_matches_filter
    from retrievalkit_adapters.haystack import IndexRetriever

    documents = [Document(id=name, meta=fields) for name, fields in FIELDS.items()]
    expected = [document.id for document in documents if document_matches_filter(filters, document)]
    assert ids(IndexRetriever(index).run("river", filters)["documents"]) == expected


@given(
    filters=st.lists(
        comparisons("key", "operator", "value", ["in", "nin"])
        | st.fixed_dictionaries(
            {
                "key": st.just("tags"),
                "operator": st.sampled_from(["any", "all"]),
                "value": st.lists(st.sampled_from(["red", "green", "blue"]), min_size=1),
            }
        )
        | st.fixed_dictionaries(
            {"key": st.just("tags"), "operator": st.just("contains"), "value": st.sampled_from(["red", "green"])}
        ),
        max_size=3,
    ),
    condition=st.sampled_from(["and", "or", "not"]),
)
def test_llamaindex(index, filters, condition):
    pytest.importorskip("llama_index.core")
    from llama_index.core.vector_stores import MetadataFilters
    from llama_index.core.vector_stores.utils import build_metadata_filter_fn
    from retrievalkit_adapters.llamaindex import IndexRetriever

    filters = MetadataFilters.model_validate({"filters": filters, "condition": condition})
    passes = build_metadata_filter_fn(FIELDS.__getitem__, filters)
    nodes = IndexRetriever(index, filters=filters).retrieve("river")
    assert sorted(node.node.node_id for node in nodes) == list(filter(passes, FIELDS))


def test_langchain(index):
    """Dicts as in MongoDB and most vector stores, LangChain's structured queries, and filters of `index.search`."""
    pytest.importorskip("langchain_core")
    from langchain_core.structured_query import Comparator, Comparison, Operation, Operator, StructuredQuery
    from retrievalkit_adapters.langchain import IndexRetriever

    late = Comparison(Comparator.GTE, "year", 2020)
    faq = Comparison(Comparator.EQ, "source", "faq")
    either = Operation(Operator.OR, [late, faq])
    for filter, expected in (
        (None, "abcd"),
        ({}, "abcd"),
        ("year > 2019", "bc"),
        ({"year": 2019}, "a"),
        ({"year": {"$gt": 2018, "$lt": 2021}, "source": "faq"}, "a"),
        ({"source": {"$ne": "faq"}}, "bcd"),
        ({"source": {"$nin": ["faq"]}}, "bcd"),
        ({"source": {"$in": ["faq", "back\\slash (and more)"]}}, "ad"),
        ({"year": {"$not": {"$gt": 2019}}}, "ad"),
        ({"$or": [{"draft": True}, {"tags": "red"}]}, "ab"),
        ({"$nor": [{"draft": True}, {"tags": "red"}]}, "cd"),
        ({"$not": {"draft": True, "year": 2019}}, "bcd"),
        ({"tags": {"$all": ["red", "green"]}}, "b"),
        ({"day": {"$gte": date(2020, 1, 1)}}, "d"),
        ({"day": {"$lte": datetime(2020, 5, 1, tzinfo=UTC)}}, "d"),
        ({"at": {"$in": [time(9, 30)]}}, "c"),
        (late, "bc"),
        (either, "abc"),
        (Operation(Operator.NOT, [either]), "d"),
        (StructuredQuery("river", Operation(Operator.AND, [either, late])), "bc"),
        (StructuredQuery("river", None), "abcd"),
    ):
        assert ids(IndexRetriever(index=index, filter=filter).invoke("river")) == list(expected), filter
        assert ids(IndexRetriever(index=index).invoke("river", filter=filter)) == list(expected), filter


REFUSED = {
    "langchain": [
        {"year": {"$regex": "20.*"}},
        {"year": None},
        {"year": {"$in": []}},
        {"$and": []},
        {"$not": {}},
        {"year": [2020]},
        {"year": float("nan")},
        {"yeer": 2020},
        ["year"],
    ],
    "haystack": [
        {"field": "meta.year", "operator": "like", "value": 2020},
        {"field": "meta.year", "operator": "in", "value": 2020},
        {"operator": "XOR", "conditions": [{"field": "year", "operator": "==", "value": 1}]},
        {"operator": "AND", "conditions": [{}]},
        {"year": 2020},
    ],
    "llama_index": [
        {"key": "source", "operator": "text_match", "value": "faq"},
        {"key": "source", "operator": "is_empty", "value": None},
        {"filters": []},
    ],
}


@pytest.mark.parametrize(
    ("toolkit", "filters"), [(name, filters) for name, several in REFUSED.items() for filters in several]
)
def test_filters_without_translation_are_refused(index, toolkit, filters):
    """The adapters never drop a part of a filter."""
    with pytest.raises(InputError, match="filter"):
        if toolkit == "langchain":
            pytest.importorskip("langchain_core")
            from retrievalkit_adapters.langchain import IndexRetriever

            IndexRetriever(index=index).invoke("river", filter=filters)
        elif toolkit == "haystack":
            pytest.importorskip("haystack")
            from retrievalkit_adapters.haystack import IndexRetriever

            IndexRetriever(index).run("river", filters)
        else:
            pytest.importorskip("llama_index.core")
            from llama_index.core.vector_stores import MetadataFilters
            from retrievalkit_adapters.llamaindex import IndexRetriever

            IndexRetriever(index, filters=MetadataFilters.model_validate({"filters": [filters]}))


def test_documents_and_filters_have_the_same_names_and_form(tmp_path):
    """A field that is named as the title keeps its name; queries and filters get the form of the texts."""
    langchain = pytest.importorskip("retrievalkit_adapters.langchain", exc_type=ImportError)
    rows = [
        {"_id": name, "title": "Install", "text": f"{name} caf\u00e9", "text_form": "nfc-plain", "metadata": fields}
        for name, fields in (("a", {"title": "Own"}), ("b", {}))
    ]
    retriever = langchain.IndexRetriever(index=rk.Index.build(rows, output=tmp_path / "index"))
    documents = {document.id: document.metadata for document in retriever.invoke("cafe\u0301")}
    assert documents == {"a": {"title": "Own", "_title": "Install", "id": "a"}, "b": {"title": "Install", "id": "b"}}
    assert ids(retriever.invoke("cafe\u0301", filter={"_title": {"$eq": "Install"}})) == ["a", "b"]
    assert ids(retriever.invoke("\uff43af\u00e9", filter={"id": {"$in": ["b", "c"]}})) == ["b"]
