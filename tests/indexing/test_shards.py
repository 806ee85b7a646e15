"""Indexes built in shards return the same hits as an unsharded index, on any worker."""

from __future__ import annotations

import pickle
import signal
from types import SimpleNamespace

import pytest

from killed_processes import forks, in_another_process, kill_at_call
from retrievalkit.contracts.cluster import ClusterOptions
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError
from retrievalkit.indexing import fanout, shards
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.open_indexes import open_index
from sharded import KINDS, TEXTS, asked, assert_same, write


class InThisProcess:
    """Workers in this process, without a network."""

    def __init__(self, make, options):
        self._holders = [make() for _ in range(options.workers)]
        self.shift = 0

    def grow(self, wanted):
        return min(wanted, len(self._holders))

    def __call__(self, items):
        places = {number: (number + self.shift) % len(self._holders) for number in items}
        asked = {number: pickle.loads(pickle.dumps(item)) for number, item in items.items()}
        return {number: self._holders[places[number]](item) for number, item in asked.items()}


@pytest.fixture
def workers(monkeypatch):
    monkeypatch.setattr(
        fanout, "workers", lambda options: SimpleNamespace(stay=lambda make: InThisProcess(make, options))
    )
    return ClusterOptions(ray="nowhere", workers=3)


@pytest.mark.parametrize("kind", KINDS)
def test_shards_return_the_hits_of_an_unsharded_index_to_the_last_bit(kind, tmp_path, workers):
    name, m, weighted, of_query = KINDS[kind]
    vectors = write(tmp_path / "vectors", m, weighted=weighted)
    build_index(vectors, indexer=name, output=tmp_path / "one")
    manifest = build_index(vectors, indexer=name, output=tmp_path / "index", parts=5)
    assert manifest["counts"] == {**manifest["counts"], "texts": TEXTS, "segments": 5}
    queries = asked(of_query, weighted=weighted)
    one = open_index(tmp_path / "one").indexer
    assert_same(open_index(tmp_path / "index").indexer, one, queries)
    spread = open_index(tmp_path / "index", cluster=workers)
    assert_same(spread.indexer, one, queries)
    spread.indexer._workers.shift = 1
    assert_same(spread.indexer, one, queries)


def test_vectors_of_shards_are_linked(tmp_path):
    vectors = write(tmp_path / "vectors", 1, weighted=False)
    build_index(vectors, output=tmp_path / "index", parts=2)
    first, second = (VectorStore(tmp_path / f"index/segments/000{one}/vectors") for one in (1, 2))
    assert (len(first), len(second)) == (320, 380)
    assert (second.folder / "vectors-00005.npy").samefile(vectors / "vectors-00005.npy")
    assert [path.name for path in (tmp_path / "index").iterdir() if path.name.startswith(".")] == []


@forks
def test_a_killed_build_resumes_with_the_missing_shards(tmp_path, monkeypatch):
    vectors = write(tmp_path / "vectors", 1, weighted=False)
    index = tmp_path / "index"

    def killed():
        kill_at_call(shards, "_build", 3)
        build_index(vectors, output=index, parts=4)

    assert in_another_process(killed) == -signal.SIGKILL
    built, original = [], shards._build
    monkeypatch.setattr(shards, "_build", lambda *given: built.append(given[-1].name) or original(*given))
    manifest = build_index(vectors, output=index, parts=4)
    assert built == [".0003.vectors", ".0004.vectors"]
    monkeypatch.undo()
    assert build_index(vectors, output=tmp_path / "anew", parts=4) == manifest
    index = tmp_path / "other"
    assert in_another_process(killed) == -signal.SIGKILL
    assert build_index(vectors, output=index, parts=3)["counts"]["texts"] == TEXTS  # of another build


def test_a_worker_without_the_index_is_named(tmp_path, workers):
    vectors = write(tmp_path / "vectors", 1, weighted=False)
    build_index(vectors, output=tmp_path / "index", parts=2)
    spread = open_index(tmp_path / "index", cluster=workers).indexer
    spread._workers._holders = [fanout.Holder()]
    (tmp_path / "index/segments/0002/manifest.json").write_text("{}")
    with pytest.raises(ArtifactError, match=r"^on .*: '.*0002/manifest\.json' has"):
        spread.search(asked(1, weighted=False), 3)
    (tmp_path / "index").rename(tmp_path / "moved")
    with pytest.raises(ArtifactError, match=r"^on .*, '.*' is not an index.*on a shared disk"):
        spread.search(asked(1, weighted=False), 3)
