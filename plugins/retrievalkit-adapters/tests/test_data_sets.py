"""Local data sets of Hugging Face and ir_datasets, and errors if a data set is unavailable."""

from __future__ import annotations

import sys
from typing import NamedTuple

import pytest

from retrievalkit.data import files, sources
from retrievalkit.data.corpus import Passage, open_corpus
from retrievalkit.data.examples import read_examples
from retrievalkit.data.kinds import kind_of
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import Query, read_queries
from retrievalkit.errors import DataError, MissingDependencyError

datasets = pytest.importorskip("datasets")
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A folder that `datasets` reads as a data set with the splits train and test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    folder = tmp_path / "data"
    for split, name in (("train", "1"), ("test", "2")):
        row = {"query_id": name, "query": "who", "positives": [name], "negatives": ["3"]}
        files.write_jsonl(folder / f"{split}.jsonl", [row])
    return folder


def test_a_split_is_selected(hub):
    assert read_examples(f"hf:{hub}").rows[0].query_id == "1"
    assert read_examples(f"hf:{hub}", split="test").rows[0].query_id == "2"
    assert read_examples(f"hf:{hub}@test").rows[0].query_id == "2"
    assert read_queries(f"hf:{hub}@test") == [Query("2", "who")]
    assert kind_of(f"hf:{hub}@train") == "examples"


def test_a_revision_comes_last(hub, monkeypatch):
    """For data sets with a loading script, the hub keeps the data at refs/convert/parquet."""
    calls = []
    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *names, **how: calls.append((names, how)) or load(*names, split=how["split"])
    )
    assert read_examples(f"hf:{hub}@test#refs/convert/parquet").rows[0].query_id == "2"
    assert calls[-1] == ((str(hub), None), {"split": "test", "revision": "refs/convert/parquet"})
    with pytest.raises(DataError, match=r"no split 'dev'\. Known: train, test\. Choose one: hf:.*@train#main$"):
        read_examples(f"hf:{hub}#main", split="dev")


def test_a_corpus(tmp_path, hub):
    (hub / "test.jsonl").unlink()
    files.write_jsonl(hub / "train.jsonl", [{"docid": "1", "title": "T", "text": "x"}])
    corpus = open_corpus(f"hf:{hub}")
    assert list(corpus) == [Passage("1", "T", "x")]
    assert corpus.get("1").title == "T"
    assert corpus.fingerprint() == open_corpus(f"hf:{hub}").fingerprint()


def test_an_unavailable_data_set_is_reported(monkeypatch):
    with pytest.raises(DataError, match=r"'hf:nobody/nothing' could not be read: .*Check the name and the network"):
        list(open_corpus("hf:nobody/nothing"))


def test_a_missing_package_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"'hf:x' needs the package 'datasets'\..* 'retrievalkit\[hf\]'"):
        list(open_corpus("hf:x"))
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'retrievalkit\[irds\]'"):
        list(open_corpus("irds:x"))


class Doc(NamedTuple):
    """A document without a field "text"."""

    doc_id: str
    title: str
    body: str
    year: str

    def default_text(self):
        return f"{self.title} {self.body}"


@pytest.fixture
def toy(tmp_path):
    """Data sets of local files, registered with ir_datasets: irds:toy, and irds:toy/docs without judgements."""
    ir_datasets = pytest.importorskip("ir_datasets")
    from ir_datasets.formats import JsonlDocs, TrecQrels, TsvQueries
    from ir_datasets.util.download import LocalDownload

    documents = [
        {"doc_id": "d1", "title": "Violin", "body": "A string instrument.", "year": "1550"},
        {"doc_id": "d2", "title": "Lute", "body": "An older one.", "year": "1300"},
    ]
    files.write_jsonl(tmp_path / "docs.jsonl", documents)
    (tmp_path / "queries.tsv").write_text("q1\twhat is a violin\n")
    (tmp_path / "qrels.txt").write_text("q1 0 d1 2\nq1 0 d2 0\n")
    docs, queries, judged = (LocalDownload(tmp_path / name) for name in ("docs.jsonl", "queries.tsv", "qrels.txt"))
    docs = JsonlDocs(docs, doc_cls=Doc, count_hint=2)
    whole = ir_datasets.Dataset(docs, TsvQueries(queries), TrecQrels(judged, {0: "irrelevant", 2: "relevant"}))
    registered = {"toy": whole, "toy/docs": ir_datasets.Dataset(docs)}
    for name, data in registered.items():
        ir_datasets.registry.register(name, data)
    yield
    for name in registered:
        del ir_datasets.registry._registered[name]


def test_ir_datasets(toy):
    """Passages with their fields, queries, judgements and examples; the name determines the fingerprint."""
    first, second = open_corpus("irds:toy")
    assert (first.id, first.title, first.text) == ("d1", "Violin", "Violin A string instrument.")
    assert [passage.fields for passage in (first, second)] == [{"year": "1550"}, {"year": "1300"}]
    assert read_queries("irds:toy") == [Query("q1", "what is a violin")]
    assert read_qrels("irds:toy") == {"q1": {"d1": 2, "d2": 0}}
    assert read_examples("irds:toy").rows[0].positives == ("d1",)
    assert kind_of("irds:toy") == "collection"
    assert open_corpus("irds:toy").get("d2").text == "Lute An older one."
    assert sources.fingerprint("irds:toy") != sources.fingerprint("irds:toys")


def test_mistakes_about_ir_datasets(toy):
    with pytest.raises(DataError, match=r"has no data set 'vaswanii'\. Did you mean 'irds:vaswani'\?"):
        list(open_corpus("irds:vaswanii"))
    with pytest.raises(DataError, match=r"'irds:toy/docs' has no judgements; it has passages"):
        read_qrels("irds:toy/docs")
