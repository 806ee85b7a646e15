"""An index in Haystack: the hits of `index.search` as its documents, in a pipeline that can be saved."""

from __future__ import annotations

import pytest

import retrievalkit as rk
from retrievalkit.errors import InputError

pytest.importorskip("haystack")

from haystack import Pipeline
from retrievalkit_adapters.haystack import IndexRetriever


def test_documents_are_the_hits(words):
    hits = rk.Index.open(words).search("river mill", k=2)
    found = IndexRetriever(index=words, top_k=2).run("river mill")["documents"]
    assert [(one.id, one.content, one.meta["title"], one.score) for one in found] == [
        (hit.id, hit.text, hit.title, hit.score) for hit in hits
    ]
    assert len(IndexRetriever(index=words).run("river wheel", top_k=1)["documents"]) == 1
    assert "mill" in IndexRetriever(index=words, explain=True).run("mill")["documents"][0].meta["why"][0]


def test_a_pipeline_that_was_saved_finds_the_same(words, dense):
    """The folders and options are in it; the indexes are opened when it is loaded."""
    pipeline = Pipeline()
    pipeline.add_component("retriever", IndexRetriever(index=[words, dense], top_k=2))
    pipeline.warm_up()
    asked = {"retriever": {"query": "river mill"}}
    found = pipeline.run(asked)["retriever"]["documents"]
    assert [one.id for one in found] == [
        hit.id for hit in rk.Hybrid([words, dense], fusion="rrf").search("river mill", k=2)
    ]
    # Haystack loads no other classes than those of modules that the user names.
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["retrievalkit_adapters.haystack"])
    assert again.run(asked)["retriever"]["documents"] == found


def test_a_list_of_one_index_is_that_index(words):
    retriever = IndexRetriever(index=[words])
    assert retriever.run("river mill") == IndexRetriever(index=words).run("river mill")
    assert IndexRetriever.from_dict(retriever.to_dict()).places == [str(words)]


def test_mistakes_are_our_errors(words, tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        IndexRetriever(index=tmp_path / "nowhere")
    with pytest.raises(InputError, match="an open index, which cannot be saved"):
        IndexRetriever(index=rk.Index.open(words)).to_dict()
