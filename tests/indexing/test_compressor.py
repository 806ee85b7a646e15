"""Compressors of documents: applied by encoding and to added texts, recorded, refused for other vectors."""

from __future__ import annotations

import json

import numpy as np
import pytest

import retrievalkit as rk
from retrievalkit import registry
from retrievalkit.contracts import Text
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, OptionError, PluginError, UnknownNameError
from retrievalkit.storage import read_manifest

PLUGIN = '''
from dataclasses import replace
from retrievalkit import hookimpl
from retrievalkit.contracts import Compressor

@hookimpl
def register_compressors(register):
    for name in ("first", "fewer", "narrower"):
        register(name, f"local_compressors:{name.capitalize()}")

class First(Compressor):
    """The first vectors of each document.

    Args:
        keep: Number of vectors.
    """
    def __init__(self, *, keep: int = 2):
        self.keep = keep

    def compress(self, documents):
        mask = documents.vector_mask
        return replace(documents, vectors=documents.vectors[:, : self.keep], vector_mask=mask[:, : self.keep])

class Fewer(Compressor):
    """Loses documents."""
    def compress(self, documents):
        return documents.rows(slice(0, 1))

class Narrower(Compressor):
    """Loses a dimension."""
    def compress(self, documents):
        return replace(documents, vectors=documents.vectors[..., 1:])
'''


@pytest.fixture(scope="module")
def model(tmp_path_factory, tiny_model):
    """An untrained ColBERT, and the registered compressors."""
    path = tmp_path_factory.mktemp("plugin") / "local_compressors.py"
    path.write_text(PLUGIN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RKIT_PLUGIN_FILES", str(path))
        registry.default_registry.cache_clear()
        yield rk.Retriever.load(tiny_model, pooler="colbert", precision="fp32")
    registry.default_registry.cache_clear()


PASSAGES = {f"d{row}": f"the capital of country {row} is a city" + " with people" * row for row in range(5)}


def rows_of(folder):
    return np.concatenate([np.asarray(rows) for _, rows in VectorStore(folder).shards()])


def test_vectors_are_compressed_after_encoding(model, tmp_path):
    """With the options of the call; the manifest records all options."""
    folder = model.encode_documents(PASSAGES, output=tmp_path / "v", compressor="first(keep=3)")
    expected = model.model.encode([Text("", text) for text in PASSAGES.values()], "document").vectors[:, :3]
    np.testing.assert_allclose(rows_of(folder), expected.flatten(0, 1).numpy(), rtol=1e-5, atol=1e-6)
    assert read_manifest(folder)["checkpoint"]["compressor"] == "first(keep=3)"
    other = model.encode_documents(PASSAGES, output=tmp_path / "w", compressor="first")
    assert read_manifest(other)["checkpoint"]["compressor"] == "first(keep=2)"
    assert VectorStore(other).rows == 2 * len(PASSAGES)


def test_added_texts_are_compressed_and_other_vectors_refused(model, tmp_path):
    index = rk.Index.build(PASSAGES, model, tmp_path / "index", compressor="first")
    index.add({"new": "another city"})
    assert json.loads((tmp_path / "index" / "manifest.json").read_text())["counts"]["vectors"] == 2 * 6
    for name, options in (("whole", {}), ("more", {"compressor": "first(keep=3)"})):
        model.encode_documents({"more": "a third city"}, output=tmp_path / name, **options)
        with pytest.raises(ArtifactError, match="not comparable"):
            index.add(tmp_path / name)
    model.encode_documents({"more": "a third city"}, output=tmp_path / "same", compressor="first(keep=2)")
    assert index.add(tmp_path / "same")["added"] == 1


@pytest.mark.parametrize(
    ("compressor", "error", "message"),
    [
        ("frist", UnknownNameError, "did you mean 'first'"),
        ("first(kept=2)", OptionError, "did you mean 'keep'"),
        ("first(keep=", OptionError, "not of the form"),
        ("fewer", PluginError, "compressor 'fewer' of plugin 'local_compressors'"),
        ("narrower", PluginError, "compressor 'narrower' of plugin 'local_compressors'"),
    ],
)
def test_a_wrong_compressor_is_named(model, tmp_path, compressor, error, message):
    with pytest.raises(error, match=message):
        model.encode_documents(PASSAGES, output=tmp_path / "v", compressor=compressor)


def test_queries_and_vectors_in_memory_are_not_compressed(model, tmp_path):
    with pytest.raises(OptionError, match="these are queries"):
        model.encode_queries(["lima"], output=tmp_path / "v", compressor="first")
    with pytest.raises(OptionError, match="Set output"):
        model.encode_documents(PASSAGES, compressor="first")
