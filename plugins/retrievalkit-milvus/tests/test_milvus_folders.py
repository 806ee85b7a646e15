"""Indexes in folders and on servers: moving, replacing, failed builds, unreachable servers, mistakes."""

import logging
import sys
import time

import pytest
from milvus_cases import assert_hits, draw, opened, serving
from pymilvus import MilvusClient
from retrievalkit_milvus import layout
from retrievalkit_milvus import server as connections
from retrievalkit_milvus.indexer import Milvus

from retrievalkit import registry
from retrievalkit.errors import ArtifactError, InputError, MissingDependencyError, OptionError, RetrievalkitError

UNREACHABLE = "http://127.0.0.1:9"


@pytest.fixture(scope="module")
def case():
    return draw(30, dim=6, m=3, varied=True, vocabulary=20)


@pytest.fixture(scope="module")
def folder(build, case):
    return build(case)


@pytest.fixture
def client(server):
    client = MilvusClient(server, grpc_options=connections.GRPC_OPTIONS)
    yield client
    client.close()


def test_searching_changes_no_file(folder, case):
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    index = opened(folder)
    index.search(case.queries, 3)
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    (view,) = index._opened._connection.close.peek()[2][2:]
    assert view.exists()
    del index
    assert not view.exists()


def test_nothing_is_printed_or_logged(folder, case, capfd, caplog):
    with caplog.at_level(logging.DEBUG):
        index = opened(folder)
        index.search(case.queries, 3)
        index._opened._connection.client.drop_collection(index._opened.layout.collection)
        with pytest.raises(RetrievalkitError, match="does not exist"):
            index.search(case.queries, 3)
        with pytest.raises(InputError):
            Milvus(uri=UNREACHABLE).open(folder)
    assert capfd.readouterr() == ("", "")
    assert not [record for record in caplog.records if "milvus" in record.name.lower()]


def test_an_index_moves_from_a_folder_to_a_server(build, case, server):
    folder, moved = build(case), build(case, uri=server)
    assert {path.name for path in moved.iterdir()} == {"ids.txt", "milvus.json", "offsets.npy"}
    assert_hits(opened(moved, uri=server).search(case.queries, 9), case.expected(9))
    assert_hits(opened(folder, uri=server).search(case.queries, 9), case.expected(9))
    with pytest.raises(ArtifactError, match="refers to a Milvus server"):
        opened(moved)


def test_existing_collections_are_reused_or_refused(build, client, server, store, tmp_path):
    """With the same contents a collection is reused; with other contents it needs the option `replace`."""
    case, other = draw(12, dim=4, seed=21), draw(14, dim=4, seed=22)
    options = {"uri": server, "collection": "kept"}
    build(case, **options)
    # Other programs can search the collection too.
    (hits,) = client.search("kept", [case.queries.vectors[0, 0].tolist()], limit=3, output_fields=["id"])
    assert [hit["entity"]["id"] for hit in hits] == case.expected(3)[0][0]
    inserted = client.get_collection_stats("kept")
    again = build(case, **options)
    assert client.get_collection_stats("kept") == inserted
    with pytest.raises(InputError, match=r"'kept' with other contents.*--set replace=true"):
        Milvus(**options).build(store(other), tmp_path)
    assert not list(tmp_path.iterdir())
    assert_hits(opened(again, **options).search(case.queries, 5), case.expected(5))
    replaced = build(other, **options, replace=True)
    assert_hits(opened(replaced, **options).search(other.queries, 5), other.expected(5))
    with pytest.raises(ArtifactError, match=r"has 14 rows of '.*', instead of 12"):
        opened(again, **options)
    client.drop_collection("kept")
    with pytest.raises(ArtifactError, match=r"'kept' in .* is missing"):
        opened(again, **options)


