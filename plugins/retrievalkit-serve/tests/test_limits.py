"""A service refuses what is too much, too long, too slow, without the token, or under another name."""

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

import retrievalkit as rk
from retrievalkit.cli import main
from retrievalkit.errors import InputError, OptionError

LINUX = pytest.mark.skipif(sys.platform != "linux", reason="counts and limits the descriptors of another process")


def raw(process, data, seconds=20):
    """What the service answers to bytes, until it closes the connection."""
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
    # Who reads only after sending everything, and wants the connection closed, sees the answer too.
    request = Request(f"{served.address}/search", b"x" * 5_000_000, {"content-type": "application/json"})
    with pytest.raises(HTTPError, match="413"):
        urlopen(request, timeout=20)


def test_answers_bear_headers_that_bind_browsers(client):
    headers = client.get("/").headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/health").headers["cache-control"] == "no-store"


PATHS = ("/", "/search", "/mcp", "/nowhere")


HOSTS = ("localhost", "[::1]:8000", "search.example.org")
STRANGERS = ("evil.example:8000", "evil.example.localhost", "[::1]evil.example", "localhost:evil.example", "")


@pytest.mark.parametrize("host", [*HOSTS, *STRANGERS])
def test_a_service_of_this_machine_answers_to_its_names_alone(slow_local, host):
    """A page of another site could have its name lead here (DNS rebinding)."""
    for path in PATHS:
        answer = raw(slow_local, f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        assert (b"Invalid host header" in answer) == (host in STRANGERS)


@pytest.mark.parametrize("token", [False, True])
@pytest.mark.parametrize(
    ("origins", "answered"),
    [
        (["http://{host}"], True),
        (["https://{host}"], True),  # behind a proxy with TLS
        (["https://search.example.org"], True),  # allowed by --allow-host
        (["http://evil.example"], False),
        (["http://{host}.evil.example"], False),
        (["http://localhost:1"], False),  # another program of this machine
        (["null"], False),
        (["http://{host}", "http://evil.example"], False),
    ],
)
def test_pages_of_other_sites_are_refused(slow, slow_local, token, origins, answered):
    """A browser sends the address of the page that asks, whatever the type of the body."""
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
    """A service of this machine, without a token, under one more name; it gives up soon."""
    with service(folders / "dense", "--timeout", 1, "--allow-host", "search.example.org") as process:
        yield process


@pytest.fixture(scope="module")
def slow(folders):
    """A service that takes one request at a time, for a second."""
    words = ("--queue", 1, "--timeout", 1, "--batch", 1, "--max-k", 1000, "--allow-host", "search.example.org")
    with service(folders / "dense", *words, env={"RKIT_SERVE_TOKEN": TOKEN}) as process:
        yield process


def test_a_token_is_needed_for_all_but_the_page_and_health(slow):
    with slow.client() as client:
        for path in ("/", "/docs", "/health", "/openapi.json"):
            assert client.get(path).status_code == 200
        for method, path in (("GET", "/indexes"), ("POST", "/search"), ("GET", "/metrics"), ("POST", "/mcp")):
            response = client.request(method, path, headers={"authorization": f"Bearer {TOKEN}x"})
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
        assert client.get("/indexes", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200
        # With a token the name does not matter: a page of another site does not know it.
        named = {"authorization": f"Bearer {TOKEN}", "host": "search.example.org"}
        assert client.get("/indexes", headers=named).status_code == 200


def test_more_requests_than_the_queue_holds_are_refused_with_a_time(slow):
    with slow.client(headers={"authorization": f"Bearer {TOKEN}"}) as client:
        body = {"input": ["what is the capital of Peru " * 20] * 200}
        with ThreadPoolExecutor(8) as pool:
            responses = list(pool.map(lambda _: client.post("/v1/embeddings", json=body), range(8)))
    assert {response.status_code for response in responses} <= {200, 429, 504}
    refused = [response for response in responses if response.status_code == 429]
    assert refused
    assert all(int(response.headers["retry-after"]) >= 1 for response in refused)
    assert refused[0].json()["error"]["type"] == "BusyError"


def test_an_answer_that_takes_too_long_is_given_up(slow):
    with slow.client(headers={"authorization": f"Bearer {TOKEN}"}) as client:
        start = time.monotonic()
        response = client.post("/v1/embeddings", json={"input": ["what is the capital of Peru " * 36] * 1000})
        took = time.monotonic() - start
        if response.status_code == 200 and took < 2:
            pytest.skip(f"this machine answers the largest request in {took:.1f} s, and the least timeout is 1 s")
        assert response.status_code == 504
        assert "there was no answer within 1 s" in response.json()["error"]["message"]
        assert took < 5


def test_a_body_that_does_not_arrive_is_given_up(slow):
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
def test_a_client_that_dawdles_is_hung_up_on(slow_local, sent):
    """A byte now and then wins no time."""
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
def test_a_client_that_does_not_fetch_its_answers_is_hung_up_on(slow_local):
    """And the log does not fill with its failures."""
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
    """How many files and connections a service has open."""
    return float(re.search(r"^process_open_fds (\S+)", client.get("/metrics").text, re.MULTILINE)[1])


@pytest.mark.parametrize("sent", WAITING.values(), ids=WAITING)
def test_connections_that_wait_keep_nobody_out(few_descriptors, sent):
    with held(few_descriptors, 200, sent), few_descriptors.client() as client:
        assert client.post("/search", json={"query": "Peru"}).status_code == 200


@LINUX
def test_a_service_without_descriptors_waits_for_some(few_descriptors):
    """Other things than connections take them, too."""
    pid = few_descriptors.child.pid
    limits = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, limits[1]))
    with held(few_descriptors, 5, b""):
        time.sleep(0.5)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, limits)
    with few_descriptors.client() as client:
        assert client.get("/health").status_code == 200


