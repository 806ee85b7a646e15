"""The vectors/ folder: what is written is read back, resumes after a kill, and damage is found."""

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
    return writer


def uniform(texts, m, dim=4, start=0, seed=0):
    random = np.random.default_rng(seed + start)
    ids = [f"t{row}" for row in range(start, start + texts)]
    return ids, random.standard_normal((texts, m, dim)).astype(np.float32), None, None


def ragged(counts, dim=4, start=0, seed=0, weights=None):
    random = np.random.default_rng(seed + start)
    ids = [f"t{row}" for row in range(start, start + len(counts))]
    return ids, random.standard_normal((sum(counts), dim)).astype(np.float32), np.array(counts), weights


def contents(folder):
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def test_uniform_vectors_come_back_in_order(tmp_path):
    """Two shards of three vectors a text are read with the first text's row of each."""
    shards = [uniform(5, 3), uniform(2, 3, start=5)]
    write(tmp_path / "v", shards)
    store = VectorStore(tmp_path / "v")
    assert (len(store), store.dim, store.rows, store.vectors_per_text, store.offsets) == (7, 4, 21, 3, None)
    assert store.ids == [f"t{row}" for row in range(7)]
    assert [first for first, _ in store.shards()] == [0, 5]
    for (_, array), (_, vectors, _, _) in zip(store.shards(), shards, strict=True):
        np.testing.assert_array_equal(array, vectors.reshape(-1, 4))
    np.testing.assert_array_equal(store.take([6]).vectors, shards[1][1][1])
    assert store.manifest["counts"] == {"texts": 7, "shards": 2, "vectors": 21, "dim": 4}


def test_a_varying_number_of_vectors_has_offsets_over_the_whole_folder(tmp_path):
    write(tmp_path / "v", [ragged([1, 3]), ragged([2, 2, 1], start=2)])
    store = VectorStore(tmp_path / "v")
    assert store.offsets.tolist() == [0, 1, 4, 6, 8, 9]
    assert (store.vectors_per_text, store.most_vectors) == (None, 3)
    assert len(store.take([3]).vectors) == 2
    write(tmp_path / "same", [ragged([2, 2]), ragged([2], start=2)])
    assert not (tmp_path / "same" / "offsets.npy").exists()
    assert VectorStore(tmp_path / "same").vectors_per_text == 2


@settings(max_examples=30, deadline=None)
@given(
    counts=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=3),
    rows=st.integers(1, 12),
)
def test_blocks_cover_every_text_once(tmp_path_factory, counts, rows):
    """Blocks hold whole texts, in order, and at most the rows asked for unless one text has more."""
    folder = tmp_path_factory.mktemp("v")
    shards, start = [], 0
    for one in counts:
        weights = scipy.sparse.random(len(one), 7, density=0.5, random_state=start, dtype=np.float32)
        shards.append(ragged(one, start=start, weights=weights))
        start += len(one)
    write(folder, shards)
    seen, flat = 0, [count for one in counts for count in one]
    vectors = np.concatenate([shard[1] for shard in shards])
    weights = scipy.sparse.vstack([shard[3] for shard in shards]).toarray()
    row = 0
    for block in VectorStore(folder).blocks(rows):
        assert block.first == seen
        assert len(block.vectors) <= rows or block.texts == 1
        np.testing.assert_array_equal(block.vectors, vectors[row : row + len(block.vectors)])
        np.testing.assert_array_equal(block.weights.toarray(), weights[seen : seen + block.texts])
        if block.starts is not None:
            assert np.diff(block.starts).tolist() == flat[seen : seen + block.texts]
        seen += block.texts
        row += len(block.vectors)
    assert (seen, row) == (start, len(vectors))


