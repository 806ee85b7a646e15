"""Vectors that were cut, in memory and in indexes of them."""

from __future__ import annotations

import numpy as np
import pytest

import retrievalkit as rk
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import OptionError

pytestmark = pytest.mark.precision


def test_vectors_in_memory_are_cut_as_those_of_a_folder(model, passages, tmp_path):
    cut = model.encode_documents(passages, dimensions=8)
    assert (cut.to_numpy().shape, cut.dimensions) == ((42, 8), 8)
    store = VectorStore(model.encode_documents(passages, output=tmp_path / "cut", dimensions=8, stored="fp16"))
    assert store.manifest["options"]["stored"] == "fp16"
    np.testing.assert_allclose(store.take(np.arange(42)).vectors.astype(np.float32), cut.to_numpy(), atol=1e-2)


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


def test_whole_vectors_of_a_model_that_cut_others_make_an_index_of_whole_ones(
    model, passages, dense, queries, tmp_path
):
    whole = model.encode_documents(passages)
    model.encode_queries(queries, dimensions=8)
    index = rk.Index.build(passages, model, tmp_path / "index", vectors=whole)
    assert "dimensions" not in index.manifest["checkpoint"]
    assert index.search(queries, k=5) == dense.search(queries, k=5)


def test_the_number_format_of_a_folder_needs_a_folder(model):
    with pytest.raises(OptionError, match="stored and ray are for a vectors folder"):
        model.encode_documents(["a"], stored="fp16")
