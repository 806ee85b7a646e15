"""`Index.add`, `delete` and `compact`: the open index searches the changed folder."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import retrievalkit as rk
from retrievalkit.errors import ArtifactError, DataError, InputError, OptionError
from retrievalkit.indexing import query_encoders

pytestmark = pytest.mark.precision

ROWS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=np.float32)


@pytest.fixture
def index(model, passages, tmp_path):
    return rk.Index.build(passages[:-10], model, tmp_path / "index")


def texts_of(index):
    return [(hit.id, hit.score, hit.title, hit.text) for hit in index.search("peru", k=42)]


def test_added_texts_have_the_hits_of_a_rebuilt_index(index, dense, passages, queries, monkeypatch):
    """With their texts, and without loading the model again."""
    outcome = index.add(passages)
    assert (outcome["added"], outcome["unchanged"], outcome["texts"]) == (10, 32, 42)
    assert len(index) == 42
    monkeypatch.setattr(query_encoders, "_load", None)
    assert index.search(queries, k=5) == dense.search(queries, k=5)
    assert texts_of(index) == texts_of(dense)


def test_deleted_texts_are_not_found_and_compacting_changes_no_hit(index, queries):
    """Ids may be names of files, and a single id may be a string."""
    best = [hit.id for hit in index.search("peru", k=3)]
    assert index.delete(best[0])["deleted"] == 1
    assert index.delete(np.array(best[1:2]))["texts"] == 30
    assert not {*best[:2]} & {hit.id for hit in index.search("peru", k=50)}
    found = index.search(queries, k=5)
    nothing = dict.fromkeys(("added", "changed", "unchanged", "deleted", "encoded"), 0)
    assert index.compact() == {"texts": 30, "compacted": 1, "segments": 1, **nothing}
    assert index.search(queries, k=5) == found
    assert rk.Index.open(index.folder).search(queries, k=5) == found


def test_threads_search_while_the_index_changes(index, passages):
    with ThreadPoolExecutor(4) as pool:
        waiting = []
        for number in (0, 1, 2):
            waiting.append(pool.submit(index.add, [passages[32 + number]]))
            waiting.append(pool.submit(index.delete, passages[number]["_id"]))
            searches = [pool.submit(texts_of, index) for _ in range(8)]
            assert all(text for search in searches for *_, text in search.result())
        assert [one.result()["deleted"] + one.result()["added"] for one in waiting] == [1] * 6
    assert {name for name, *_ in texts_of(index)} == {one["_id"] for one in passages[3:35]}


@pytest.mark.parametrize(
    "coming",
    [{"texts": rk.Vectors.of(ROWS[:1], ["d"])}, {"vectors": ROWS[:1], "ids": "d"}, {"texts": ROWS[:1], "ids": "d"}],
)
def test_vectors_are_added_to_vectors(coming, tmp_path):
    raw = rk.Index.build(vectors=ROWS, ids="abc", output=tmp_path / "raw")
    assert raw.add(**coming)["added"] == 1
    assert {name for name, _ in raw.search(ROWS[:1], k=2)["0"]} == {"a", "d"}


def test_vectors_with_their_passages(index, model, passages, queries, dense):
    index.add(passages[-10:], vectors=np.asarray(model.encode_documents(passages[-10:])))
    assert texts_of(index) == texts_of(dense)


@pytest.mark.parametrize(
    ("mistake", "error", "message"),
    [
        (lambda index: index.add(["a text"]), DataError, "the row has no id"),
        (lambda index: index.add(ROWS), InputError, "the vectors have no ids"),
        (lambda index: index.add(), InputError, "there is nothing to add"),
        (lambda index: index.add(rk.Vectors.of(ROWS, "xyz")), ArtifactError, "of size 2"),
        (lambda index: index.add([{"id": "x", "text": "x"}], presicion=1), OptionError, "did you mean 'precision'"),
        (lambda index: index.delete([]), OptionError, "there are no ids to delete"),
        (lambda index: index.delete("nowhere"), InputError, "1 of the 1 ids to delete"),
    ],
)
def test_refused_changes_leave_the_index_unchanged(index, queries, mistake, error, message):
    before, found = index.manifest, index.search(queries, k=3)
    with pytest.raises(error, match=message):
        mistake(index)
    assert rk.Index.open(index.folder).manifest == before
    assert index.search(queries, k=3) == found


def test_a_hybrid_searches_its_changed_indexes(index, passages, queries, tmp_path):
    """Hits, texts and reasons; a closed part is unchanged."""
    words = rk.Index.build(passages, output=tmp_path / "words")
    hybrid = rk.Hybrid([index, words], fusion="rrf")
    best = next(hit.id for hit in hybrid.search("peru", k=20) if hit.id in {one["_id"] for one in passages[:-10]})
    for part in (index, words):
        part.delete(best)
    assert best not in {hit.id for hit in hybrid.search("peru", k=20)}
    index.add(passages)
    words.add(passages)
    anew = rk.Hybrid([rk.Index.open(index.folder), rk.Index.open(words.folder)], fusion="rrf")
    assert hybrid.search(queries, k=5) == anew.search(queries, k=5)
    assert texts_of(hybrid) == texts_of(anew)
    index.close()
    assert hybrid.search(queries, k=5) == anew.search(queries, k=5)
    with pytest.raises(InputError, match="was closed"):
        index.delete("x")


def test_texts_added_to_an_index_of_truncated_vectors_are_truncated(model, passages, queries, tmp_path):
    """Vectors that were not truncated are refused."""
    whole = rk.Index.build(passages, model, tmp_path / "whole", dimensions=8)
    index = rk.Index.build(passages[:30], model, tmp_path / "index", dimensions=8)
    index.add(passages)
    assert index.search(queries, k=5) == whole.search(queries, k=5)
    model.encode_documents([{"id": "new", "text": "new"}], output=tmp_path / "uncut")
    with pytest.raises(ArtifactError, match="not comparable"):
        index.add(tmp_path / "uncut")


def test_texts_without_a_vector(tiny_model, tmp_path):
    """Vectors from elsewhere may cover only some of the passages."""
    texts = {name: f"the text of {name}" for name in "abc"}
    vectors = np.zeros((2, 32), dtype=np.float32)
    index = rk.Index.build(texts, tiny_model, tmp_path / "index", vectors=vectors, ids=["a", "b"], pooler="mean")
    assert index.add({"d": texts["c"], "e": texts["a"]})["encoded"] == 1
    scores = {hit.id: hit.score for hit in index.search("text", k=5)}
    assert scores["d"] != 0 == scores["e"] == scores["a"]
