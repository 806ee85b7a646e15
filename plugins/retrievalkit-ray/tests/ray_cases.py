"""Work on a Ray cluster of several nodes on this machine: results equal those of one process, after node losses too."""

from __future__ import annotations

import filecmp
import json
import subprocess
import sys
import threading
import time

import pytest
import ray
from ray import cluster_utils

import retrievalkit as rk
from retrievalkit.contracts.cluster import ClusterOptions, spread_map
from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import Example, write_examples
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import write_run
from retrievalkit.errors import DataError, InputError
from retrievalkit.indexing.build import build_index
from retrievalkit.indexing.corpus_encoding import encode
from retrievalkit.indexing.open_indexes import open_index
from retrievalkit.indexing.options import EncodingOptions
from retrievalkit.mining import sources as mining_sources
from retrievalkit.models.cross_encoder import CrossEncoder
from retrievalkit.search import pair_scoring, searcher
from retrievalkit.storage import partial_folder, write_folder, write_manifest
from sharded import KINDS, asked, assert_same, write

# Ray warns of its own settings when it copies them.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(scope="module")
def cluster():
    """A head without room for workers, and two nodes with room for one worker each."""
    cluster = cluster_utils.Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 200 << 20}
    )
    for _ in range(2):
        cluster.add_node(num_cpus=1, object_store_memory=200 << 20)
    cluster.wait_for_nodes()
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def many(tiny_collection, tmp_path):
    """A corpus of 3,000 passages."""
    rows = list(map(json.loads, tiny_collection.corpus.read_text(encoding="utf-8").splitlines()))
    path = tmp_path / "corpus.jsonl"
    with path.open("w", encoding="utf-8") as stream:
        for number in range(3_000):
            row = rows[number % len(rows)]
            stream.write(json.dumps(row | {"_id": f"p{number}", "text": f"{row['text']} " * (1 + number % 7)}) + "\n")
    return path


def differing(folder, other):
    names = sorted({path.name for place in (folder, other) for path in place.iterdir()})
    return [name for name in names if name not in filecmp.cmpfiles(folder, other, names, shallow=False)[0]]


def on(cluster, **options):
    return ClusterOptions(ray=cluster.address, **options)


def test_a_cluster_writes_the_same_vectors_after_losing_a_node(cluster, tiny_model, many, tmp_path):
    options = EncodingOptions(shard_texts=64)
    encode(tiny_model, many, side="document", output=tmp_path / "one", options=options)
    staging, lost = partial_folder(tmp_path / "cluster"), []

    def lose_a_node():
        while len(list(staging.glob("shard-*.json"))) < 5:
            time.sleep(0.05)
        cluster.remove_node(sorted(cluster.worker_nodes, key=str)[0], allow_graceful=False)
        lost.append(len(list(staging.glob("shard-*.json"))))

    thread = threading.Thread(target=lose_a_node, daemon=True)
    thread.start()
    encode(tiny_model, many, side="document", output=tmp_path / "cluster", options=options, cluster=on(cluster))
    thread.join(timeout=60)
    assert lost
    assert lost[0] < 47
    cluster.add_node(num_cpus=1, object_store_memory=200 << 20)
    assert differing(tmp_path / "one", tmp_path / "cluster") == []


def test_a_killed_command_continues_after_its_last_shard(cluster, tiny_model, many, tmp_path):
    options = EncodingOptions(shard_texts=64)
    output = tmp_path / "cluster"
    script = f"""
from retrievalkit.contracts.cluster import ClusterOptions
from retrievalkit.indexing.corpus_encoding import encode
from retrievalkit.indexing.options import EncodingOptions
encode({str(tiny_model)!r}, {str(many)!r}, side="document", output={str(output)!r},
       options=EncodingOptions(shard_texts=64), cluster=ClusterOptions(ray={cluster.address!r}))
"""
    running = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.DEVNULL)
    while len(list(partial_folder(output).glob("shard-*.json"))) < 5:
        assert running.poll() is None
        time.sleep(0.05)
    running.kill()
    running.wait()
    written = len(list(partial_folder(output).glob("shard-*.json")))
    assert written < 47
    first = {path.name: path.stat().st_mtime_ns for path in partial_folder(output).glob("vectors-0000[0-4].npy")}
    encode(tiny_model, many, side="document", output=output, options=options, cluster=on(cluster))
    assert {name: (output / name).stat().st_mtime_ns for name in first} == first
    encode(tiny_model, many, side="document", output=tmp_path / "one", options=options)
    assert differing(tmp_path / "one", output) == []


