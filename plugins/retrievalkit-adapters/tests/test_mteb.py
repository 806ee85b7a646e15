"""Models, indexes and hybrid search in MTEB, on local tasks, without downloads."""

from __future__ import annotations

import pytest

import retrievalkit as rk
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.errors import InputError, UnsupportedError

mteb = pytest.importorskip("mteb")
datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore")

from mteb.abstasks.retrieval import AbsTaskRetrieval  # noqa: E402
from mteb.mocks.mock_tasks.classification import MockClassificationTask  # noqa: E402
from mteb.mocks.mock_tasks.reranking import MockRerankingTask  # noqa: E402
from mteb.mocks.mock_tasks.retrieval import MockRetrievalTask, general_args  # noqa: E402
from mteb.mocks.mock_tasks.sts import MockSTSTask  # noqa: E402
from mteb.models import EncoderProtocol, SearchProtocol  # noqa: E402
from retrievalkit_adapters.mteb import Encoder, IndexSearch, Search  # noqa: E402


@pytest.fixture(scope="module")
def judged(tiny_collection):
    return read_qrels(tiny_collection.qrels)


@pytest.fixture(scope="module")
def queries(tiny_collection, judged):
    return {query.id: query.text for query in read_queries(tiny_collection.queries) if query.id in judged}


@pytest.fixture
def countries(tiny_collection, judged, queries):
    """A retrieval task on the tiny collection."""

    class Countries(AbsTaskRetrieval):
        metadata = mteb.TaskMetadata(
            **{**general_args, "name": "Countries", "type": "Retrieval", "main_score": "ndcg_at_10"}
        )

        def load_data(self, **_):
            passages = [
                {"id": passage.id, "title": passage.title, "text": passage.text}
                for passage in open_corpus(tiny_collection.corpus)
            ]
            rows = [{"id": name, "text": text} for name, text in queries.items()]
            split = {"corpus": datasets.Dataset.from_list(passages), "queries": datasets.Dataset.from_list(rows)}
            self.dataset = {"default": {"test": {**split, "relevant_docs": judged, "top_ranked": None}}}
            self.data_loaded = True

    return Countries()


@pytest.fixture(scope="module")
def model(tiny_model):
    return rk.Retriever.load(tiny_model, pooler="mean", precision="fp32")


@pytest.fixture(scope="module")
def dense(tmp_path_factory, tiny_collection, model):
    return rk.Index.build(tiny_collection.corpus, model, tmp_path_factory.mktemp("mteb") / "dense")


@pytest.fixture(scope="module")
def words(tmp_path_factory, tiny_collection):
    return rk.Index.build(tiny_collection.corpus, output=tmp_path_factory.mktemp("mteb") / "words")


def scores(model, *tasks):
    """The metrics of each task."""
    results = mteb.evaluate(model, list(tasks), cache=None, show_progress_bar=False, raise_error=True)
    return [task_result.scores["test"][0] for task_result in results.task_results]


@pytest.mark.parametrize(
    "system", ["encoder", "dense", "words", "hybrid", "built words", "built dense", "built hybrid"]
)
def test_metrics_equal_those_of_run_evaluate(system, countries, model, dense, words, queries, judged):
    """If MTEB encodes the corpus, if the adapter indexes it, and if the index exists."""
    hybrid = rk.Hybrid([words, dense], fusion="rrf")
    expected, adapter = {
        "encoder": (dense, lambda: Encoder(model)),
        "dense": (dense, lambda: IndexSearch(dense)),
        "words": (words, lambda: IndexSearch(words.folder)),
        "hybrid": (hybrid, lambda: IndexSearch([words, dense])),
        "built words": (words, lambda: Search({"indexer": "bm25"})),
        "built dense": (dense, lambda: Search({"model": model})),
        "built hybrid": (hybrid, lambda: Search({"indexer": "bm25"}, {"model": model, "indexer": "flat"})),
    }[system]
    system_adapter = adapter()
    assert isinstance(system_adapter, EncoderProtocol) == (system == "encoder")
    assert isinstance(system_adapter, SearchProtocol) == (system != "encoder")
    (measured,) = scores(system_adapter, countries)
    own_scores = expected.search(queries, 1000).evaluate(judged, ["nDCG@10", "R@100", "RR@10"])
    for name, own in (("ndcg_at_10", "nDCG@10"), ("recall_at_100", "R@100"), ("mrr_at_10", "RR@10")):
        assert measured[name] == pytest.approx(own_scores[own], abs=1e-4), name


def test_fusion_options_reach_the_hybrid(countries, model, queries, judged, dense, words):
    options = {"fusion": "linear", "weights": [0.9, 0.1], "normalization": "min_max"}
    (measured,) = scores(Search({"indexer": "bm25"}, {"model": model}, **options), countries)
    expected = rk.Hybrid([words, dense], **options).search(queries, 1000).evaluate(judged, ["nDCG@10"])
    assert measured["ndcg_at_10"] == pytest.approx(expected["nDCG@10"], abs=1e-4)


def test_mtebs_mock_tasks(model):
    """Retrieval, tasks without queries, and re-ranking, by the encoder and by search."""
    assert (
        len(scores(Encoder(model), MockRetrievalTask(), MockRerankingTask(), MockSTSTask(), MockClassificationTask()))
        == 4
    )
    encoder, search = scores(Encoder(model), MockRerankingTask()), scores(Search({"model": model}), MockRerankingTask())
    assert search[0]["map_at_1000"] == encoder[0]["map_at_1000"]
    with pytest.raises(TypeError, match="does not support Search"):
        scores(Search({"model": model}), MockSTSTask())


def test_name_and_revision_identify_model_and_options(model, dense, words, tiny_model):
    """MTEB caches results by name and revision."""
    other = rk.Retriever.load(tiny_model, pooler="cls")
    adapters = [
        Encoder(model),
        Encoder(other),
        Search({"model": model}),
        Search({"model": other}),
        Search({"model": model, "indexer": "faiss"}),
        Search({"model": model}, {"indexer": "bm25"}),
        Search({"model": model}, {"indexer": "bm25"}, fusion="sum"),
        IndexSearch(words),
        IndexSearch(dense),
        IndexSearch(rk.Hybrid([words, dense])),
        IndexSearch(rk.Hybrid([words, dense], fusion="sum")),
    ]
    identities = {(adapter.mteb_model_meta.name, adapter.mteb_model_meta.revision) for adapter in adapters}
    assert len(identities) == len(adapters)
    assert Encoder(model).mteb_model_meta == Encoder(model).mteb_model_meta
    assert IndexSearch(words, name="my words").mteb_model_meta.name == "retrievalkit/my words"


def test_mistakes(tmp_path, tiny_model, model, words, countries):
    several = rk.Retriever.load(tiny_model, pooler="colbert")
    with pytest.raises(UnsupportedError, match="several vectors per text"):
        scores(Encoder(several), MockRetrievalTask())
    assert scores(Search({"model": several}), MockRetrievalTask())
    with pytest.raises(InputError, match="not in the task's corpus"):
        scores(IndexSearch(rk.Index.build(["sentence"], output=tmp_path / "other")), MockRetrievalTask())
    for adapter in (Encoder, IndexSearch):
        with pytest.raises(InputError):
            adapter(str(tmp_path / "nowhere"))
