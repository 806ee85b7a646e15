"""Folders of strangers through the commands: a manifest neither reaches out of its folder nor ends in a traceback."""

import json
import random
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from click.testing import CliRunner

from retrievalkit import artifacts
from retrievalkit.cli import main
from retrievalkit.data.vectors import VectorWriter

DEEP = json.loads("[" * 300 + "]" * 300)
VALUES = (None, -1, 2**70, 1e300, "x", "../x", [], {}, True, DEEP)


def rkit(*words):
    return CliRunner().invoke(main, list(map(str, words)))


def write_vectors(folder, *, weights):
    folder.mkdir()
    writer = VectorWriter(folder)
    vectors = np.random.default_rng(0).standard_normal((6, 1, 4)).astype(np.float32)
    writer.write_shard(0, [f"t{row}" for row in range(6)], vectors, weights=np.abs(vectors[:, 0]) if weights else None)
    counts = writer.finish()
    inputs = {"texts": artifacts.describe_input("corpus", "c" * 32)}
    artifacts.write_manifest(
        folder, "vectors", command="encode", options={}, inputs=inputs, counts=counts, files=writer.checksums()
    )


@pytest.mark.parametrize("indexer", ["flat", "faiss", "dense_sparse", "sparse", "lucene_hnsw", "milvus"])
@pytest.mark.parametrize("name", ["../../../.bashrc", "{home}/.bashrc", "sub/../../../../.bashrc", "manifest.json"])
def test_an_index_of_a_strangers_vectors_writes_to_its_own_folder_alone(tmp_path, indexer, name, fresh_registry):
    """The names in a manifest were copied to the index, wherever they led."""
    if indexer in ("lucene_hnsw", "milvus"):
        pytest.importorskip({"lucene_hnsw": "retrievalkit_pyserini", "milvus": "retrievalkit_milvus"}[indexer])
    (tmp_path / "downloads").mkdir()
    folder, home = tmp_path / "downloads" / "vectors", tmp_path / "home"
    (home / "work" / "indexes").mkdir(parents=True)
    write_vectors(folder, weights=indexer in ("dense_sparse", "sparse"))
    manifest = json.loads((folder / "manifest.json").read_text())
    target = folder / name.format(home=home)
    if not target.exists() and "sub" not in name:
        target.write_text("payload")
    entry = {"bytes": 7, "blake2b": artifacts.fingerprint_file(target) if target.exists() else "0" * 32}
    manifest["files"][name.format(home=home)] = entry
    (folder / "manifest.json").write_text(json.dumps(manifest))
    before = sorted(path for path in tmp_path.rglob("*"))
    ran = rkit("index", folder, "--indexer", indexer, "--output", home / "work" / "indexes" / "index")
    assert (ran.exit_code, ran.stderr.count("\n")) == (2, 1), ran.stderr
    assert "in files should be the" in ran.stderr
    assert sorted(path for path in tmp_path.rglob("*")) == before


def test_a_link_among_the_vectors_does_not_lead_out(tmp_path):
    """The bytes of a secret file would become part of an index that is handed on."""
    write_vectors(tmp_path / "vectors", weights=False)
    (tmp_path / "secret").write_bytes((tmp_path / "vectors" / "ids.txt").read_bytes())
    (tmp_path / "vectors" / "ids.txt").unlink()
    (tmp_path / "vectors" / "ids.txt").symlink_to("../secret")
    ran = rkit("index", tmp_path / "vectors", "--output", tmp_path / "index")
    assert (ran.exit_code, "ids.txt' lies outside of its folder" in ran.stderr) == (2, True)
    assert not (tmp_path / "index").exists()


@pytest.fixture(scope="module")
def folders(tmp_path_factory, tiny_model, tiny_collection):
    """A folder of each kind, made by the commands from a tiny model."""
    root = tmp_path_factory.mktemp("folders")
    small = root / "corpus.jsonl"
    small.write_text("".join(tiny_collection.corpus.read_text().splitlines(keepends=True)[:5]))
    for words in (
        ("encode", tiny_model, small, "--output", root / "vectors"),
        ("index", root / "vectors", "--output", root / "index"),
        ("index", root / "vectors", "--indexer", "faiss", "--output", root / "faiss"),
    ):
        assert rkit(*words).exit_code == 0
    from retrievalkit.model.retriever import Retriever

    (root / "checkpoint").mkdir()
    Retriever.create(tiny_model, pooler="mean").save(root / "checkpoint")
    artifacts.write_manifest(
        root / "checkpoint",
        "checkpoint",
        command="train",
        options={},
        inputs={"model": artifacts.describe_input(tiny_model, "f" * 32)},
        fingerprint="f" * 32,
    )
    return root


def mutations(value, place=()) -> Iterator[tuple[str, object]]:
    """The value with each of its entries replaced by each of `VALUES`, or dropped."""
    for key in value if isinstance(value, dict) else ():
        rest = {name: inner for name, inner in value.items() if name != key}
        label = ".".join((*place, key))
        yield f"{label} dropped", rest
        for other in VALUES:
            yield f"{label} = {str(other)[:20]}", {**rest, key: other}
        for inner, changed in mutations(value[key], (*place, key)):
            yield inner, {**rest, key: changed}


@pytest.mark.parametrize(
    ("changed", "command"),
    [
        ("vectors/manifest.json", ["index", "{}/vectors", "--output", "{}/out"]),
        ("index/manifest.json", ["search", "{}/index", "--query", "capital", "--k", "2"]),
        ("index/vectors/manifest.json", ["search", "{}/index", "--query", "capital", "--k", "2"]),
        ("faiss/manifest.json", ["search", "{}/faiss", "--query", "capital", "--k", "2"]),
        ("checkpoint/manifest.json", ["encode", "{}/checkpoint", "{}/corpus.jsonl", "--output", "{}/out"]),
        ("checkpoint/retrievalkit.json", ["encode", "{}/checkpoint", "{}/corpus.jsonl", "--output", "{}/out"]),
        ("checkpoint/encoder/config.json", ["encode", "{}/checkpoint", "{}/corpus.jsonl", "--output", "{}/out"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
@pytest.mark.parametrize("count", [12, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_no_value_of_a_description_ends_in_a_traceback(folders, tmp_path, changed, command, count):
    """Each is used, or is one message; with other values everywhere, one at a time."""
    shutil.copytree(folders, tmp_path, dirs_exist_ok=True)
    path = tmp_path / changed
    failed = []
    tried = list(mutations(json.loads(path.read_text())))
    for label, value in tried if count is None else random.Random(11).sample(tried, count):
        path.write_text(json.dumps(value))
        ran = rkit(*(word.format(tmp_path) for word in command))
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        lines = [line for line in ran.stderr.splitlines() if not line.startswith("Note: ")]
        expected = ran.exit_code == 0 or (ran.exit_code == 2 and len(lines) == 1 and len(lines[0]) < 1_000)
        if not expected:
            failed.append(f"{label}: exit {ran.exit_code}, {ran.exception!r} {ran.stderr[:300]}")
    assert not failed, "\n".join(failed)
