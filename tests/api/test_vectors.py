"""Vectors that were made elsewhere are indexed, and search an index."""

from __future__ import annotations

import numpy as np
import pandas
import pyarrow
import pytest
import torch
from scipy.sparse import csr_matrix

import retrievalkit as rk
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, InputError, OptionError, UnsupportedError

ROWS = np.array([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]], dtype=np.float32)


@pytest.fixture(scope="module")
def raw(tmp_path_factory):
    return rk.Index.build(vectors=ROWS, ids="abc", output=tmp_path_factory.mktemp("raw") / "index")


@pytest.mark.parametrize(
    "data",
    [
        ROWS,
        ROWS.astype(np.float64),
        torch.tensor(ROWS).to(torch.bfloat16).float(),
        torch.tensor(ROWS, requires_grad=True),
        ROWS.tolist(),
        list(ROWS),
        pandas.Series(list(ROWS)),
        pandas.DataFrame({"id": list("abc"), "vector": list(ROWS)}),
        pyarrow.table({"id": list("abc"), "vector": list(ROWS)}),
        rk.Vectors.of(ROWS, "abc"),
    ],
    ids=lambda data: type(data).__name__,
)
def test_vectors_of_every_kind(data):
    made = rk.Vectors.of(data, ["a", "b", "c"])
    assert list(made.ids) == ["a", "b", "c"]
    np.testing.assert_allclose(made.to_numpy(), ROWS, atol=0.01)


def test_several_vectors_a_text_and_weights_of_terms(tmp_path):
    """Also where their number varies; scores are MaxSim, and sums of products."""
    late = rk.Index.build(vectors=[ROWS[:2], ROWS[2:]], output=tmp_path / "late")
    (hits,) = late.search(ROWS[None, :2], k=2).values()
    assert [(name, round(score, 4)) for name, score in hits] == [("0", 2.0), ("1", 1.4)]
    weights = csr_matrix(np.array([[0, 2.0], [3.0, 0]]))
    sparse = rk.Index.build(vectors=weights, ids="xy", output=tmp_path / "sparse", indexer="sparse")
    assert sparse.search(csr_matrix([[1.0, 0.0]]), k=1)["0"] == [("y", 3.0)]


def test_many_vectors_give_a_run_and_one_gives_hits(raw):
    """Named as in `Vectors`, else numbered."""
    assert raw.search(ROWS[:2], k=1) == {"0": [("a", 1.0)], "1": [("b", 1.0)]}
    assert raw.search(rk.Vectors.of(ROWS[:1], ["q"]), k=1) == {"q": [("a", 1.0)]}
    (best,) = raw.search(torch.tensor([0.0, 3.0]), k=1)
    assert (best.id, best.score) == ("b", 3.0)


def test_with_passages_hits_have_texts_and_with_a_model_texts_are_queries(passages, model, dense, queries, tmp_path):
    """As the index that the model built itself; ids equal those of the passages."""
    array = np.asarray(model.encode_documents(passages))
    index = rk.Index.build(passages, model, tmp_path / "index", vectors=array)
    assert index.search(queries, k=5) == dense.search(queries, k=5)
    assert index.search("the capital of peru", k=2)[0].text == dense.search("the capital of peru", k=2)[0].text
    found = dense.search(model.encode_queries(queries, precision="fp32"), k=5)
    assert {name: [one for one, _ in hits] for name, hits in found.items()} == {
        name: [one for one, _ in hits] for name, hits in dense.search(queries, k=5).items()
    }
    hits = dense.search(np.asarray(model.encode_queries(["the capital of peru"]))[0], k=2)
    assert [hit.text for hit in hits] == [hit.text for hit in dense.search("the capital of peru", k=2)]


