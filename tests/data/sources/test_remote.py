"""Data sets of Hugging Face and ir_datasets, from this machine, and what is said when they cannot be had."""

from __future__ import annotations

import sys
from collections import namedtuple
from types import SimpleNamespace

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
    """A folder that `datasets` takes for a data set with the splits train and test."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    datasets.disable_progress_bars()
    folder = tmp_path / "data"
    for split, name in (("train", "1"), ("test", "2")):
        row = {"query_id": name, "query": "who", "positives": [name], "negatives": ["3"]}
        files.write_jsonl(folder / f"{split}.jsonl", [row])
    return folder


def test_a_split_is_chosen(hub):
    assert read_examples(f"hf:{hub}").rows[0].query_id == "1"
    assert read_examples(f"hf:{hub}", split="test").rows[0].query_id == "2"
    assert read_examples(f"hf:{hub}@test").rows[0].query_id == "2"
    assert read_queries(f"hf:{hub}@test") == [Query("2", "who")]
    assert kind_of(f"hf:{hub}@train") == "examples"


def test_a_revision_comes_last(hub, monkeypatch):
    """Where loading scripts are, the hub keeps the data at refs/convert/parquet."""
    asked = []
    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *names, **how: asked.append((names, how)) or load(*names, split=how["split"])
    )
    assert read_examples(f"hf:{hub}@test#refs/convert/parquet").rows[0].query_id == "2"
    assert asked[-1] == ((str(hub), None), {"split": "test", "revision": "refs/convert/parquet"})
    with pytest.raises(DataError, match=r"no split 'dev'\. Known: train, test\. Choose one: hf:.*@train#main$"):
        read_examples(f"hf:{hub}#main", split="dev")


def test_a_corpus(tmp_path, hub):
    (hub / "test.jsonl").unlink()
    files.write_jsonl(hub / "train.jsonl", [{"docid": "1", "title": "T", "text": "x"}])
    corpus = open_corpus(f"hf:{hub}")
    assert list(corpus) == [Passage("1", "T", "x")]
    assert corpus.get("1").title == "T"
    assert corpus.fingerprint() == open_corpus(f"hf:{hub}").fingerprint()


def test_what_cannot_be_had(monkeypatch):
    with pytest.raises(DataError, match=r"'hf:nobody/nothing' could not be read: .*Check the name and the network"):
        list(open_corpus("hf:nobody/nothing"))


def test_the_package_is_asked_for(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(MissingDependencyError, match=r"'hf:x' needs the package 'datasets'\..* 'retrievalkit\[hf\]'"):
        list(open_corpus("hf:x"))
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'retrievalkit\[irds\]'"):
        list(open_corpus("irds:x"))


class Doc(namedtuple("Doc", "doc_id title body")):
    def default_text(self):
        return f"{self.title} {self.body}"


Asked = namedtuple("Asked", "query_id text")
Judged = namedtuple("Judged", "query_id doc_id relevance iteration")


@pytest.fixture
def toy(monkeypatch):
    """ir_datasets with one more data set; a stand-in with that data set alone where the package is not installed."""
    added = SimpleNamespace(
        **dict.fromkeys(("has_docs", "has_queries", "has_qrels"), lambda: True),
        docs_count=lambda: 1,
        docs_iter=lambda: iter([Doc("d1", "Violin", "A string instrument.")]),
        queries_iter=lambda: iter([Asked("q1", "what is a violin")]),
        qrels_iter=lambda: iter([Judged("q1", "d1", 2, "0"), Judged("q1", "d2", 0, "0")]),
    )
    try:
        import ir_datasets
    except ImportError:
        ir_datasets = SimpleNamespace(load={}.__getitem__, registry=["toy", "vaswani"])
        monkeypatch.setitem(sys.modules, "ir_datasets", ir_datasets)
    real = ir_datasets.load
    monkeypatch.setattr(ir_datasets, "load", lambda name: added if name == "toy" else real(name))
    return added


def test_ir_datasets(toy, monkeypatch):
    assert list(open_corpus("irds:toy")) == [Passage("d1", "Violin", "Violin A string instrument.")]
    assert read_queries("irds:toy") == [Query("q1", "what is a violin")]
    assert read_qrels("irds:toy") == {"q1": {"d1": 2, "d2": 0}}
    assert read_examples("irds:toy").rows[0].positives == ("d1",)
    assert kind_of("irds:toy") == "collection"
    assert open_corpus("irds:toy").expected_size() == 1
    assert sources.fingerprint("irds:toy") != sources.fingerprint("irds:toys")
    with pytest.raises(DataError, match=r"has no data set 'vaswanii'\. Did you mean 'irds:vaswani'\?"):
        list(open_corpus("irds:vaswanii"))
    toy.has_qrels = lambda: False
    with pytest.raises(DataError, match=r"'irds:toy' has no judgements; it has passages, queries"):
        read_qrels("irds:toy")