def test_re_ranking_writes_the_same_run(cluster, tiny_model, tiny_collection, tmp_path, monkeypatch):
    model = CrossEncoder.create(tiny_model, seed=1)
    with write_folder(tmp_path / "reranker") as staging:
        model.save(staging)
        write_manifest(staging, "reranker", command="rerank train", options={}, max_length=64)
    documents = [passage.id for passage in open_corpus(tiny_collection.corpus)]
    queries = read_queries(tiny_collection.queries)
    run = {query.id: [(document, 1.0 - rank / 100) for rank, document in enumerate(documents)] for query in queries}
    write_run(tmp_path / "run.trec", run)
    arguments = {
        "run": tmp_path / "run.trec",
        "queries": tiny_collection.queries,
        "corpus": tiny_collection.corpus,
    }
    monkeypatch.setattr(pair_scoring, "WINDOW", 100)
    rk.rerank(tmp_path / "reranker", output=tmp_path / "one.trec", **arguments)
    rk.rerank(tmp_path / "reranker", output=tmp_path / "cluster.trec", ray=cluster.address, **arguments)
    assert (tmp_path / "cluster.trec").read_bytes() == (tmp_path / "one.trec").read_bytes()


def test_shards_are_searched_as_one_index_after_losing_a_node(cluster, tmp_path):
    """With equal scores, for every kind of index; the remaining worker opens the shards of the lost node."""
    opened = {}
    for kind in ("flat", "flat, late interaction", "faiss", "sparse", "dense_sparse"):
        name, m, weighted, of_query = KINDS[kind]
        vectors, whole = write(tmp_path / f"{kind} vectors", m, weighted=weighted), tmp_path / f"{kind} whole"
        build_index(vectors, indexer=name, output=whole)
        workers = on(cluster) if kind == "flat" else None
        build_index(vectors, indexer=name, output=tmp_path / kind, parts=5, cluster=workers)
        opened[kind] = (open_index(whole).indexer, asked(of_query, weighted=weighted))
    spread = {kind: open_index(tmp_path / kind, cluster=on(cluster)).indexer for kind in opened}
    assert {len(index._calls) for index in spread.values()} == {2}
    for kind, (whole, queries) in opened.items():
        assert_same(spread[kind], whole, queries)
    cluster.remove_node(sorted(cluster.worker_nodes, key=str)[0], allow_graceful=False)
    for kind, (whole, queries) in opened.items():
        assert_same(spread[kind], whole, queries)
    cluster.add_node(num_cpus=1, object_store_memory=200 << 20)
    ray.shutdown()


def test_mining_writes_the_same_examples_after_losing_a_node(cluster, tiny_model, many, tmp_path, monkeypatch):
    passages = list(open_corpus(many))
    rows = [
        Example(f"q{row}", passage.text[:60] + str(row), (passage.id,), ())
        for row, passage in enumerate(passages[:300])
    ]
    write_examples(tmp_path / "train.jsonl", rows)
    encode(tiny_model, many, side="document", output=tmp_path / "vectors", options=EncodingOptions(shard_texts=512))
    build_index(tmp_path / "vectors", output=tmp_path / "index", parts=3)
    monkeypatch.setattr(searcher, "BATCH_QUERIES", 8)

    def losing(*arguments, **options):
        for number, result in enumerate(spread_map(*arguments, **options)):
            if number == 4:
                cluster.remove_node(sorted(cluster.worker_nodes, key=str)[0], allow_graceful=False)
            yield result

    monkeypatch.setattr(mining_sources, "spread_map", losing)
    places = {"corpus": many, "examples": tmp_path / "train.jsonl", "depth": 20, "negatives": 5}
    first = rk.mine_negatives(tmp_path / "index", output=tmp_path / "one.jsonl", **places)
    other = rk.mine_negatives(tmp_path / "index", output=tmp_path / "cluster.jsonl", ray=cluster.address, **places)
    cluster.add_node(num_cpus=1, object_store_memory=200 << 20)
    assert (tmp_path / "cluster.jsonl").read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert first.report == other.report


def test_results_are_in_order(cluster):
    def numbers():
        for number in range(200):
            yield number, bytes(1 << 20)

    def make():
        def function(item):
            time.sleep(0.01 * (item[0] % 3))
            return item[0]

        return function

    assert list(spread_map(make, numbers, on(cluster))) == list(range(200))


def test_the_command_raises_errors_of_workers_and_of_items(cluster):
    def wrong_items():
        yield 1
        message = "line 7 is not JSON"
        raise DataError(message, file="corpus.jsonl", line=7)

    with pytest.raises(DataError, match=r"corpus\.jsonl:7: line 7 is not JSON"):
        list(spread_map(lambda: lambda item: item, wrong_items, on(cluster)))

    def refuse(item):
        raise ValueError(item)

    with pytest.raises(ValueError, match="5") as raised:
        list(spread_map(lambda: refuse, lambda: iter([5]), on(cluster)))
    assert "in refuse" in raised.value.__notes__[0]


def test_workers_larger_than_any_machine_are_refused(cluster):
    with pytest.raises(InputError, match=r"a worker has 64 CPUs .*, but the largest machine of the cluster 1 "):
        list(spread_map(lambda: str, lambda: iter([5]), on(cluster, worker_cpus=64)))


def test_an_address_without_a_cluster_is_refused():
    with pytest.raises(InputError, match=r"No Ray cluster answers at '127\.0\.0\.1:1'"):
        list(spread_map(lambda: str, lambda: iter([5]), ClusterOptions(ray="127.0.0.1:1")))
