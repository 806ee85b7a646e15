"""Indexes and models in PyTerrier's pipelines and experiments, without Terrier's Java."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import retrievalkit as rk
from retrievalkit.errors import InputError, UnsupportedError

pt = pytest.importorskip("pyterrier")
pd = pytest.importorskip("pandas")
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

from retrievalkit_adapters.pyterrier import IndexRetriever, Reranker  # noqa: E402


@pytest.fixture(scope="module")
def words(tmp_path_factory, tiny_collection):
    return rk.Index.build(tiny_collection.corpus, output=tmp_path_factory.mktemp("pyterrier") / "words").folder


@pytest.fixture(scope="module")
def model(tiny_model):
    return rk.Retriever.load(tiny_model, pooler="mean", precision="fp32")


@pytest.fixture(scope="module")
def dense(tmp_path_factory, tiny_collection, model):
    return rk.Index.build(tiny_collection.corpus, model, tmp_path_factory.mktemp("pyterrier") / "dense").folder


@pytest.fixture(scope="module")
def topics(tiny_collection):
    from retrievalkit.data.queries import read_queries

    rows = [(query.id, query.text, f"words of {query.id}") for query in read_queries(tiny_collection.queries)]
    return pd.DataFrame(rows, columns=["qid", "query", "query_0"])


@pytest.fixture(scope="module")
def qrels(tiny_collection):
    from retrievalkit.data.qrels import read_qrels

    rows = [
        (query, document, grade)
        for query, own in read_qrels(tiny_collection.qrels).items()
        for document, grade in own.items()
    ]
    return pd.DataFrame(rows, columns=["qid", "docno", "label"])


def hits(frame):
    """The (document, score) pairs of each query, by rank."""
    frame = frame.sort_values(["qid", "rank"])
    return {qid: list(zip(own["docno"], own["score"], strict=True)) for qid, own in frame.groupby("qid")}


def test_results_equal_those_of_the_index(words, dense, topics):
    """Ranks start at 0, as in PyTerrier, and columns of the queries are kept."""
    queries = dict(zip(topics["qid"], topics["query"], strict=True))
    for index, same in (
        (words, rk.Index.open(words)),
        ([words, dense], rk.Hybrid([words, dense], fusion="rrf")),
        (rk.Hybrid([words, dense], fusion="sum"), rk.Hybrid([words, dense], fusion="sum")),
    ):
        results = IndexRetriever(index, num_results=5)(topics)
        assert hits(results) == same.search(queries, 5)
        assert set(results["rank"]) == {0, 1, 2, 3, 4}
        assert (results["query_0"] == "words of " + results["qid"]).all()
    frame = IndexRetriever(words).search(topics["query"][0])
    assert list(frame["docno"])[:3] == [hit.id for hit in rk.Index.open(words).search(topics["query"][0], 3)]
    assert len(IndexRetriever(words)(topics.head(0))) == 0


def test_operators(words, dense, topics):
    first, second = IndexRetriever(words, texts=True), IndexRetriever(dense)
    some = topics.head(3)
    assert hits((first % 2)(some)) == {qid: own[:2] for qid, own in hits(first(some)).items()}
    assert (first % 2).compile().num_results == 2
    assert (IndexRetriever(words, 1) % 2).compile().num_results == 1
    added = hits((first + second)(some))
    for qid, own in added.items():
        parts = dict(hits(first(some))[qid]), dict(hits(second(some))[qid])
        assert dict(own) == pytest.approx(
            {document: parts[0].get(document, 0) + parts[1].get(document, 0) for document, _ in own}
        )


def test_an_index_rescores_results(words, dense, topics):
    """In a pipeline, and as a feature for learning to rank."""
    first, second = IndexRetriever(words) % 5, IndexRetriever(dense)
    some = topics.head(3)
    candidates, scores = hits(first(some)), {qid: dict(own) for qid, own in hits(second(some)).items()}
    for qid, own in hits((first >> second)(some)).items():
        assert dict(own) == pytest.approx({candidate: scores[qid][candidate] for candidate, _ in candidates[qid]})
        assert own == sorted(own, key=lambda hit: -hit[1])
    features = (first >> (IndexRetriever(words) ** second))(some)
    for row in features.itertuples():
        lexical = dict(candidates[row.qid])[row.docno]
        assert list(row.features) == pytest.approx([lexical, scores[row.qid][row.docno]])
    unknown = some.assign(docno="nowhere", score=9.0, rank=0)
    assert list(second(unknown)["score"]) == [0, 0, 0]


def test_a_reranker_of_vectors_scores_texts_as_their_index_does(words, dense, model, topics):
    full = {qid: dict(own) for qid, own in hits(IndexRetriever(dense)(topics)).items()}
    pipeline = IndexRetriever(words, texts=True) % 5 >> Reranker(model)
    reranked = pipeline(topics)
    for qid, own in hits(reranked).items():
        assert dict(own) == pytest.approx({document: full[qid][document] for document, _ in own}, abs=1e-5)
        assert [score for _, score in own] == sorted((score for _, score in own), reverse=True)


def test_a_reranker_may_be_the_folder_of_a_checkpoint(words, topics, tiny_collection, tiny_model, tmp_path):
    options = {"corpus": tiny_collection.corpus, "epochs": 0, "held_out": 0, "limit": 8, "pooler": "mean"}
    checkpoint = rk.train(tiny_model, tiny_collection.folder, output=tmp_path / "checkpoint", **options)
    results = IndexRetriever(words, num_results=3, texts=True)(topics.head(2))
    loaded = Reranker(rk.Retriever.load(checkpoint))
    assert Reranker(tmp_path / "checkpoint")(results).equals(loaded(results))


def test_a_cross_encoder_scores_texts(words, topics, tiny_collection, tmp_path, tiny_model):
    """Like `rk.rerank` on the same run."""
    examples = [{"query_id": "1", "query": "capital of Peru", "positives": ["c0"], "negatives": ["c1"]}]
    options = {"corpus": tiny_collection.corpus, "epochs": 0, "held_out": 0, "negatives": 1}
    reranker = rk.train_reranker(tiny_model, examples, output=tmp_path / "reranker", **options)
    some = topics.head(3)
    queries = dict(zip(some["qid"], some["query"], strict=True))
    run = rk.Index.open(words).search(queries, 5)
    same = rk.rerank(reranker, run, queries, tiny_collection.corpus)
    reranked = hits((IndexRetriever(words, texts=True) % 5 >> Reranker(str(reranker)))(some))
    assert {qid: dict(own) for qid, own in reranked.items()} == {
        qid: pytest.approx(dict(own), abs=1e-5) for qid, own in same.items()
    }


def test_blank_queries_have_no_results(words, dense, model, topics):
    """An empty text, or an empty cell of a table; other queries are not affected."""
    texts = [topics["query"][0], "", "  ", None, float("nan")]
    topics = pd.DataFrame({"qid": list("12345"), "query": texts})
    for transformer in (IndexRetriever(words, texts=True), IndexRetriever(dense), IndexRetriever([words, dense])):
        results = transformer(topics)
        assert set(results["qid"]) == {"1"}
        assert len(transformer(topics[1:])) == 0
    results = IndexRetriever(words, texts=True)(topics)
    blank = results.assign(qid="2", query=None)
    for transformer in (Reranker(model), IndexRetriever(dense)):
        assert hits(transformer(pd.concat([results, blank]))) == hits(transformer(results))


@pytest.mark.parametrize("operator", ["__add__", "__or__", "__xor__", "__and__"])
def test_results_of_operators_are_rescored(words, dense, model, topics, tiny_collection, operator):
    """PyTerrier leaves queries and texts of some results empty: the corpus has them, or they are refused."""
    first, second = IndexRetriever(words, 5, texts=True), IndexRetriever(dense, 5)
    combined, some = getattr(first, operator)(second), topics.head(3)
    full = {qid: dict(own) for qid, own in hits(IndexRetriever(dense)(some)).items()}
    results = combined(some)
    for transformer in (Reranker(model, corpus=tiny_collection.corpus), IndexRetriever(dense)):
        rescored = transformer(results)
        assert len(rescored) == len(results)
        for row in rescored.itertuples():
            assert row.score == pytest.approx(full[row.qid][row.docno], abs=1e-5)
    if results["text"].isna().any():
        with pytest.raises(InputError, match=r"have no text to score, such as .*corpus="):
            Reranker(model)(results)
    assert len(Reranker(model, corpus=tiny_collection.corpus)(results.drop(columns=["text", "title"]))) == len(results)


def test_an_experiment(words, dense, model, topics, qrels):
    """The measures equal those of `run.evaluate`; Terrier's Java does not start."""
    lexical = IndexRetriever(words, texts=True)
    systems = [lexical, lexical % 10 >> Reranker(model), IndexRetriever([words, dense])]
    measures = ["ndcg_cut_10", "recip_rank"]
    table = pt.Experiment(systems, topics, qrels, measures, names=["words", "reranked", "hybrid"], baseline=0)
    queries = dict(zip(topics["qid"], topics["query"], strict=True))
    judged = {qid: dict(zip(own["docno"], own["label"], strict=True)) for qid, own in qrels.groupby("qid")}
    expected = rk.Index.open(words).search(queries, 1000).evaluate(judged, ["nDCG@10", "RR"])
    assert table["ndcg_cut_10"][0] == pytest.approx(expected["nDCG@10"])
    assert table["recip_rank"][0] == pytest.approx(expected["RR"])
    assert table["ndcg_cut_10 p-value"].notna().sum() == 2
    assert not pt.java.started()


