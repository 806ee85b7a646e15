"""Limits of a service: sizes, times, connections, tokens, host names and origins."""

from __future__ import annotations

import re
import resource
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import pytest
from click.testing import CliRunner
from services import TOKEN, service

from retrievalkit.cli import main

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs the file descriptors of another process")


def raw(process, data, seconds=20):
    """Send bytes; returns the answer, until the service closes the connection."""
    place = urlsplit(process.address)
    with socket.create_connection((place.hostname, place.port), timeout=seconds) as connection:
        connection.sendall(data)
        answer = b""
        while part := connection.recv(65536):
            answer += part
    return answer


def test_a_body_that_is_too_large_is_refused(client, served):
    response = client.post("/search", json={"query": "x" * 30_000})
    assert response.status_code == 413
    assert "more than 20,000 bytes" in response.json()["error"]["message"]
    chunks = client.post("/search", content=iter([b"x" * 9_000] * 5), headers={"content-type": "application/json"})
    assert chunks.status_code == 413
    assert client.post("/search", json={"query": "Peru"}).status_code == 200
    # A client that reads only after sending everything gets the answer too.
    request = Request(f"{served.address}/search", b"x" * 5_000_000, {"content-type": "application/json"})
    with pytest.raises(HTTPError, match="413"):
        urlopen(request, timeout=20)


def test_headers_restrict_browsers(client):
    headers = client.get("/").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/health").headers["cache-control"] == "no-store"


PATHS = ("/", "/search", "/mcp", "/nowhere")
HOSTS = ("localhost", "[::1]:8000", "search.example.org")
OTHER_HOSTS = ("evil.example:8000", "evil.example.localhost", "[::1]evil.example", "localhost:evil.example", "")


@pytest.mark.parametrize("host", [*HOSTS, *OTHER_HOSTS])
def test_a_local_service_only_answers_under_its_names(slow_local, host):
    """Otherwise another site could point its name to this machine (DNS rebinding)."""
    for path in PATHS:
        answer = raw(slow_local, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert (b"Invalid host header" in answer) == (host in OTHER_HOSTS)


@pytest.mark.parametrize("token", [False, True])
@pytest.mark.parametrize(
    ("origins", "answered"),
    [
        (["http://{host}"], True),
        (["https://{host}"], True),  # behind a proxy with TLS
        (["https://search.example.org"], True),  # allowed by --allow-host
        (["http://evil.example"], False),
        (["http://{host}.evil.example"], False),
        (["http://localhost:1"], False),  # another service on this machine
        (["null"], False),
        (["http://{host}", "http://evil.example"], False),
    ],
)
def test_pages_of_other_sites_are_refused(slow, slow_local, token, origins, answered):
    """Browsers send the origin of the page with every kind of body."""
    process = slow if token else slow_local
    host = urlsplit(process.address).netloc
    for path in PATHS:
        lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: text/plain", "Content-Length: 0"]
        lines += [f"Authorization: Bearer {TOKEN}", "Connection: close"]
        lines += [f"Origin: {origin.format(host=host)}" for origin in origins]
        answer = raw(process, "\r\n".join([*lines, "", ""]).encode())
        assert answer.startswith(b"HTTP/1.1 403") != answered


@pytest.fixture(scope="module")
def slow_local(folders):
    """A service on this machine, without a token, with another host name and a short timeout."""
    with service(folders / "dense", "--timeout", 1, "--allow-host", "search.example.org") as process:
        yield process


@pytest.fixture(scope="module")
def slow(folders):
    """A service with a token, a queue of one request and a short timeout."""
    arguments = ("--queue", 1, "--timeout", 1, "--batch", 1, "--max-k", 1000, "--allow-host", "search.example.org")
    with service(folders / "dense", *arguments, env={"RKIT_SERVE_TOKEN": TOKEN}) as process:
        yield process


def test_everything_except_pages_and_health_needs_the_token(slow):
    with slow.client() as client:
        for path in ("/", "/docs", "/health", "/openapi.json"):
            assert client.get(path).status_code == 200
        for method, path in (("GET", "/indexes"), ("POST", "/search"), ("GET", "/metrics"), ("POST", "/mcp")):
            response = client.request(method, path, headers={"authorization": f"Bearer {TOKEN}x"})
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.get("/indexes", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200
        # With a token, any host name is accepted: pages of other sites lack the token.
        headers = {"authorization": f"Bearer {TOKEN}", "host": "search.example.org"}
        assert client.get("/indexes", headers=headers).status_code == 200


def test_a_full_queue_answers_429_with_retry_after(slow):
    with slow.client(headers={"authorization": f"Bearer {TOKEN}"}) as client:
        body = {"input": ["what is the capital of Peru " * 20] * 200}
        with ThreadPoolExecutor(8) as pool:
            responses = list(pool.map(lambda _: client.post("/v1/embeddings", json=body), range(8)))
    assert {response.status_code for response in responses} <= {200, 429, 504}
    refused = [response for response in responses if response.status_code == 429]
    assert refused
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert refused[0].json()["error"]["type"] == "BusyError"


def test_a_slow_answer_is_aborted(slow):
    with slow.client(headers={"authorization": f"Bearer {TOKEN}"}) as client:
        start = time.monotonic()
        response = client.post("/v1/embeddings", json={"input": ["what is the capital of Peru " * 36] * 1000})
        took = time.monotonic() - start
        if response.status_code == 200 and took < 2:
            pytest.skip(f"this machine answers the largest request within {took:.1f} s")
        assert response.status_code == 504
        assert "there was no answer within 1 s" in response.json()["error"]["message"]
        assert took < 5


def test_an_incomplete_body_is_answered_with_408(slow):
    head = f"POST /search HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\n"
    answer = raw(slow, (head + "Content-Type: application/json\r\nContent-Length: 100\r\n\r\n{").encode())
    assert b"408" in answer.split(b"\r\n")[0]
    assert b"the body did not arrive within 1 s" in answer


HEAD = b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
WAITING = {
    "silent": b"",
    "half a header": b"GET /health HTTP/1.1\r\nHost: local",
    "half a body": HEAD + b"Content-Length: 99\r\n\r\n{",
    "half of the next request": b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET /sea",
    "an answer before the body": HEAD.replace(b"/search", b"/nowhere") + b"Content-Length: 99\r\n\r\n{",
    "a stream": b"GET /mcp HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
}


@pytest.mark.parametrize("sent", WAITING.values(), ids=WAITING)
def test_connections_of_slow_clients_are_closed(slow_local, sent):
    """Even if the client keeps sending single bytes."""
    place = urlsplit(slow_local.address)
    end = time.monotonic() + 10
    with socket.create_connection((place.hostname, place.port), timeout=0.2) as connection:
        connection.sendall(sent)
        while time.monotonic() < end:
            try:
                if not connection.recv(65536):
                    return
                continue
            except TimeoutError:
                pass
            except ConnectionError:
                return
            with suppress(ConnectionError):
                connection.sendall(sent and b"1")
    pytest.fail("the connection is open after 10 s")


@LINUX
def test_connections_of_clients_that_do_not_read_are_closed(slow_local):
    """And nothing is logged."""
    request = b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n"
    place = urlsplit(slow_local.address)
    with slow_local.client() as client, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect((place.hostname, place.port))
        before, lines = descriptors(client), len(slow_local.lines)
        connection.sendall(request * 400)
        end = time.monotonic() + 10
        while descriptors(client) >= before and time.monotonic() < end:
            time.sleep(0.2)
        assert descriptors(client) < before
    assert len(slow_local.lines) == lines


def descriptors(client):
    """The number of files and connections that a service has open."""
    return float(re.search(r"^process_open_fds (\S+)", client.get("/metrics").text, re.MULTILINE)[1])


@pytest.mark.parametrize("sent", WAITING.values(), ids=WAITING)
def test_waiting_connections_do_not_block_others(few_descriptors, sent):
    with open_connections(few_descriptors, 200, sent), few_descriptors.client() as client:
        assert client.post("/search", json={"query": "Peru"}).status_code == 200


@LINUX
def test_a_service_recovers_from_a_lack_of_descriptors(few_descriptors):
    pid = few_descriptors.child.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, limits[1]))
    with open_connections(few_descriptors, 5, b""):
        time.sleep(0.5)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    with few_descriptors.client() as client:
        assert client.get("/health").status_code == 200


