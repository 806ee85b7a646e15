"""An index in LangChain: the hits of `index.search` as its documents."""

from __future__ import annotations

import asyncio

import pytest

import retrievalkit as rk
from retrievalkit.errors import InputError

pytest.importorskip("langchain_core")

from retrievalkit_adapters.langchain import IndexRetriever


def test_documents_are_the_hits(words):
    """With what they are called, in the order of the scores."""
    hits = rk.Index.open(words).search("river mill", k=2)
    found = IndexRetriever(index=words, k=2).invoke("river mill")
    assert [(one.id, one.page_content, one.metadata["title"]) for one in found] == [
        (hit.id, hit.text, hit.title) for hit in hits
    ]
    assert [one.metadata["score"] for one in found] == [hit.score for hit in hits]
    assert "why" not in found[0].metadata


def test_it_works_in_a_chain_and_takes_options_of_a_call(words):
    from langchain_core.runnables import RunnableLambda

    chain = IndexRetriever(index=rk.Index.open(words), explain=True) | RunnableLambda(lambda found: found[0])
    assert "mill" in chain.invoke("mill").metadata["why"][0]
    retriever = IndexRetriever(index=str(words))
    assert len(retriever.invoke("river wheel")) == 3
    assert len(retriever.invoke("river wheel", k=1)) == 1
    assert len(retriever.batch(["river", "engine"])[1]) == 1
    assert asyncio.run(retriever.ainvoke("engine"))[0].id == "b"


def test_several_indexes_are_fused(words, dense):
    fused = rk.Hybrid([words, dense], fusion="rrf").search("river mill", k=3)
    assert [one.id for one in IndexRetriever(index=[words, dense]).invoke("river mill")] == [hit.id for hit in fused]


def test_a_list_of_one_index_is_that_index(words):
    alone = IndexRetriever(index=words).invoke("river mill")
    assert IndexRetriever(index=[words]).invoke("river mill") == alone
    with pytest.raises(InputError, match="0 index"):
        IndexRetriever(index=[])


def test_mistakes_are_our_errors(words, tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        IndexRetriever(index=tmp_path / "nowhere")
    with pytest.raises(InputError, match="the index is 5"):
        IndexRetriever(index=5)
    with pytest.raises(InputError, match="empty"):
        IndexRetriever(index=words).invoke("")
    with pytest.raises(ValueError, match="top_k"):
        IndexRetriever(index=words, top_k=3)
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        IndexRetriever(index=words, k=0)
