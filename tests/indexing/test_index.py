"""Building indexes: sources, options, the manifest, interruptions."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import retrievalkit_testing as testing
from click.testing import CliRunner

from places import ROOT
from retrievalkit import registry, storage
from retrievalkit.cli import main
from retrievalkit.errors import ArtifactError
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.indexers.flat import Flat
from retrievalkit.indexing.open_indexes import open_index
from retrievalkit.registry import trust
from vector_folders import write


@pytest.fixture(autouse=True)
def overlap(monkeypatch):
    """A plugin with an indexer of texts, from a local file; other plugins are left out."""
    monkeypatch.setenv("RKIT_PLUGIN_FILES", str(ROOT / "tests" / "overlap_plugin.py"))
    monkeypatch.setenv("RKIT_PLUGINS", "")
    registry.default_registry.cache_clear()
    yield
    registry.default_registry.cache_clear()


def write_vectors(folder, *, corpus=None, weights=False, **entries):
    """A folder of six texts as `rkit encode` writes it."""
    vectors = np.random.default_rng(0).standard_normal((6, 4)).astype(np.float32)
    if corpus is not None:
        entries["corpus"] = {"source": str(corpus), "fingerprint": "c" * 32}
        entries["inputs"] = {"texts": storage.describe_input(corpus, "c" * 32)}
    return write(folder, vectors=vectors, weights=np.abs(vectors) if weights else None, **entries).folder


def test_the_manifest_of_an_index_of_vectors(tmp_path):
    """It records indexer, options and version, and the checkpoint and corpus of the vectors, also by relative path."""
    (tmp_path / "corpus.jsonl").write_text('{"_id": "t0", "text": "x"}\n')
    checkpoint = {"path": str(tmp_path / "stage1"), "fingerprint": "f" * 32}
    vectors = write_vectors(tmp_path / "vectors", checkpoint=checkpoint, corpus=tmp_path / "corpus.jsonl")
    build_index(vectors, output=tmp_path / "out" / "dense", options={"block": "64"})
    manifest = storage.read_manifest(tmp_path / "out" / "dense", "index")
    assert manifest["indexer"] == {
        "name": "flat",
        "options": {"block": 64, "device": "auto", "precision": "fp32", "view": "all"},
        "distribution": "retrievalkit",
        "version": manifest["versions"]["retrievalkit"],
        "indexes": "vectors",
    }
    assert manifest["options"] == {"indexer": "flat", "block": 64}
    assert manifest["counts"] == {"texts": 6, "vectors": 6}
    assert manifest["checkpoint"] == {**checkpoint, "relative_path": "../../stage1"}
    assert manifest["corpus"]["relative_path"] == "../../corpus.jsonl"
    assert manifest["inputs"]["vectors"]["path"] == str(vectors)


def test_options_from_files_are_marked(tmp_path, monkeypatch):
    """From recipes and manifests: addresses in them get no credentials."""
    vectors = write_vectors(tmp_path / "vectors")
    seen = []
    for name in ("build", "open"):
        method = getattr(Flat, name)
        monkeypatch.setattr(
            Flat, name, lambda self, *places, run=method: (seen.append(self.from_files), run(self, *places))[1]
        )
    build_index(vectors, output=tmp_path / "mine", options={"block": 64})
    open_index(tmp_path / "mine")
    open_index(tmp_path / "mine", options={"block": 32})
    every = frozenset({"block", "device", "precision", "view"})
    assert seen == [frozenset(), every, every - {"block"}]
    with trust.recipe_step():
        build_index(vectors, output=tmp_path / "theirs", options={"block": 64})
        open_index(tmp_path / "theirs", options={"block": 32})
    assert seen[3:] == [frozenset({"block"}), every]


INDEXERS = ("flat", "faiss", "sparse", "dense_sparse")


@pytest.mark.parametrize("indexer", INDEXERS)
def test_an_interrupted_build_starts_again_with_the_same_bytes(tmp_path, monkeypatch, indexer):
    """A killed build leaves no folder of its name, and its files are not reused."""
    vectors = write_vectors(tmp_path / "vectors", weights=True)
    options = {"view": "vectors"} if indexer == "faiss" else {}

    def contents(folder):
        return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    build_index(vectors, indexer=indexer, output=tmp_path / "whole", options=options)
    staging = storage.partial_folder(tmp_path / "again")
    shutil.copytree(tmp_path / "whole", staging)
    for path in staging.rglob("*.*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[:-3] + b"cut")
    (staging / "vectors-from-000000000099.faiss").write_bytes(b"left")
    build_index(vectors, indexer=indexer, output=tmp_path / "again", options=options)
    assert contents(tmp_path / "again") == contents(tmp_path / "whole")
    assert not staging.exists()


def test_the_manifest_of_an_index_of_texts(tmp_path):
    collection = testing.tiny_collection(tmp_path / "data")
    build_index(str(collection.corpus), indexer="overlap", output=tmp_path / "words", options={"lower": "false"})
    manifest = json.loads((tmp_path / "words" / "manifest.json").read_text())
    assert manifest["indexer"]["options"] == {"lower": False}
    assert manifest["indexer"]["distribution"].endswith("overlap_plugin.py")
    assert manifest["corpus"]["source"] == str(collection.corpus)
    assert manifest["corpus"]["fingerprint"] == manifest["inputs"]["corpus"]["fingerprint"]
    assert manifest["counts"] == {"texts": 42}
    assert "checkpoint" not in manifest


@pytest.mark.parametrize("indexer", INDEXERS)
def test_a_damaged_folder_is_refused(tmp_path, indexer):
    vectors = write_vectors(tmp_path / "vectors", weights=True)
    (vectors / "ids.txt").write_text("t0\n")
    with pytest.raises(ArtifactError, match=r"ids\.txt' has 3 bytes instead of 18"):
        build_index(vectors, indexer=indexer, output=tmp_path / "i")
    assert not (tmp_path / "i").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{v}"], "needs 'output'"),
        (["{v}", "--output", "{new}", "--indexer", "overlap"], "is a vectors folder. Index the corpus"),
        (["{corpus}", "--output", "{new}", "--indexer", "flat"], "is not a vectors folder. Encode the corpus"),
        (["{v}", "--output", "{new}", "--indexer", "flatt"], "did you mean 'flat'"),
        (["{v}", "--output", "{new}", "--set", "blocks=3"], "did you mean 'block'"),
        (["{corpus}", "--output", "{new}"], "pip install retrievalkit-pyserini"),
        (["{new}", "--output", "{new}", "--indexer", "overlap"], "new"),
        (["{i}", "--output", "{new}"], "is an index"),
        (["{v}", "--output", "{new}", "--check-k", "3"], "check_k has no effect without a check"),
        (["{v}", "--output", "{new}", "--ray", "local"], "Set shards"),
        (["{v}", "--output", "{new}", "--check", "--check-queries", "nowhere.tsv"], "nowhere.tsv"),
        (["{v}", "--output", "{new}", "--shards", "3"], "has 1 shard of texts, fewer than 3"),
        (["{v}", "--check"], "is a vectors folder"),
        (["{corpus}", "--output", "{new}", "--check"], "is not a vectors folder"),
        (["{damaged}", "--output", "{new}", "--indexer", "overlap"], "damaged.jsonl:2"),
        (["{i}", "--check", "--indexer", "flat"], "indexer has no effect on a check"),
        (["{i}", "--check", "--shards", "2"], "shards has no effect on a check"),
        (["{i}", "--check", "--set", "blocks=3"], "did you mean 'block'"),
        (["{i}", "--check", "--check-queries", "{queries}"], "does not record the checkpoint that encoded it"),
        (["{i}", "--add", "{v}", "--shards", "2"], "shards does not apply to changes of the index"),
        (["{i}", "--delete", "t1", "--output", "{new}"], "output does not apply to changes of the index"),
        (["{i}", "--delete", "t1", "--model", "x"], "model does not apply to changes"),
        (["{i}", "--compact", "--indexer", "flat"], "indexer does not apply to changes"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_wrong_usage_is_one_message_and_nothing_is_written(tmp_path, arguments, message):
    collection = testing.tiny_collection(tmp_path / "data")
    build_index(write_vectors(tmp_path / "v"), output=tmp_path / "i")
    (tmp_path / "damaged.jsonl").write_text('{"_id": "a", "text": "x"}\n{"_id": "a", "text": "y"}\n')
    before = sorted(tmp_path.rglob("*"))
    places = {name: tmp_path / name for name in ("v", "i", "new")} | {"damaged": tmp_path / "damaged.jsonl"}
    places |= {"corpus": collection.corpus, "queries": collection.queries}
    result = CliRunner().invoke(main, ["index", *(one.format(**places) for one in arguments)])
    assert result.exit_code == 2
    assert message in result.output
    assert "Traceback" not in result.output
    assert sorted(tmp_path.rglob("*")) == before