def test_a_killed_encoding_goes_on_and_ends_with_the_same_bytes(tmp_path):
    """Shards that are whole are kept; the folder is equal to one written without a break."""
    shards = [ragged([1, 2]), ragged([3], start=2), ragged([1, 1], start=3)]
    write(tmp_path / "whole", shards, identity={"model": "a"})
    partial = tmp_path / ".broken.partial"
    partial.mkdir()
    writer = VectorWriter(partial, identity={"model": "a"})
    for number in range(2):
        writer.write_shard(number, shards[number][0], shards[number][1], counts=shards[number][2])
    (partial / "vectors-00002.npy").write_bytes(b"half a file")
    writer = VectorWriter(partial, identity={"model": "a"})
    assert writer.completed_shards() == ({0, 1}, None)
    writer.write_shard(2, shards[2][0], shards[2][1], counts=shards[2][2])
    writer.finish()
    assert contents(partial) == contents(tmp_path / "whole")
    assert set(contents(partial)) == {"manifest.json", "ids.txt", "offsets.npy"} | {
        f"vectors-0000{number}.npy" for number in range(3)
    }


def test_what_another_model_left_is_not_gone_on_with(tmp_path):
    partial = tmp_path / ".v.partial"
    partial.mkdir()
    VectorWriter(partial, identity={"model": "a"}).write_shard(0, *uniform(2, 1)[:2])
    assert VectorWriter(partial, identity={"model": "b"}).completed_shards() == (set(), None)
    assert not list(partial.glob("*.npy"))


def test_a_folder_with_something_else_in_it_is_left_alone(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(ArtifactError, match="is not empty"):
        VectorWriter(tmp_path)
    assert (tmp_path / "thesis.txt").exists()


@pytest.mark.parametrize("identifier", ["a\nb", "a\tb", "a\rb", ""])
def test_an_id_that_cannot_stand_on_a_line_is_refused(tmp_path, identifier):
    with pytest.raises(DataError, match="an id may not be empty or contain tabs"):
        VectorWriter(tmp_path).write_shard(0, [identifier], np.zeros((1, 1, 2), np.float32))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(tmp_path, value):
    ids, vectors, _, _ = uniform(3, 2)
    vectors[1, 1, 2] = value
    with pytest.raises(RetrievalkitError, match="'t1'"):
        VectorWriter(tmp_path).write_shard(0, ids, vectors)
    with pytest.raises(RetrievalkitError, match="'t2'"):
        VectorWriter(tmp_path).write_shard(0, ids, None, weights=np.array([[1], [2], [value]]))


def test_parts_that_do_not_fit_together_are_refused(tmp_path):
    writer = VectorWriter(tmp_path)
    for counts in ([1, 1], [1, 1, 2], [3, 0, 0]):
        with pytest.raises(ValueError, match="do not fit"):
            writer.write_shard(0, ["a", "b", "c"], np.zeros((3, 2), np.float32), counts=np.array(counts))
    with pytest.raises(ValueError, match="has no text"):
        writer.write_shard(0, [], np.zeros((0, 1, 2), np.float32))
    with pytest.raises(ValueError, match="there is no shard"):
        writer.finish()


def test_files_that_do_not_fit_each_other_are_found(tmp_path):
    write(tmp_path / "v", [uniform(5, 3)])
    (tmp_path / "v" / "ids.txt").write_text("a\nb\n")
    manifest = json.loads((tmp_path / "v" / "manifest.json").read_text())
    manifest["files"]["ids.txt"] = storage.describe_files(tmp_path / "v")["ids.txt"]
    (tmp_path / "v" / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match="damaged"):
        VectorStore(tmp_path / "v")


def test_a_linked_folder_is_the_same_and_outlives_the_first(tmp_path):
    """Files share their space; removing the source does not harm the link."""
    write(tmp_path / "v", [ragged([1, 3])])
    VectorStore(tmp_path / "v").link(tmp_path / "w")
    assert contents(tmp_path / "v") == contents(tmp_path / "w")
    assert (tmp_path / "w" / "ids.txt").stat().st_ino == (tmp_path / "v" / "ids.txt").stat().st_ino
    assert VectorStore(tmp_path / "w").fingerprint == VectorStore(tmp_path / "v").fingerprint
