"""What a server at scale has: partitions, replicas, consistency, bulk insert, certificates, deadlines."""

import asyncio
import contextlib
import os
import queue
import shutil
import signal
import ssl
import subprocess
import threading
import time

import numpy as np
import pytest
import torch
from retrievalkit_milvus import bulk
from retrievalkit_milvus.indexer import Milvus

from retrievalkit.errors import InputError, OptionError, RetrievalkitError

BULK = "RKIT_TEST_MILVUS_BULK"


@pytest.mark.parametrize("form", [{"dim": 6}, {"dim": 6, "m": 3, "varied": True, "query_vectors": 2}])
@pytest.mark.parametrize("where", ["folder", "server"])
def test_partitions_hold_ranges_of_the_texts(draw, build, opened, assert_found, server, form, where):
    """All of them are searched as one, and some of them as if there were no others."""
    case, place = draw(23, **form, seed=30), {"uri": server} if where == "server" else {}
    folder = build(case, partitions=4, shards=2, **place)
    assert_found(opened(folder, **place).search(case.queries, 23), case.expected(23))
    rows = [row for row in range(23) if row * 4 // 23 in (0, 2, 3)]
    some = type(case)([case.ids[row] for row in rows], case.documents.rows(torch.tensor(rows)), case.queries)
    index = opened(folder, search_partitions="0,2-3", **place)
    for k in (1, 5, 23):
        assert_found(index.search(case.queries, k), some.expected(k))


def test_partitions_that_are_not_there(draw, build, opened):
    """Are refused with those that are."""
    folder = build(draw(9, dim=2), partitions=3)
    with pytest.raises(OptionError, match="names 3, and the index has partitions 0 to 2"):
        opened(folder, search_partitions="1,3")
    with pytest.raises(OptionError, match="must be numbers with commas"):
        Milvus(search_partitions="one")
    with pytest.raises(OptionError, match="from 0 to 1024"):
        Milvus(partitions=2000)


SERVERS_OWN = [{"replicas": 2}, {"consistency": "bounded"}, {"bulk": "/somewhere"}]


@pytest.mark.parametrize("options", SERVERS_OWN, ids=lambda options: next(iter(options)))
def test_what_only_a_server_has_is_refused_by_milvus_lite(draw, store, version, server, tmp_path, options):
    """In a folder, and at an address: with one message, and nothing is written."""
    name = next(iter(options))
    with pytest.raises(OptionError, match=f"Milvus Lite.* has no option '{name}'"):
        Milvus(**options)
    if version.startswith("milvus_lite"):
        with pytest.raises(OptionError, match=f"Milvus at '{server}' is Milvus Lite, which has no option '{name}'"):
            Milvus(uri=server, **options).build(store(draw(3, dim=2)), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("consistency", ["bounded", "session", "eventually"])
def test_weaker_consistency_finds_what_is_old_enough(draw, build, opened, assert_found, server, consistency):
    """A collection that is not written to gives the same hits at each level, some seconds later."""
    case = draw(20, dim=4, seed=31)
    folder = build(case, uri=server)
    time.sleep(3 if consistency == "bounded" else 6)
    assert_found(opened(folder, uri=server, consistency=consistency).search(case.queries, 5), case.expected(5))


@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("partitions", [0, 3])
def test_bulk_insert_gives_the_collection_that_rows_give(
    draw, build, opened, assert_found, server, partitions, monkeypatch
):
    """From a place that the server reads, in several files, which are removed."""
    place = os.environ.get(BULK)
    if not place:
        pytest.skip(f"name a place that the server reads by {BULK}")
    monkeypatch.setattr(bulk, "_BYTES_IN_A_FILE", 400)
    case = draw(40, dim=4, m=2, varied=True, seed=33 + partitions)
    folder = build(case, uri=server, bulk=place, partitions=partitions, batch=10)
    assert_found(opened(folder, uri=server).search(case.queries, 9), case.expected(9))


def test_rows_become_files_that_hold_them(draw, store, tmp_path):
    """Each of one partition, with vectors, weights and words as Milvus reads them."""
    parquet = pytest.importorskip("pyarrow.parquet")
    pytest.importorskip("minio", reason="needs pymilvus[bulk-writer]")
    from retrievalkit_milvus.layout import Layout
    from retrievalkit_milvus.writing import _schema

    source = store(draw(10, dim=3, vocabulary=7))
    layout = Layout.of(source, "x", "x", partitions=2, analyzer='{"type": "standard"}')
    parts = (
        (str(layout.partition_of(rows[0]["text"])), rows) for rows in layout.entities(source, 4, iter("abcdefghij"))
    )
    tables = [(part, parquet.read_table(file)) for part, file in bulk._files(parts, _schema(layout, source), tmp_path)]
    assert [part for part, _ in tables] == ["0", "1"]
    assert [text for _, table in tables for text in table["content"].to_pylist()] == list("abcdefghij")
    assert "words" not in tables[0][1].column_names
    vectors = np.concatenate([np.array(table["vector"].to_pylist()) for _, table in tables])
    np.testing.assert_allclose(vectors, np.asarray(next(source.blocks(100)).vectors), rtol=1e-6)
    assert not list(tmp_path.rglob("*.parquet"))


def test_a_place_elsewhere_that_a_recipe_names_gets_nothing(draw, store, tmp_path, monkeypatch):
    """Unless the user vouches for it; only then the server is asked."""
    index = Milvus(uri="http://127.0.0.1:9", bulk="s3://stranger/x", timeout=1)
    index.from_files = frozenset(["bulk"])
    with pytest.raises(InputError, match="MILVUS_BULK=s3://stranger/x"):
        index.build(store(draw(3, dim=2)), tmp_path)
    monkeypatch.setenv("MILVUS_BULK", "s3://stranger/x")
    with pytest.raises(InputError, match="no Milvus answers"):
        index.build(store(draw(3, dim=2)), tmp_path)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """A certificate of "localhost" by an authority of our own, and another for a client."""
    if not shutil.which("openssl"):
        pytest.skip("makes certificates with openssl")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (folder / "names").write_text("subjectAltName=DNS:localhost,DNS:milvus.test")
    for name in ("server", "client"):
        openssl(
            "req",
            "-newkey",
            "rsa:2048",
            "-nodes",
            "-keyout",
            f"{name}.key",
            "-out",
            f"{name}.csr",
            "-subj",
            f"/CN={name}",
        )
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return folder


@contextlib.contextmanager
def encrypted(server, folder, *, asks_for_clients=False):
    """Https in front of a server: yields the address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.set_alpn_protocols(["h2"])
    context.verify_mode = ssl.CERT_REQUIRED if asks_for_clients else ssl.CERT_NONE
    host, port = server.removeprefix("http://").split(":")
    ended, addresses = threading.Event(), queue.SimpleQueue()
    # asyncio itself holds a task, and the reader that it waits for, by weak references alone.
    conversations = set()

    async def pump(reader, writer):
        with contextlib.suppress(OSError):
            while chunk := await reader.read(1 << 16):
                writer.write(chunk)
                await writer.drain()

    async def serve(reader, writer):
        conversations.add(asyncio.current_task())
        there, back = await asyncio.open_connection(host, int(port))
        try:
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.gather(pump(reader, back), pump(there, writer))
        finally:
            back.close()
            writer.transport.abort()

    async def listen():
        async with await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context) as listening:
            addresses.put(f"https://localhost:{listening.sockets[0].getsockname()[1]}")
            while not ended.is_set():
                await asyncio.sleep(0.05)
            for conversation in conversations:
                conversation.cancel()
            await asyncio.gather(*conversations, return_exceptions=True)

    thread = threading.Thread(target=asyncio.run, args=(listen(),))
    thread.start()
    try:
        yield addresses.get()
    finally:
        ended.set()
        thread.join()


def test_over_https_with_the_certificate_of_an_authority(
    certificates, draw, build, opened, assert_found, server, monkeypatch
):
    """The address alone is refused by its certificate; with the authority's the hits are the same."""
    case = draw(10, dim=4, seed=37)
    with encrypted(server, certificates) as uri:
        with pytest.raises(InputError, match=f"no Milvus answers at '{uri}'"):
            build(case, uri=uri, timeout=2)
        monkeypatch.setenv("MILVUS_CA_CERT", str(certificates / "ca.pem"))
        monkeypatch.setenv("MILVUS_TOKEN", "root:Milvus")
        assert_found(opened(build(case, uri=uri), uri=uri).search(case.queries, 5), case.expected(5))


def test_a_server_that_asks_for_a_certificate(certificates, draw, build, server, monkeypatch):
    """Gets the client's; two of its three files are refused by their names, and none that is not there."""
    case = draw(10, dim=4, seed=38)
    monkeypatch.setenv("MILVUS_CA_CERT", str(certificates / "ca.pem"))
    with encrypted(server, certificates, asks_for_clients=True) as uri:
        with pytest.raises(InputError, match="no Milvus answers"):
            build(case, uri=uri, timeout=2)
        monkeypatch.setenv("MILVUS_CLIENT_CERT", str(certificates / "client.pem"))
        with pytest.raises(InputError, match="MILVUS_CLIENT_KEY together"):
            build(case, uri=uri)
        monkeypatch.setenv("MILVUS_CLIENT_KEY", str(certificates / "no.key"))
        with pytest.raises(InputError, match=r"MILVUS_CLIENT_KEY names '.*no\.key', and there is no such file"):
            build(case, uri=uri)
        monkeypatch.setenv("MILVUS_CLIENT_KEY", str(certificates / "client.key"))
        build(case, uri=uri)


def test_a_certificate_of_another_name(certificates, draw, build, server, monkeypatch):
    """Is that of the server where its name is given."""
    monkeypatch.setenv("MILVUS_SERVER_CERT", str(certificates / "ca.pem"))
    with encrypted(server, certificates) as uri:
        uri = uri.replace("localhost", "127.0.0.1")
        monkeypatch.setenv("MILVUS_SERVER_NAME", "milvus.test")
        build(draw(5, dim=2, seed=39), uri=uri)


@pytest.mark.slow
def test_a_server_that_does_not_answer(serving, draw, build, opened, tmp_path):
    """A search ends at its deadline."""
    case = draw(12, dim=4)
    with serving(tmp_path / "server") as (uri, process):
        index = opened(build(case, uri=uri), uri=uri, search_timeout=2)
        index.search(case.queries, 3)
        process.send_signal(signal.SIGSTOP)
        try:
            started = time.monotonic()
            with pytest.raises(RetrievalkitError, match=f"Milvus at '{uri}' could not search"):
                index.search(case.queries, 3)
            assert time.monotonic() - started < 20
        finally:
            process.send_signal(signal.SIGCONT)
