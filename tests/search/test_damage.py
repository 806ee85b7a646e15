"""Damaged and crafted indexes and checkpoints: refused by name, or without effect."""

from __future__ import annotations

import os
import random
import re
import shutil
import zipfile
from contextlib import suppress

import numpy as np
import pytest
import scipy.sparse
import torch
from click.testing import CliRunner

from damage import check_damage
from retrievalkit import storage
from retrievalkit.cli.main import main as rkit
from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorWriter
from retrievalkit.errors import ArtifactError, RetrievalkitError
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.corpus_encoding import encode
from retrievalkit.indexing.open_indexes import open_index
from retrievalkit.indexing.options import EncodingOptions
from retrievalkit.models.retriever import Retriever
from retrievalkit.search.searcher import Searcher

TEXTS, DIM, TERMS = 40, 6, 30
INDEXERS = ("flat", "faiss", "sparse", "dense_sparse")
OPTIONS = {"faiss": {"view": "vectors", "shard_vectors": 30}}


@pytest.fixture(scope="module")
def indexes(tmp_path_factory):
    """An index of each built-in indexer over the same texts, and an "other NAME" over other texts."""
    folder = tmp_path_factory.mktemp("indexes")
    for seed, prefix in enumerate(("", "other ")):
        write_vectors(folder / f"{prefix}vectors", seed)
        for name in INDEXERS:
            output = folder / f"{prefix}{name}"
            build_index(folder / f"{prefix}vectors", indexer=name, output=output, options=OPTIONS.get(name))
    return folder


def write_vectors(folder, seed):
    draw = np.random.default_rng(seed)
    folder.mkdir()
    writer = VectorWriter(folder)
    for number in range(2):
        counts = draw.integers(1, 4, TEXTS // 2)
        vectors = draw.standard_normal((counts.sum(), DIM)).astype(np.float32)
        weights = scipy.sparse.random(TEXTS // 2, TERMS, 0.3, "csr", dtype=np.float32, random_state=10 * seed + number)
        ids = [f"t{number}-{row}" for row in range(TEXTS // 2)]
        writer.write_shard(number, ids, vectors, counts=counts, weights=weights)
    writer.finish()


def searched(folder):
    index, draw = open_index(folder), torch.Generator().manual_seed(0)
    vectors = torch.randn(3, 2, DIM, generator=draw)
    weights = torch.rand(3, TERMS, generator=draw)
    queries = Representation(vectors, None, weights)

    class Asked(list):
        def vector_for(self, _):
            return None

        def encoded_for(self, _):
            return queries

    return [(ids, scores.tolist()) for ids, scores in index.rankings(Asked([1, 2, 3]), 10)]


@pytest.mark.parametrize("name", INDEXERS)
def test_damage_is_found_when_an_index_is_verified(indexes, tmp_path, name):
    check_damage(indexes / name, indexes / f"other {name}", tmp_path)


def signed(folder):
    """List the current files of an index in its manifest, as the author of a crafted index would."""
    for place in (folder / "vectors", folder):
        if place.is_dir():
            storage.add_to_manifest(place, files=storage.describe_files(place))


def array(values, dtype="<i4"):
    return lambda path: np.save(path, np.array(values, dtype=dtype))


def header(old, new):
    def change(path):
        content = path.read_bytes()
        found = re.search(old, content)
        path.write_bytes(content.replace(found[0], new.ljust(len(found[0])), 1))

    return change


def of(change):
    return lambda path: np.save(path, change(np.load(path)))


beyond = of(lambda values: values + np.int32(2**30))
below = of(lambda values: values - np.int32(50))
falling = of(lambda values: np.concatenate([values[:1], values[1:-1][::-1], values[-1:]]))
too_long = of(lambda values: np.concatenate([values[:-1], values[-1:] + 2**28]))
not_a_number = of(lambda values: np.full_like(values, np.nan))
too_large = of(lambda values: np.full_like(values, 3e38))


def columns_beyond(path):
    with zipfile.ZipFile(path) as archive:
        members = {name: np.load(archive.open(name)) for name in archive.namelist()}
    members["indices.npy"][-1] = 2**30
    with zipfile.ZipFile(path, "w") as archive:
        for name, values in members.items():
            with archive.open(name, "w") as stream:
                np.lib.format.write_array(stream, values)


POSTINGS = [
    ("postings/texts-00000.npy", beyond),
    ("postings/texts-00000.npy", below),
    ("postings/texts-00000.npy", header(rb"\((\d+),\)", b"(-9,)")),
    ("postings/texts-00000.npy", header(rb"'<i4'", b"'<f4'")),
    ("postings/terms-00000.npy", falling),
    ("postings/terms-00000.npy", too_long),
    ("postings/terms-00000.npy", array([0])),
    ("postings/weights-00000.npy", not_a_number),
    ("postings/weights-00000.npy", header(rb"'<f4'", b"'<f2'")),
    ("postings/postings.json", lambda path: path.write_text('{"parts": [-40], "terms": 30, "postings": 5}')),
    ("postings/postings.json", lambda path: path.write_text('{"parts": [[40]], "terms": "30", "postings": null}')),
    ("postings/postings.json", lambda path: path.write_text("[" * 100_000)),
]
VECTORS = [
    ("vectors/vectors-00000.npy", header(rb"\(\d+, 6\)", b"(-1, 6)")),
    ("vectors/vectors-00000.npy", header(rb", 6\), \} +", b", 99999999999999), }")),
    ("vectors/vectors-00000.npy", header(rb"'<f4'", b"'<i4'")),
    ("vectors/vectors-00000.npy", header(rb"'<f4'", b"'|O'")),
    ("vectors/vectors-00000.npy", not_a_number),
    ("vectors/vectors-00000.npy", too_large),
    ("vectors/offsets.npy", falling),
    ("vectors/offsets.npy", too_long),
    ("vectors/offsets.npy", of(lambda values: values.astype(np.float64))),
    ("vectors/ids.txt", lambda path: path.write_bytes(path.read_bytes()[:-1])),
    ("vectors/ids.txt", lambda path: path.write_text("\n" * TEXTS)),
    ("vectors/ids.txt", lambda path: path.write_text(path.read_text(), encoding="utf-16")),
]
CRAFTED = [
    *[("sparse", file, change) for file, change in [*POSTINGS, ("ids.txt", lambda path: path.write_text("t0\n"))]],
    *[("dense_sparse", file, change) for file, change in [*POSTINGS, *VECTORS]],
    *[("flat", file, change) for file, change in [*VECTORS, ("vectors/lexical-00001.npz", columns_beyond)]],
    *[("faiss", file, change) for file, change in VECTORS],
]


@pytest.mark.parametrize(("name", "file", "change"), CRAFTED)
def test_a_crafted_index_is_refused(indexes, tmp_path, name, file, change):
    """Its checksums are right, but nothing is read outside an array, and no score is NaN."""
    shutil.copytree(indexes / name, tmp_path / "index")
    change(tmp_path / "index" / file)
    signed(tmp_path / "index")
    if change in (not_a_number, too_large):
        # Texts whose scores are NaN or -inf rank last, or are not hits.
        with suppress(ArtifactError):
            assert all(np.isfinite(scores).all() for _, scores in searched(tmp_path / "index"))
    else:
        with pytest.raises(ArtifactError, match=re.escape(str(tmp_path))):
            searched(tmp_path / "index")


@pytest.mark.parametrize("flags", [[], ["--verify"]])
def test_verify_reads_all_bytes(indexes, tmp_path, flags):
    """Without --verify, files older than their manifest are not read; the exit code is 2 either way."""
    shutil.copytree(indexes / "sparse", tmp_path / "index")
    path = tmp_path / "index" / "postings" / "weights-00000.npy"
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    os.utime(path, (0, 0))
    result = CliRunner().invoke(rkit, ["search", str(tmp_path / "index"), "--query", "a", *flags])
    assert result.exit_code == 2
    assert ("weights-00000.npy' was altered" in result.output) == bool(flags)
    assert not storage.verifies()


def test_faiss_files_with_other_vectors_are_refused(indexes, tmp_path):
    index = tmp_path / "index"
    shutil.copytree(indexes / "faiss", index)
    first, second = sorted(index.glob("*.faiss"))[:2]
    shutil.copy(second, first)
    signed(index)
    with pytest.raises(ArtifactError, match="faiss files do not hold"):
        searched(index)


@pytest.fixture(scope="module")
def trained(tiny_model, tiny_collection, tmp_path_factory):
    folder = tmp_path_factory.mktemp("trained")
    (folder / "checkpoint").mkdir()
    Retriever.create(tiny_model).save(folder / "checkpoint")
    files = storage.describe_files(folder / "checkpoint")
    fingerprint = storage.fingerprint_files(files)
    storage.write_manifest(
        folder / "checkpoint", "checkpoint", command="train", options={}, fingerprint=fingerprint, files=files
    )
    options = EncodingOptions(precision="fp32")
    encode(folder / "checkpoint", tiny_collection.corpus, side="document", output=folder / "vectors", options=options)
    build_index(folder / "vectors", output=folder / "index")
    return folder


def test_a_damaged_checkpoint_encodes_no_query(trained, tmp_path):
    """Searching with random weights would return random hits."""
    shutil.copytree(trained / "checkpoint", tmp_path / "whole")
    Searcher([trained / "index"], model=tmp_path / "whole")
    files = {path for path in (trained / "checkpoint").rglob("*") if path.is_file()}
    for seed, path in enumerate(sorted(files - {trained / "checkpoint" / storage.MANIFEST})):
        folder = tmp_path / str(seed)
        shutil.copytree(trained / "checkpoint", folder)
        damaged, draw = folder / path.relative_to(trained / "checkpoint"), random.Random(seed)
        content = bytearray(damaged.read_bytes())
        for _ in range(64):
            content[draw.randrange(len(content))] = draw.randrange(256)
        damaged.write_bytes(content)
        with pytest.raises(RetrievalkitError, match=re.escape(str(damaged))):
            Searcher([trained / "index"], model=folder)
        with pytest.raises(ArtifactError, match=re.escape(str(damaged))):
            Retriever.load(folder)


def test_another_models_weights_with_their_own_checksums_are_refused(trained, tmp_path):
    """The fingerprint is computed from the files, not read from the manifest."""
    shutil.copytree(trained / "checkpoint", tmp_path / "other")
    weights = tmp_path / "other" / "encoder" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4] + b"nois")
    storage.add_to_manifest(tmp_path / "other", files=storage.describe_files(tmp_path / "other"))
    with pytest.raises(ArtifactError, match="its fingerprint is"):
        Searcher([trained / "index"], model=tmp_path / "other")
