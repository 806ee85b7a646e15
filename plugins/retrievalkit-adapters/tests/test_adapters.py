"""An index in LangChain, LlamaIndex and Haystack: the hits of `index.search` as their documents."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest

import retrievalkit as rk
from retrievalkit.errors import InputError

# Set before the import of Haystack, so that tests send no telemetry.
os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

PASSAGES = [
    {"id": "a", "title": "Rivers", "text": "The river runs from the mountains to the sea.", "year": 2019},
    {"id": "b", "title": "Engines", "text": "An engine burns fuel, and drives a wheel.", "year": 2021},
    {"id": "c", "title": "", "text": "A wheel at the river drives the mill.", "year": 2021, "kind": "old mill"},
]
PACKAGES = {"langchain": "langchain_core", "haystack": "haystack", "llamaindex": "llama_index.core"}
LIMITS = {"langchain": "k", "haystack": "top_k", "llamaindex": "similarity_top_k"}
# A filter in each toolkit's format, for LlamaIndex as the fields of its class.
FILTERS = {
    "langchain": {"year": {"$gte": 2020}},
    "haystack": {"field": "meta.year", "operator": ">=", "value": 2020},
    "llamaindex": {"filters": [{"key": "year", "operator": ">=", "value": 2020}]},
}
ALL_TOOLKITS = {"mteb": "mteb", "pyterrier": "pyterrier", **PACKAGES}


@pytest.fixture(scope="module")
def words(tmp_path_factory):
    """The folder of a BM25 index."""
    return rk.Index.build(PASSAGES, output=tmp_path_factory.mktemp("adapters") / "words").folder


@pytest.fixture(scope="module")
def dense(tmp_path_factory, tiny_model):
    """The folder of an index of vectors."""
    return rk.Index.build(PASSAGES, tiny_model, tmp_path_factory.mktemp("adapters") / "dense", pooler="mean").folder


def adapter(toolkit):
    pytest.importorskip(PACKAGES[toolkit])
    return importlib.import_module(f"retrievalkit_adapters.{toolkit}").IndexRetriever


@pytest.fixture(params=PACKAGES)
def toolkit(request):
    pytest.importorskip(PACKAGES[request.param])
    return request.param


def search(toolkit, index, query, *, wait=False, limit=10, **options):
    """Search with the adapter of a toolkit; returns (id, text, score, metadata) of each document."""
    retriever = adapter(toolkit)(index=index, **{LIMITS[toolkit]: limit}, **options)
    if toolkit == "haystack":
        result = asyncio.run(retriever.run_async(query)) if wait else retriever.run(query)
        return [(document.id, document.content, document.score, document.meta) for document in result["documents"]]
    if toolkit == "llamaindex":
        nodes = asyncio.run(retriever.aretrieve(query)) if wait else retriever.retrieve(query)
        return [(node.node.node_id, node.node.text, node.score, node.node.metadata) for node in nodes]
    if wait:
        documents = [(document, None) for document in asyncio.run(retriever.ainvoke(query))]
        assert [document for document, _ in documents] == retriever.invoke(query)
    documents = retriever.similarity_search_with_score(query)
    return [(document.id, document.page_content, score, document.metadata) for document, score in documents]


@pytest.mark.parametrize("wait", [False, True])
def test_documents_equal_the_hits(toolkit, words, dense, wait):
    """Of a single index, alone and in a list, and of two indexes, fused by reciprocal rank fusion."""
    fused = rk.Hybrid([words, dense], fusion="rrf")
    for index, same in ((words, rk.Index.open(words)), ([words], rk.Index.open(words)), ([words, dense], fused)):
        hits = same.search("river mill", k=2)
        documents = search(toolkit, index, "river mill", limit=2, wait=wait)
        assert [document[:3] for document in documents] == [(hit.id, hit.text, hit.score) for hit in hits]
        for (*_, metadata), hit in zip(documents, hits, strict=True):
            assert metadata == {"title": hit.title, "id": hit.id, **hit.fields}
    *_, metadata = search(toolkit, words, "mill", explain=True, wait=wait)[0]
    assert "mill" in metadata["why"][0]
    assert (metadata["rank"], metadata["score"]) == (1, rk.Index.open(words).search("mill")[0].score)


@pytest.mark.parametrize("blank", ["", " \n"])
@pytest.mark.parametrize("wait", [False, True])
def test_a_blank_query_has_no_documents_and_a_note(toolkit, words, dense, blank, wait, capsys):
    for index in (words, dense, [words, dense]):
        assert search(toolkit, index, blank, wait=wait) == []
    assert "queries is blank" in capsys.readouterr().err


def test_a_blank_query_does_not_end_a_batch(words):
    retriever = adapter("langchain")(index=words)
    for results in (retriever.batch(["river", "", "mill"]), asyncio.run(retriever.abatch(["river", "", "mill"]))):
        assert [len(documents) for documents in results] == [2, 0, 1]


def test_langchain_documents_of_several_queries_are_equal(words, dense):
    """MultiQueryRetriever drops documents that equal others, EnsembleRetriever those with the same id."""
    retrievers = [adapter("langchain")(index=index) for index in (words, dense)]
    documents = [
        document
        for retriever in retrievers
        for text in ("river wheel", "the mill", "river")
        for document in retriever.invoke(text)
    ]
    unique = [document for place, document in enumerate(documents) if document not in documents[:place]]
    assert sorted(document.metadata["id"] for document in unique) == ["a", "b", "c"]


@pytest.mark.parametrize("mode", ["simple", "reciprocal_rerank", "relative_score"])
def test_llamaindex_fusion_has_each_node_once(words, dense, mode):
    """It drops nodes with equal text and metadata."""
    retrievers = [adapter("llamaindex")(index) for index in (words, dense)]
    from llama_index.core.llms import MockLLM
    from llama_index.core.retrievers import QueryFusionRetriever

    fused = QueryFusionRetriever(
        retrievers, llm=MockLLM(), mode=mode, num_queries=1, similarity_top_k=9, use_async=False
    )
    assert sorted(node.node.node_id for node in fused.retrieve("river wheel")) == ["a", "b", "c"]


@pytest.mark.parametrize("mode", ["concatenate", "merge", "reciprocal_rank_fusion"])
def test_haystack_joins_have_each_document_once(words, dense, mode):
    lists = [adapter("haystack")(index=index).run("river wheel")["documents"] for index in (words, dense)]
    from haystack.components.joiners import DocumentJoiner

    documents = DocumentJoiner(join_mode=mode).run(lists)["documents"]
    assert sorted(document.id for document in documents) == ["a", "b", "c"]


@pytest.mark.parametrize("wait", [False, True])
def test_llamaindex_embeddings_and_their_strings_replace_the_text(words, dense, tiny_model, wait, capsys):
    """As HyDE sets them: the mean of the strings' vectors. An index of words is searched by the text, with a note."""
    from llama_index.core.schema import QueryBundle

    def ids(index, bundle):
        retriever = adapter("llamaindex")(index)
        nodes = asyncio.run(retriever.aretrieve(bundle)) if wait else retriever.retrieve(bundle)
        return [(node.node.node_id, pytest.approx(node.score, abs=1e-4)) for node in nodes]

    strings = ["An engine burns fuel.", "the sea and the mountains"]
    vectors = np.asarray(rk.Retriever.load(tiny_model, pooler="mean", precision="fp32").encode_queries(strings))
    expected = [(hit.id, hit.score) for hit in rk.Index.open(dense).search(vectors.mean(0))]
    assert ids(dense, QueryBundle("river", custom_embedding_strs=[*strings, " "])) == expected
    assert ids(dense, QueryBundle("river", embedding=vectors.mean(0).tolist())) == expected
    assert ids(dense, QueryBundle("river", custom_embedding_strs=["river"])) == ids(dense, QueryBundle("river"))
    assert capsys.readouterr().err == ""
    for index in (words, [words, dense]):
        for options in ({"custom_embedding_strs": strings}, {"embedding": vectors[0].tolist()}):
            assert ids(index, QueryBundle("river", **options)) == ids(index, QueryBundle("river"))
            assert f"is searched by the query's text: {next(iter(options))} needs" in capsys.readouterr().err


