"""The vectors/ folder: writing, reading, resuming after a kill, and damage."""

from __future__ import annotations

import json

import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit import storage
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.errors import ArtifactError, DataError, RetrievalkitError


def write(folder, shards, **keywords):
    """Write shards of (ids, vectors, counts, weights)."""
    folder.mkdir(parents=True, exist_ok=True)
    writer = VectorWriter(folder, **keywords)
    for number, (ids, vectors, counts, weights) in enumerate(shards):
        writer.write_shard(number, ids, vectors, counts=counts, weights=weights)
    writer.finish()
    return VectorStore(folder)


def uniform(texts, m, start=0):
    vectors = np.random.default_rng(start).standard_normal((texts, m, 4)).astype(np.float32)
    return [f"t{row}" for row in range(start, start + texts)], vectors, None, None


def ragged(counts, start=0, weights=None):
    ids, rows, *_ = uniform(sum(counts), 1, start)
    return ids[: len(counts)], rows[:, 0], np.array(counts), weights


def test_uniform_vectors_are_read_back_in_order(tmp_path):
    """Two shards with three vectors per text; equal counts need no offsets."""
    shards = [uniform(5, 3), uniform(2, 3, start=5)]
    store = write(tmp_path / "v", shards)
    assert (len(store), store.dim, store.rows, store.vectors_per_text, store.offsets) == (7, 4, 21, 3, None)
    assert store.ids == [f"t{row}" for row in range(7)]
    assert [first for first, _ in store.shards()] == [0, 5]
    for (_, array), (_, vectors, _, _) in zip(store.shards(), shards, strict=True):
        np.testing.assert_array_equal(array, vectors.reshape(-1, 4))
    np.testing.assert_array_equal(store.take([6]).vectors, shards[1][1][1])
    assert store.manifest["counts"] == {"texts": 7, "shards": 2, "vectors": 21, "dim": 4}
    same = write(tmp_path / "same", [ragged([2, 2]), ragged([2], start=2)])
    assert (same.vectors_per_text, (tmp_path / "same" / "offsets.npy").exists()) == (2, False)


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=3),
    rows=st.integers(1, 12),
)
def test_blocks_cover_every_text_once(tmp_path_factory, counts, rows):
    """Blocks contain whole texts in order, and at most `rows` vectors unless a single text has more."""
    shards, start = [], 0
    for shard_counts in counts:
        weights = scipy.sparse.random(len(shard_counts), 7, density=0.5, random_state=start, dtype=np.float32)
        shards.append(ragged(shard_counts, start=start, weights=weights))
        start += len(shard_counts)
    store = write(tmp_path_factory.mktemp("v"), shards)
    flat = [count for shard_counts in counts for count in shard_counts]
    if store.offsets is not None:
        assert store.offsets.tolist() == [0, *np.cumsum(flat)]
    assert (store.vectors_per_text is None) == (len(set(flat)) > 1)
    assert store.most_vectors == max(flat)
    vectors = np.concatenate([shard[1] for shard in shards])
    weights = scipy.sparse.vstack([shard[3] for shard in shards]).toarray()
    seen = row = 0
    for block in store.blocks(rows):
        assert block.first == seen
        assert len(block.vectors) <= rows or block.texts == 1
        np.testing.assert_array_equal(block.vectors, vectors[row : row + len(block.vectors)])
        np.testing.assert_array_equal(block.weights.toarray(), weights[seen : seen + block.texts])
        if block.starts is not None:
            assert np.diff(block.starts).tolist() == flat[seen : seen + block.texts]
        seen += block.texts
        row += len(block.vectors)
    assert (seen, row) == (start, len(vectors))


def test_only_shards_of_the_same_encoding_are_kept(tmp_path):
    """Other files are not removed."""
    (partial := tmp_path / ".v.partial").mkdir()
    VectorWriter(partial, identity={"model": "a"}).write_shard(0, *uniform(2, 1)[:2])
    assert VectorWriter(partial, identity={"model": "a"}).completed_shards() == ({0}, None)
    assert VectorWriter(partial, identity={"model": "b"}).completed_shards() == (set(), None)
    assert not list(partial.glob("*.npy"))
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ArtifactError, match="is not empty"):
        VectorWriter(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


def with_value(value):
    vectors = uniform(3, 2)[1]
    vectors[1, 1, 2] = value
    return vectors


THREE, ROWS = ["a", "b", "c"], np.zeros((3, 2), np.float32)


@pytest.mark.parametrize(
    ("ids", "vectors", "more", "error", "message"),
    [
        *(
            ([identifier], ROWS[:1, None], {}, DataError, "an id may not be empty")
            for identifier in ("a\nb", "a\tb", "a\rb", "")
        ),
        *((THREE, with_value(number), {}, RetrievalkitError, "'b'") for number in (np.nan, np.inf)),
        *(
            (THREE, None, {"weights": np.array([[1], [2], [number]])}, RetrievalkitError, "'c'")
            for number in (np.nan, np.inf)
        ),
        *(
            (THREE, ROWS, {"counts": np.array(counts)}, ValueError, "do not fit")
            for counts in ([1, 1], [1, 1, 2], [3, 0, 0])
        ),
        ([], np.zeros((0, 1, 2), np.float32), {}, ValueError, "has no text"),
    ],
)
def test_wrong_shards_are_refused(tmp_path, ids, vectors, more, error, message):
    writer = VectorWriter(tmp_path)
    with pytest.raises(error, match=message):
        writer.write_shard(0, ids, vectors, **more)
    with pytest.raises(ValueError, match="there is no shard"):
        writer.finish()


def test_inconsistent_files_are_refused(tmp_path):
    write(tmp_path / "v", [uniform(5, 3)])
    (tmp_path / "v" / "ids.txt").write_text("a\nb\n")
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    manifest["files"]["ids.txt"] = storage.describe_file(tmp_path / "v" / "ids.txt")
    (tmp_path / "v" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="damaged"):
        VectorStore(tmp_path / "v")


def test_a_linked_folder_is_equal_and_shares_its_files(tmp_path):
    store = write(tmp_path / "v", [ragged([1, 3])])
    store.link(tmp_path / "w")
    for path in (tmp_path / "v").iterdir():
        assert path.samefile(tmp_path / "w" / path.name)
    assert VectorStore(tmp_path / "w").fingerprint == store.fingerprint