def test_lucene_indexes_open_in_pyterriers_java(words, topics):
    """Without Terrier, which PyTerrier downloads."""
    pytest.importorskip("retrievalkit_pyserini")
    program = f"""
import pyterrier as pt
from pyterrier.java._core import CoreJavaInit
from pyterrier.terrier.java import TerrierJavaInit
from retrievalkit_adapters.pyterrier import IndexRetriever
CoreJavaInit.post_init = lambda self, jnius: None
TerrierJavaInit.condition = lambda self: False
pt.java.init()
assert len(IndexRetriever({str(words)!r}).search({topics["query"][0]!r}))
"""
    from retrievalkit_pyserini.java import find_java

    environment = {**os.environ, "JAVA_HOME": str(find_java().home)}
    subprocess.run([sys.executable, "-c", program], check=True, env=environment)


def test_a_filter(tmp_path, topics):
    passages = [{"id": str(year), "text": "river", "year": year} for year in (2019, 2020, 2021)]
    index = rk.Index.build(passages, output=tmp_path / "index")
    retriever = IndexRetriever(index, filter="year >= 2020")
    assert set(retriever.search("river")["docno"]) == {"2020", "2021"}
    assert list((retriever % 1).compile().search("river")["docno"]) == ["2020"]


@pytest.mark.parametrize("name", ["test_inspect_io", "test_schematic"])
def test_pyterriers_tests_of_transformers(words, model, name, monkeypatch):
    """Inputs and outputs can be inspected and drawn."""
    monkeypatch.setenv("PT_TEST_TRANSFORMER_REPORTS", "0")
    monkeypatch.setattr(pt.documentation, "_cached_objects_inv", {})  # otherwise downloaded
    for transformer in (IndexRetriever(words), IndexRetriever(words, texts=True), Reranker(model)):
        kit = pt.testing.transformer_test_class(lambda transformer=transformer: transformer)
        kit.setUpClass()
        kit(name).debug()
    assert pt.inspect.transformer_inputs(IndexRetriever(words)) == [["qid", "query"], ["qid", "docno", "query"]]
    assert pt.inspect.transformer_outputs(IndexRetriever(words, texts=True), ["qid", "query"]) == [
        "qid", "query", "docno", "score", "rank", "title", "text",
    ]  # fmt: skip


def test_mistakes(words, tmp_path, model):
    for kind, value in ((IndexRetriever, tmp_path / "nowhere"), (Reranker, str(tmp_path / "nowhere"))):
        with pytest.raises(InputError):
            kind(value)
    with pytest.raises(pt.validate.InputValidationError, match="query"):
        IndexRetriever(words)(pd.DataFrame({"docno": ["a"]}))
    encoded = model.encode_documents(["river"])
    vectors = rk.Index.build(vectors=encoded, model=model, output=tmp_path / "vectors")
    with pytest.raises(UnsupportedError, match="has no corpus to read texts from"):
        IndexRetriever(vectors, texts=True).search("river")