@pytest.mark.parametrize("wait", [False, True])
def test_a_filter_keeps_matching_documents(toolkit, words, wait):
    name, value = "filters", FILTERS[toolkit]
    if toolkit == "langchain":
        name = "filter"
    elif toolkit == "llamaindex":
        from llama_index.core.vector_stores import MetadataFilters

        value = MetadataFilters.model_validate(value)
    hits = search(toolkit, words, "river wheel", wait=wait, **{name: value})
    assert sorted(hit[0] for hit in hits) == ["b", "c"]
    assert {hit[3]["year"] for hit in hits} == {2021}


def test_mistakes_raise_errors_of_retrievalkit(toolkit, tmp_path):
    for index, message in ((tmp_path / "nowhere", "does not exist"), ([], "not 0"), (5, "the index is 5")):
        with pytest.raises(InputError, match=message):
            search(toolkit, index, "river")


def test_langchain_options_of_a_call_override_those_of_the_retriever(words):
    retriever = adapter("langchain")(index=rk.Index.open(words), filter="year = 2021")
    assert len(retriever.invoke("river wheel")) == 2
    assert len(retriever.invoke("river wheel", k=1)) == 1
    assert [document.id for document in retriever.invoke("river wheel", filter={"year": 2019})] == ["a"]
    assert len(retriever.batch(["river", "engine"])[1]) == 1
    for options in ({"top_k": 3}, {"k": 0}):
        with pytest.raises(ValueError, match=next(iter(options))):
            adapter("langchain")(index=words, **options)


