"""SPLADE models go to sentence-transformers' SparseEncoder and come back with equal weights."""

from __future__ import annotations

import pytest

from peer_vectors import TEXTS, assert_equal_vectors

pytestmark = pytest.mark.filterwarnings("ignore")
SPLADE = {"views": "sparse", "pooled_tokens": "all"}


@pytest.fixture(scope="module")
def library():
    return pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")


def encoded(model):
    found = model.encode_query(TEXTS["query"]), model.encode_document(TEXTS["document"])
    return dict(zip(("query", "document"), (list(one.to_dense().numpy()) for one in found), strict=True))


@pytest.mark.parametrize("top_k", [None, 8])
def test_the_library_opens_the_folder_with_equal_weights(library, checkpoint, export, top_k):
    source = checkpoint("dense_sparse", {"query_prefix": "what "}, top_k=top_k, **SPLADE)
    folder = export(source, "sparse-encoder")
    found = encoded(library.SparseEncoder(str(folder), device="cpu"))
    assert_equal_vectors(source, found)
    assert_equal_vectors(folder, found)


@pytest.mark.parametrize("most", [None, 8])
def test_a_model_of_the_library_is_taken(library, tiny_model, tmp_path, most):
    model = library.SparseEncoder(tiny_model, max_active_dims=most, prompts={"query": "what "}, device="cpu")
    model.save(str(tmp_path / "published"))
    assert_equal_vectors(tmp_path / "published", encoded(model))


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"views": "sparse", "top_k": 20}, "are not those of SPLADE"),
        ({**SPLADE, "top_k": 20, "sparse_head": "projection"}, "are not those of SPLADE"),
        ({"views": "both", "top_k": 20, "pooled_tokens": "all"}, "a vector beside the weights"),
        ({"views": "dense"}, "makes vectors"),
    ],
)
def test_other_weights_are_refused(checkpoint, export, options, reason):
    assert reason in export(checkpoint("dense_sparse", **options), "sparse-encoder")