@contextmanager
def open_connections(process, count, sent):
    place = urlsplit(process.address)
    with ExitStack() as connections:
        for _ in range(count):
            connection = connections.enter_context(socket.create_connection((place.hostname, place.port), timeout=5))
            with suppress(ConnectionError):
                connection.sendall(sent)
        yield


@pytest.fixture(scope="module")
def few_descriptors(folders):
    """A service with at most 100 open files and connections."""
    with service(folders / "dense", descriptors=100) as process:
        yield process


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\nzz\r\n",
        HEAD.replace(b"/search", b"/nowhere") + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        HEAD + b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\nGET /smuggled",
        HEAD + b"Host: evil.example\r\nContent-Length: 0\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\r\n\r\n",
    ],
)
def test_invalid_http_is_refused_with_one_answer(slow_local, data):
    """And nothing is logged."""
    lines = len(slow_local.lines)
    answer = raw(slow_local, data)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert len(slow_local.lines) == lines


@pytest.mark.slow
def test_an_exposed_service_without_a_token_warns(folders):
    with service(folders / "dense", "--host", "0.0.0.0") as process:
        assert process.wait_for("Warning: anyone who reaches 0.0.0.0 can search")
    with service(folders / "dense", "--host", "0.0.0.0", env={"RKIT_SERVE_TOKEN": TOKEN}) as process:
        assert not [line for line in process.lines if "Warning" in line]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("{folder}/nowhere",), "does not exist"),
        (("{folder}/corpus.jsonl",), "is a corpus"),
        (("{folder}/dense", "--rerank", "5"), "has no effect here"),
        (("{folder}/dense", "--fusion", "rrf"), "there is only one"),
        (("{folder}/dense", "--token-file", "{folder}/short"), "it needs 16 or more"),
        (("{folder}/dense", "--token-file", "{folder}/nowhere"), "cannot be read"),
        (("{folder}/dense", "--reranker", "{folder}/dense"), "holds an index, not a model"),
        (("{folder}/dense", "--set", "indexer.blok=3"), "did you mean 'indexer.block'"),
        (("{folder}/dense", "--model", "{folder}"), ""),
        (("{folder}/dense", "--port", "{port}"), "cannot listen at 127.0.0.1"),
        (("{folder}/dense", "--host", "999.1.1.1"), "cannot listen at 999.1.1.1"),
        (("{folder}/dense", "--allow-host", "http://a.example"), "is not a host name"),
    ],
)
def test_mistakes_of_the_command_have_a_message_and_exit_code_2(folders, arguments, message):
    (folders / "short").write_text("abc\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        formatted = [argument.format(folder=folders, port=port) for argument in arguments]
        result = CliRunner().invoke(main, ["serve", *formatted])
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr
