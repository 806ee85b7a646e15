"""Vectors in an object store: shards are uploaded when they are complete, and read by byte range."""

from __future__ import annotations

import numpy as np
import pytest

from retrievalkit import storage
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.data.vectors.ranges import read_ahead
from retrievalkit.errors import ArtifactError

_URL = "memory://store/vectors"


def shard(number, *, varied=False):
    """Ids, rows and counts of a shard of five texts."""
    random = np.random.default_rng(number)
    counts = random.integers(1, 4, 5) if varied else np.full(5, 2)
    rows = random.standard_normal((counts.sum(), 4)).astype(np.float32)
    return [f"t{number}-{text}" for text in range(5)], rows, counts


def write(folder, numbers, *, store=None, identity="one", finish=True, varied=False):
    """Write shards; `finish=False` stands for a killed encoding. Return the shards that were complete before."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = VectorWriter(folder, identity={"of": identity}, store=store)
    complete = writer.completed_shards()[0]
    for number in numbers:
        ids, rows, counts = shard(number, varied=varied)
        writer.write_shard(number, ids, rows, counts=counts)
    if finish:
        writer.finish()
    return complete


def send(folder, numbers, *, identity="one", finish=True, overwrite=False, varied=False):
    """Write shards to the store; the local folder is lost."""
    with storage.sent(_URL, overwrite=overwrite) as place:
        store = storage.store_of(place)
        complete = write(folder / ".x.partial", numbers, store=store, identity=identity, finish=finish, varied=varied)
        if finish:
            (folder / ".x.partial").rename(place)
    return complete


def test_a_writer_continues_after_the_shards_in_the_store(memory, tmp_path):
    assert send(tmp_path / "a", [0, 2], finish=False) == frozenset()
    assert not list(tmp_path.rglob("vectors-*.npy"))
    memory.rm("/store/vectors/vectors-00002.npy")
    assert send(tmp_path / "b", [1, 2]) == {0}
    write(tmp_path / "here", [0, 1, 2])
    names = {path.removeprefix("/store/vectors/"): memory.cat_file(path) for path in memory.find("/store/vectors")}
    assert names == {path.name: path.read_bytes() for path in (tmp_path / "here").iterdir()}


def test_shards_of_other_texts_are_not_reused(memory, tmp_path):
    send(tmp_path / "a", [0, 1], finish=False)
    assert send(tmp_path / "b", [0, 1], identity="two") == frozenset()
    # A folder that is being replaced is not mistaken for the old folder.
    send(tmp_path / "c", [0], identity="three", finish=False, overwrite=True)
    assert not memory.exists("/store/vectors/manifest.json")


@pytest.mark.parametrize("varied", [False, True])
def test_rows_in_a_store_equal_rows_in_a_folder(varied, memory, tmp_path):
    write(tmp_path / "here", [0, 1, 2], varied=varied)
    send(tmp_path / "a", [0, 1, 2], varied=varied)
    here, there = VectorStore(tmp_path / "here"), VectorStore(storage.local(_URL))
    assert (there.rows, there.vectors_per_text, list(there.ids)) == (here.rows, here.vectors_per_text, list(here.ids))
    for rows in (1, 4, 100):
        for block, expected in zip(there.blocks(rows), here.blocks(rows), strict=True):
            np.testing.assert_array_equal(block.vectors, expected.vectors)
    for texts in ([3, 3, 14, 0], [7], [0, 14]):
        np.testing.assert_array_equal(there.take(np.array(texts)).vectors, here.take(np.array(texts)).vectors)
    there.link(tmp_path / "copy")
    assert VectorStore(tmp_path / "copy").fingerprint == here.fingerprint
    assert not list((tmp_path / "cache").rglob("*vectors-*.npy"))


def test_numbers_that_are_not_finite_and_wrong_checksums_are_refused(memory, tmp_path, monkeypatch):
    send(tmp_path / "a", [0])
    store, name = VectorStore(storage.local(_URL)), "/store/vectors/vectors-00000.npy"
    data = memory.cat_file(name)
    memory.pipe_file(name, data[:-4] + np.float32(np.nan).tobytes())
    with pytest.raises(ArtifactError, match="not finite"):
        store.block(4, 5)
    memory.pipe_file(name, data[:-4] + np.float32(1).tobytes())
    store.block(4, 5)
    with pytest.raises(ArtifactError, match="its checksum is not the one recorded"):
        store.block(0, 5)
    monkeypatch.setenv(storage.VERIFY, "1")
    with pytest.raises(ArtifactError, match="its checksum is not the one recorded"):
        VectorStore(storage.local(_URL))


def test_items_are_read_ahead():
    started = []

    def items():
        for number in range(3):
            started.append(number)
            yield number

    reading = read_ahead(items())
    assert [next(reading), *reading] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        list(read_ahead(1 // number for number in (1, 0)))
    assert started == [0, 1, 2]
