"""An index in LangChain and in Haystack: the hits of `index.search` as their documents."""

from __future__ import annotations

import asyncio
import importlib
import os
import subprocess
import sys

import pytest

import retrievalkit as rk
from retrievalkit.errors import InputError

# Before it is imported: a test tells nobody anything.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

PASSAGES = [
    {"id": "a", "title": "Rivers", "text": "The river runs from the mountains to the sea."},
    {"id": "b", "title": "Engines", "text": "An engine burns fuel, and drives a wheel."},
    {"id": "c", "title": "", "text": "A wheel at the river drives the mill."},
]
PACKAGES = {"langchain": "langchain_core", "haystack": "haystack"}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """The folder of an index of words."""
    return rk.Index.build(PASSAGES, output=tmp_path_factory.mktemp("adapters") / "words").folder


@pytest.fixture(scope="module")
def dense(tmp_path_factory, tiny_model):
    """The folder of an index of vectors."""
    return rk.Index.build(PASSAGES, tiny_model, tmp_path_factory.mktemp("adapters") / "dense", pooler="mean").folder


def adapter(toolkit):
    pytest.importorskip(PACKAGES[toolkit])
    return importlib.import_module(f"retrievalkit_adapters.{toolkit}").IndexRetriever


@pytest.fixture(params=PACKAGES)
def found(request):
    """Searches by the adapter of a toolkit: (id, text, score, metadata) of each document."""
    retriever = adapter(request.param)

    def search(index, query, **options):
        if request.param == "haystack":
            documents = retriever(index=index, **options).run(query)["documents"]
            return [(document.id, document.content, document.score, document.meta) for document in documents]
        if "top_k" in options:
            options["k"] = options.pop("top_k")
        documents = retriever(index=index, **options).invoke(query)
        return [
            (document.id, document.page_content, document.metadata["score"], document.metadata)
            for document in documents
        ]

    return search


def test_documents_are_the_hits(found, words, dense):
    """Of one index, also as a list of one, and of several, which are fused by reciprocal ranks."""
    fused = rk.Hybrid([words, dense], fusion="rrf")
    for index, same in ((words, rk.Index.open(words)), ([words], rk.Index.open(words)), ([words, dense], fused)):
        hits = same.search("river mill", k=2)
        documents = found(index, "river mill", top_k=2)
        assert [one[:3] for one in documents] == [(hit.id, hit.text, hit.score) for hit in hits]
        assert [(one[3]["title"], one[3]["rank"]) for one in documents] == [(hit.title, hit.rank) for hit in hits]
    assert "why" not in documents[0][3]
    assert "mill" in found(words, "mill", explain=True)[0][3]["why"][0]


def test_mistakes_are_our_errors(found, tmp_path, words):
    for index, message in ((tmp_path / "nowhere", "is not a folder"), ([], "0 index"), (5, "the index is 5")):
        with pytest.raises(InputError, match=message):
            found(index, "river")
    with pytest.raises(InputError, match="empty"):
        found(words, "")


def test_langchain_takes_options_of_a_call_and_refuses_others(words):
    retriever = adapter("langchain")(index=rk.Index.open(words))
    assert len(retriever.invoke("river wheel")) == 3
    assert len(retriever.invoke("river wheel", k=1)) == 1
    assert len(retriever.batch(["river", "engine"])[1]) == 1
    assert asyncio.run(retriever.ainvoke("engine"))[0].id == "b"
    for options in ({"top_k": 3}, {"k": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            adapter("langchain")(index=words, **options)


@pytest.mark.parametrize("several", [False, True])
def test_a_haystack_pipeline_that_was_saved_finds_the_same(words, dense, several):
    """The folders and options are in it; the indexes are opened when it is loaded."""
    retriever = adapter("haystack")
    from haystack import Pipeline

    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever(index=[words, dense] if several else words, top_k=2))
    pipeline.warm_up()
    asked = {"retriever": {"query": "river mill"}}
    # Haystack loads no other classes than those of modules that the user names.
    again = Pipeline.loads(pipeline.dumps(), allowed_modules=["retrievalkit_adapters.haystack"])
    assert again.run(asked) == pipeline.run(asked)
    assert len(again.run({"retriever": {"query": "river wheel", "top_k": 1}})["retriever"]["documents"]) == 1
    with pytest.raises(InputError, match="an open index, which cannot be saved"):
        retriever(index=rk.Index.open(words)).to_dict()


@pytest.mark.parametrize(("toolkit", "package"), PACKAGES.items())
def test_a_toolkit_that_is_not_installed_is_named(toolkit, package):
    program = f"import sys; sys.modules['{package}'] = None; import retrievalkit_adapters.{toolkit}"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"pip install 'retrievalkit[{toolkit}]'" in ended.stderr