@contextmanager
def held(process, count, sent):
    place = urlsplit(process.address)
    with ExitStack() as connections:
        for _ in range(count):
            connection = connections.enter_context(socket.create_connection((place.hostname, place.port), timeout=5))
            with suppress(ConnectionError):
                connection.sendall(sent)
        yield


@pytest.fixture(scope="module")
def few_descriptors(folders):
    """A service that may have 100 files and connections open."""
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
def test_what_is_not_http_is_refused_in_one_answer(slow_local, data):
    """And does not fill the log."""
    lines = len(slow_local.lines)
    answer = raw(slow_local, data)
    assert answer.startswith(b"HTTP/1.1 400")
    assert answer.count(b"HTTP/1.1") == 1
    assert len(slow_local.lines) == lines


@pytest.mark.slow
def test_a_service_beyond_the_machine_without_a_token_warns(folders):
    with service(folders / "dense", "--host", "0.0.0.0") as process:
        assert process.wait_for("Warning: anyone who reaches 0.0.0.0 can search")
    with service(folders / "dense", "--host", "0.0.0.0", env={"RKIT_SERVE_TOKEN": TOKEN}) as process:
        assert not [line for line in process.lines if "Warning" in line]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{folder}/nothere",), "does not exist"),
        (("{folder}/corpus.jsonl",), "is a corpus"),
        (("{folder}/dense", "--rerank", "5"), "has no effect here"),
        (("{folder}/dense", "--fusion", "rrf"), "there is only one"),
        (("{folder}/dense", "--token-file", "{folder}/short"), "it needs 16 or more"),
        (("{folder}/dense", "--token-file", "{folder}/nothere"), "cannot be read"),
        (("{folder}/dense", "--reranker", "{folder}/dense"), "holds an index, not a model"),
        (("{folder}/dense", "--set", "indexer.blok=3"), "did you mean 'indexer.block'"),
        (("{folder}/dense", "--model", "{folder}"), ""),
        (("{folder}/dense", "--port", "{port}"), "cannot listen at 127.0.0.1"),
        (("{folder}/dense", "--host", "999.1.1.1"), "cannot listen at 999.1.1.1"),
        (("{folder}/dense", "--allow-host", "http://a.example"), "is not a host name"),
    ],
)
def test_what_cannot_be_served_is_one_message(folders, words, message):
    """And exit code 2, before anything is loaded where that can be."""
    (folders / "short").write_text("abc\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [word.format(folder=folders, port=port) for word in words]
        result = CliRunner().invoke(main, ["serve", *command])
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_python_serves_with_the_same_options(folders):
    with pytest.raises(InputError, match="does not exist"):
        rk.serve(folders / "dense", folders / "nothere")
    with pytest.raises(OptionError, match="did you mean 'port'"):
        rk.serve(folders / "dense", prot=1)
