"""Truncated vectors: encoding, indexing, searching, and the entries of manifests."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

from retrievalkit.cli import main
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import UnsupportedError
from retrievalkit.indexing.corpus_encoding import _in_half
from retrievalkit.models.retriever import Retriever
from retrievalkit.storage import read_manifest


def rkit(*words, code=0):
    ended = CliRunner().invoke(main, list(map(str, words)))
    assert ended.exit_code == code, ended.output
    return ended


@pytest.fixture(scope="module")
def encoded(tiny_model, tiny_collection, tmp_path_factory):
    """Normalised vectors of the corpus: whole, truncated, and in half precision."""
    folder = tmp_path_factory.mktemp("dimensions")
    common = ["--pooler", "mean", "--set", "pooler.normalize=true", "--precision", "fp32"]
    for name, options in (("whole", []), ("cut", ["--dimensions", 8]), ("half", ["--stored", "fp16"])):
        rkit("encode", tiny_model, tiny_collection.corpus, "-o", folder / name, *common, *options)
    return folder


def vectors(folder):
    return VectorStore(folder).block(0, 42).vectors


def test_truncated_vectors_are_normalised_again(encoded):
    first = vectors(encoded / "whole")[:, :8]
    expected = first / np.linalg.norm(first, axis=1, keepdims=True)
    np.testing.assert_allclose(vectors(encoded / "cut"), expected, rtol=1e-5)
    manifest = read_manifest(encoded / "cut", "vectors")
    assert (manifest["options"]["dimensions"], manifest["checkpoint"]["dimensions"]) == (8, 8)
    assert "dimensions" not in read_manifest(encoded / "whole", "vectors")["options"]


def test_vectors_that_are_not_normalised_are_only_truncated(tiny_model):
    retriever = Retriever.create(tiny_model, pooler="mean").eval()
    whole = retriever.encode([("", "peru")], "query").vectors
    retriever.dimensions = 8
    assert retriever.encode([("", "peru")], "query").vectors.equal(whole[..., :8])


def test_queries_are_truncated_like_the_texts_of_the_index(encoded, tiny_model, tmp_path):
    for name in ("whole", "cut"):
        rkit("index", encoded / name, "-o", tmp_path / name)
    query = ["--query", "the capital of peru", "--json", "--k", 42]
    hits = json.loads(rkit("search", tmp_path / "cut", *query).stdout)["hits"]
    retriever = Retriever.create(tiny_model, pooler="mean", pooler_options={"normalize": True}).eval()
    vector = retriever.encode([("", "the capital of peru")], "query").vectors[0, 0, :8].numpy()
    scores = vectors(encoded / "cut") @ (vector / np.linalg.norm(vector))
    np.testing.assert_allclose([hit["score"] for hit in hits], np.sort(scores)[::-1], rtol=1e-4)
    both = rkit("search", tmp_path / "whole", tmp_path / "cut", *query, "--fusion", "sum").stdout
    assert len(json.loads(both)["hits"]) == 42


def test_vectors_are_stored_in_half_precision(encoded):
    half = vectors(encoded / "half")
    assert half.dtype == np.float16
    np.testing.assert_array_equal(half, vectors(encoded / "whole").astype(np.float16))
    assert read_manifest(encoded / "half", "vectors")["options"]["stored"] == "fp16"


def test_more_dimensions_than_the_vectors_have_are_refused(tiny_model, tiny_collection, tmp_path):
    ended = rkit("encode", tiny_model, tiny_collection.corpus, "-o", tmp_path / "v", "--dimensions", 99, code=2)
    assert "dimensions is 99, and the vectors have 32" in ended.output


def test_dimensions_that_were_not_trained_are_reported(tiny_model, tiny_collection, tmp_path):
    words = ["train", "--model", tiny_model, "--corpus", tiny_collection.corpus, "--examples", tiny_collection.folder]
    words += ["--loss", "matryoshka(contrastive)", "--set", "loss.matryoshka.dimensions=16,8", "--epochs", 1]
    rkit(*words, "--set", "limit=16", "-o", tmp_path / "checkpoint")
    words = ["encode", tmp_path / "checkpoint", tiny_collection.corpus]
    assert "were trained for" not in rkit(*words, "-o", tmp_path / "known", "--dimensions", 8).output
    other = rkit(*words, "-o", tmp_path / "other", "--dimensions", 12)
    assert "truncated to 12 dimensions, and were trained for 16, 8" in other.output
    assert "truncated to 12" in rkit(*words, "-o", tmp_path / "strict", "--dimensions", 12, "--strict", code=2).output


def test_a_number_beyond_half_precision_is_refused():
    with pytest.raises(UnsupportedError, match=r"the text 'b' holds 70000, beyond fp16"):
        _in_half(np.array([[[1.0]], [[-70000.0]]], dtype=np.float32), ["a", "b"], None)