def test_an_index_without_a_model_takes_the_model_at_opening(raw, dense, model, passages, tmp_path):
    """And refuses texts without it."""
    with pytest.raises(ArtifactError, match="does not record the checkpoint that encoded it"):
        raw.search("peru")
    with pytest.raises(ArtifactError, match="does not record the checkpoint that encoded it"):
        rk.Hybrid([raw, dense]).search(["peru"])
    rk.Index.build(passages, vectors=model.encode_documents(passages), output=tmp_path / "index")
    opened = rk.Index.open(tmp_path / "index", model=model)
    assert opened.search(["peru"], k=3) == dense.search(["peru"], k=3)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"vectors": ROWS, "ids": ["a"]}, InputError, "1 ids for 3 vectors"),
        ({"vectors": ROWS, "ids": ["a", "a", "b"]}, InputError, "the id 'a' occurs twice"),
        ({"vectors": ROWS * np.nan}, InputError, "not finite"),
        ({"vectors": np.zeros((0, 2))}, InputError, "there are no vectors"),
        ({"vectors": np.array(["x", "y"])}, InputError, "are an array (2,) of <U1"),
        ({"vectors": {"a": 1}}, InputError, "vectors of the type dict are unknown"),
        ({"vectors": [ROWS, ROWS[:, :1]]}, InputError, "number of dimensions"),
        ({"vectors": ROWS, "texts": ["one", "two"]}, InputError, "2 ids for 3 vectors"),
        ({"vectors": ROWS, "ids": "xyz", "texts": ["a", "b", "c"]}, InputError, "'x' has a vector, but no passage"),
        ({"vectors": ROWS, "precision": "fp32"}, OptionError, "precision has no effect on precomputed vectors"),
        ({"texts": ["a"], "ids": ["x"]}, OptionError, "ids only apply to precomputed vectors"),
        ({}, InputError, "there is nothing to index"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(given, error, message, tmp_path):
    """And nothing is written."""
    with pytest.raises(error) as raised:
        rk.Index.build(**given, output=tmp_path / "index")
    assert message in str(raised.value)
    assert not (tmp_path / "index").exists()


def test_queries_of_another_size_are_refused(raw, dense):
    """So are vectors for an index of another model."""
    with pytest.raises(UnsupportedError, match="vectors of size 3 and documents of size 2"):
        raw.search(np.ones((1, 3)))
    with pytest.raises(UnsupportedError, match="encoded by different models"):
        rk.Hybrid([raw, dense]).search(ROWS)


@pytest.mark.precision
def test_vectors_in_memory_are_cut_as_those_of_a_folder(model, passages, tmp_path):
    cut = model.encode_documents(passages, dimensions=8)
    assert (cut.to_numpy().shape, cut.dimensions) == ((42, 8), 8)
    store = VectorStore(model.encode_documents(passages, output=tmp_path / "cut", dimensions=8, stored="fp16"))
    assert store.manifest["options"]["stored"] == "fp16"
    with pytest.raises(OptionError, match="vectors folder"):
        model.encode_documents(["a"], stored="fp16")
    np.testing.assert_allclose(store.take(np.arange(42)).vectors.astype(np.float32), cut.to_numpy(), atol=1e-2)


@pytest.mark.precision
def test_an_index_of_cut_vectors_cuts_its_queries(model, passages, queries, tmp_path):
    """Built by the model, of vectors with it, or of vectors alone, and whatever the model encodes in between."""
    built = rk.Index.build(passages, model, tmp_path / "built", dimensions=8)
    found = built.search(queries, k=5)
    cut = model.encode_documents(passages, dimensions=8)
    model.encode_queries(queries)
    given = rk.Index.build(passages, model, tmp_path / "given", vectors=cut)
    assert given.search(queries, k=5) == found
    assert rk.Index.open(given.folder).search(queries, k=5) == found
    rk.Index.build(passages, vectors=rk.Vectors.of(cut, cut.ids), output=tmp_path / "alone")
    assert rk.Index.open(tmp_path / "alone", model=model).search(queries, k=5) == found
    assert built.search(model.encode_queries(queries, dimensions=8), k=1).keys() == found.keys()


@pytest.mark.precision
def test_a_model_that_cut_others_makes_an_index_of_whole_vectors(model, passages, dense, queries, tmp_path):
    whole = model.encode_documents(passages)
    model.encode_queries(queries, dimensions=8)
    index = rk.Index.build(passages, model, tmp_path / "index", vectors=whole)
    assert "dimensions" not in index.manifest["checkpoint"]
    assert index.search(queries, k=5) == dense.search(queries, k=5)