def test_langchains_standard_tests(words, tmp_path):
    """LangChain's tests of retrievers, in a subprocess, because their pytest plugins would affect other tests."""
    pytest.importorskip("langchain_core")
    if importlib.util.find_spec("langchain_tests") is None:
        pytest.skip("langchain-tests is not installed")
    (tmp_path / "test_standard.py").write_text(
        "from langchain_tests.integration_tests import RetrieversIntegrationTests\n"
        "from retrievalkit_adapters.langchain import IndexRetriever\n\n"
        "class TestStandard(RetrieversIntegrationTests):\n"
        "    retriever_constructor = IndexRetriever\n"
        f"    retriever_constructor_params = {{'index': {str(words)!r}}}\n"
        "    retriever_query_example = 'river wheel'\n"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-o", "asyncio_mode=auto", "--rootdir", tmp_path, tmp_path]
    environment = {name: value for name, value in os.environ.items() if name != "PYTEST_DISABLE_PLUGIN_AUTOLOAD"}
    process = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert process.returncode == 0, process.stdout
    assert "skipped" not in process.stdout


def test_a_llamaindex_query_engine_reads_titles_and_fields_but_not_ranks(words):
    """The prompt has the text, title and fields of each node."""
    retriever = adapter("llamaindex")(words, similarity_top_k=1, explain=True)
    from llama_index.core import get_response_synthesizer
    from llama_index.core.llms import MockLLM
    from llama_index.core.query_engine import RetrieverQueryEngine

    synthesizer = get_response_synthesizer(MockLLM(), response_mode="compact")
    answer = RetrieverQueryEngine(retriever, synthesizer).query("engine")
    assert [node.node.node_id for node in answer.source_nodes] == ["b"]
    for part in ("An engine burns fuel", "title: Engines", "year: 2021"):
        assert part in str(answer)
    assert "rank:" not in str(answer)
    assert "why:" not in str(answer)


@pytest.mark.parametrize("several", [False, True])
def test_a_saved_haystack_pipeline_returns_the_same_documents(words, dense, several):
    """It contains folders and options; loading it opens the indexes."""
    retriever = adapter("haystack")
    from haystack import Pipeline

    pipeline = Pipeline()
    index = [words, dense] if several else words
    pipeline.add_component("retriever", retriever(index=index, top_k=2, filters=FILTERS["haystack"]))
    pipeline.warm_up()
    queries = {"retriever": {"query": "river mill"}}
    # Haystack only loads classes of modules that the user allows.
    loaded = Pipeline.loads(pipeline.dumps(), allowed_modules=["retrievalkit_adapters.haystack"])
    assert loaded.run(queries) == pipeline.run(queries) == asyncio.run(loaded.run_async(queries))
    assert {document.id for document in loaded.run(queries)["retriever"]["documents"]} <= {"b", "c"}
    mills = {"field": "kind", "operator": "==", "value": "old mill"}
    options = {"query": "river wheel", "top_k": 1, "filters": mills}
    assert [document.id for document in loaded.run({"retriever": options})["retriever"]["documents"]] == ["c"]
    with pytest.raises(InputError, match="an open index, which cannot be saved"):
        retriever(index=rk.Index.open(words)).to_dict()


@pytest.mark.parametrize(("toolkit", "package"), ALL_TOOLKITS.items())
def test_an_adapter_names_the_missing_toolkit(toolkit, package):
    program = f"import sys; sys.modules['{package}'] = None; import retrievalkit_adapters.{toolkit}"
    process = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert f"pip install 'retrievalkit[{toolkit}]'" in process.stderr