def test_a_failed_build_leaves_nothing(client, server, store, tmp_path, monkeypatch):
    """Neither a collection nor a file; and a later build removes the collection of a killed build."""
    case = draw(12, dim=4, seed=23)
    before = set(client.list_collections())

    def fail(*_):
        yield from ()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(layout.Layout, "entities", fail)
        with pytest.raises(KeyboardInterrupt):
            Milvus(uri=server, collection="failed").build(store(case), tmp_path)
    assert set(client.list_collections()) == before
    assert not list(tmp_path.iterdir())
    client.create_collection("failed_partial", dimension=3)
    Milvus(uri=server, collection="failed").build(store(case), tmp_path)
    assert set(client.list_collections()) - before == {"failed"}


def test_unknown_index_types_are_refused(server, store, tmp_path):
    for options in ({}, {"uri": server}):
        with pytest.raises(OptionError, match=r"an index of the type 'FLATTER'.*FLATTER"):
            Milvus(index_type="flatter", **options).build(store(draw(5, dim=4)), tmp_path)


@pytest.mark.parametrize("uri", [UNREACHABLE, "https://127.0.0.1:9"])
def test_an_unreachable_server_is_reported(folder, store, case, tmp_path, uri):
    started = time.monotonic()
    with pytest.raises(InputError, match=f"no Milvus answers at '{uri}'.*MILVUS_TOKEN") as caught:
        Milvus(uri=uri, timeout=2).build(store(case), tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="no Milvus answers"):
        Milvus(uri=uri, timeout=2).open(folder)
    assert time.monotonic() - started < 120


def test_a_server_that_stops_is_reported(build, tmp_path):
    """By the next search, after some seconds."""
    case = draw(12, dim=4)
    with serving(tmp_path / "server") as (uri, process):
        index = opened(build(case, uri=uri), uri=uri)
        index.search(case.queries, 3)
        process.kill()
        process.wait()
        started = time.monotonic()
        with pytest.raises(RetrievalkitError, match=f"Milvus at '{uri}' could not search"):
            index.search(case.queries, 3)
        assert time.monotonic() - started < 120


def test_the_token_is_sent_and_never_written(monkeypatch, server, build):
    sent = []
    real = connections._client
    monkeypatch.setattr(connections, "_client", lambda uri, **options: sent.append(options) or real(uri, **options))
    monkeypatch.setenv("MILVUS_TOKEN", "top secret")
    index = build(draw(5, dim=4, seed=24), uri=server, timeout=7)
    assert [(options["timeout"], options["token"]) for options in sent] == [(7, "top secret")]
    assert not [path for path in index.rglob("*") if b"top secret" in path.read_bytes()]


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"uri": "http://root:Milvus@localhost:19530"}, "MILVUS_TOKEN"),
        ({"uri": "index/milvus.db"}, "Leave it out to use Milvus Lite"),
        ({"uri": "http://localhost:door"}, "must be the address"),
        ({"collection": "a-b"}, "letters, digits and underscores"),
        ({"parameters": "M"}, "NAME=VALUE"),
        ({"index_type": "HNSW", "parameters": "M=1"}, "from 2 to 2048"),
        ({"candidates": 0}, "'candidates' of indexer 'milvus' cannot be 0"),
        ({"partitions": 2000}, "less than or equal to 1024"),
        ({"search_partitions": "one"}, "must be numbers with commas"),
        ({"hybrid": "sum"}, "rrf, rrf:K or weighted:W,W"),
        ({"hybrid": "rrf:0"}, "rrf, rrf:K or weighted:W,W"),
        ({"hybrid": "weighted:0,0"}, "rrf, rrf:K or weighted:W,W"),
        ({"analyzer": "{", "texts": "x"}, "Milvus's JSON"),
        ({"consistency": "bounded"}, "Milvus Lite.* has no option 'consistency'"),
    ],
)
def test_invalid_options_are_refused(options, problem):
    with pytest.raises(OptionError, match=problem):
        registry.create("indexer", "milvus", **options)


@pytest.mark.parametrize("package", ["pymilvus", "milvus_lite.adapter.grpc.server"])
def test_missing_packages_are_named(folder, monkeypatch, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=f"pip install '?{package.split('.')[0].replace('_', '-')}"):
        Milvus().open(folder)
