"""Options of servers: partitions, consistency, certificates, timeouts."""

import contextlib
import os
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time

import pytest
from milvus_cases import assert_hits, draw, opened, serving
from retrievalkit_milvus.indexer import Milvus

from retrievalkit.errors import InputError, OptionError, RetrievalkitError


@pytest.mark.parametrize("form", [{"dim": 6}, {"dim": 6, "m": 3, "varied": True, "query_vectors": 2}])
@pytest.mark.parametrize("where", ["folder", "server"])
def test_partitions_are_searched_together_or_separately(build, server, form, where):
    case, place = draw(23, **form, seed=30), {"uri": server} if where == "server" else {}
    folder = build(case, partitions=4, shards=2, **place)
    assert_hits(opened(folder, **place).search(case.queries, 23), case.expected(23))
    rows = [row for row in range(23) if row * 4 // 23 in (0, 2, 3)]
    index = opened(folder, search_partitions="0,2-3", **place)
    for k in (1, 5, 23):
        assert_hits(index.search(case.queries, k), case.part(rows).expected(k))


def test_missing_partitions_are_refused(build):
    with pytest.raises(OptionError, match="names 3, but the index has partitions 0 to 2"):
        opened(build(draw(9, dim=2), partitions=3), search_partitions="1,3")


@pytest.mark.skipif("RKIT_TEST_MILVUS" in os.environ, reason="a server has all levels of consistency")
def test_milvus_lite_at_an_address_refuses_consistency(store, server, tmp_path):
    with pytest.raises(OptionError, match=f"Milvus at '{server}' is Milvus Lite, which has no option 'consistency'"):
        Milvus(uri=server, consistency="bounded").build(store(draw(3, dim=2)), tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.skipif("RKIT_TEST_MILVUS" not in os.environ, reason="Milvus Lite has one level of consistency")
@pytest.mark.parametrize("consistency", ["bounded", "eventually"])
def test_weaker_consistency_returns_old_rows(build, server, consistency):
    """Some seconds after the last write, each level returns the same hits."""
    case = draw(20, dim=4, seed=31)
    folder = build(case, uri=server)
    time.sleep(3 if consistency == "bounded" else 6)
    assert_hits(opened(folder, uri=server, consistency=consistency).search(case.queries, 5), case.expected(5))


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    """Certificates of "localhost" and of a client, signed by a test authority."""
    if not shutil.which("openssl"):
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificates")

    def openssl(*words):
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True)

    openssl("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca")
    (folder / "names").write_text("subjectAltName=DNS:localhost,DNS:milvus.test")
    for name in ("server", "client"):
        key = ("-newkey", "rsa:2048", "-nodes", "-keyout", f"{name}.key")
        openssl("req", *key, "-out", f"{name}.csr", "-subj", f"/CN={name}")
        signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", "names")
        openssl("x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.pem", *signed)
    return folder


@contextlib.contextmanager
def encrypted(server, folder, *, client_certificates=False):
    """Run an https proxy in front of a server; yields its address."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=folder / "ca.pem")
    context.load_cert_chain(folder / "server.pem", folder / "server.key")
    context.set_alpn_protocols(["h2"])
    context.verify_mode = ssl.CERT_REQUIRED if client_certificates else ssl.CERT_NONE
    host, port = server.removeprefix("http://").split(":")

    def pump(source, target):
        with contextlib.suppress(OSError):
            while chunk := source.recv(1 << 16):
                target.sendall(chunk)
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def serve(raw):
        with (
            contextlib.suppress(OSError),
            context.wrap_socket(raw, server_side=True) as near,
            socket.create_connection((host, int(port))) as far,
        ):
            back = threading.Thread(target=pump, args=(far, near), daemon=True)
            back.start()
            pump(near, far)
            back.join(5)

    def listen():
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=listen, daemon=True).start()
        yield f"https://localhost:{listener.getsockname()[1]}"


def test_https_with_the_certificate_of_an_authority(certificates, build, server, monkeypatch):
    case = draw(10, dim=4, seed=37)
    with encrypted(server, certificates) as uri:
        with pytest.raises(InputError, match=f"no Milvus answers at '{uri}'"):
            build(case, uri=uri, timeout=2)
        monkeypatch.setenv("MILVUS_CA_CERT", str(certificates / "ca.pem"))
        monkeypatch.setenv("MILVUS_TOKEN", "root:Milvus")
        assert_hits(opened(build(case, uri=uri), uri=uri).search(case.queries, 5), case.expected(5))
        # The name in the certificate may differ from the address.
        monkeypatch.setenv("MILVUS_SERVER_CERT", str(certificates / "ca.pem"))
        monkeypatch.setenv("MILVUS_SERVER_NAME", "milvus.test")
        build(draw(5, dim=2, seed=39), uri=uri.replace("localhost", "127.0.0.1"))


def test_https_with_client_certificates(certificates, build, server, monkeypatch):
    case = draw(10, dim=4, seed=38)
    monkeypatch.setenv("MILVUS_CA_CERT", str(certificates / "ca.pem"))
    with encrypted(server, certificates, client_certificates=True) as uri:
        with pytest.raises(InputError, match="no Milvus answers"):
            build(case, uri=uri, timeout=2)
        monkeypatch.setenv("MILVUS_CLIENT_CERT", str(certificates / "client.pem"))
        with pytest.raises(InputError, match="MILVUS_CLIENT_KEY are all needed"):
            build(case, uri=uri)
        monkeypatch.setenv("MILVUS_CLIENT_KEY", str(certificates / "no.key"))
        with pytest.raises(InputError, match=r"MILVUS_CLIENT_KEY is '.*no\.key', which is not a file"):
            build(case, uri=uri)
        monkeypatch.setenv("MILVUS_CLIENT_KEY", str(certificates / "client.key"))
        build(case, uri=uri)


@pytest.mark.slow
def test_a_search_times_out(build, tmp_path):
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
