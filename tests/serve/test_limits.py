"""What a service refuses: too much, too long, too slow, without the token, under another name."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

import retrievalkit as rk
from retrievalkit.cli import main
from retrievalkit.errors import InputError, OptionError, UnsupportedError
from services import TOKEN, service


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
    """By its length, and where the length is not told."""
    response = client.post("/search", json={"query": "x" * 30_000})
    assert response.status_code == 413
    assert "more than 20,000 bytes" in response.json()["error"]["message"]
    chunks = client.post("/search", content=iter([b"x" * 9_000] * 5), headers={"content-type": "application/json"})
    assert chunks.status_code == 413
    assert client.post("/search", json={"query": "Peru"}).status_code == 200


def test_answers_bear_headers_that_bind_browsers(client):
    response = client.get("/")
    policy = response.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert response.headers["x-content-type-options"] == "nosniff"
    assert client.get("/health").headers["cache-control"] == "no-store"


def test_a_service_of_this_machine_answers_to_no_other_name(client):
    """A page of another site could have its name lead here."""
    response = client.get("/indexes", headers={"host": "evil.example:8000"})
    assert response.status_code == 403
    assert "evil.example" in response.json()["error"]["message"]


@pytest.fixture(scope="module")
def slow(folders):
    """A service that takes one request at a time, for a second."""
    words = ("--queue", 1, "--timeout", 1, "--batch", 1, "--max-k", 1000)
    with service(folders / "dense", *words, env={"RKIT_SERVE_TOKEN": TOKEN}) as process:
        yield process


def test_a_token_is_needed_for_all_but_the_page_and_health(slow):
    with slow.client() as client:
        for path in ("/", "/docs", "/health", "/openapi.json"):
            assert client.get(path).status_code == 200
        for method, path in (("GET", "/indexes"), ("POST", "/search"), ("GET", "/metrics"), ("POST", "/mcp")):
            response = client.request(method, path)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
        wrong = client.get("/indexes", headers={"authorization": f"Bearer {TOKEN}x"})
        assert wrong.status_code == 401
        assert client.get("/indexes", headers={"authorization": f"bearer {TOKEN}"}).status_code == 200
        # With a token the name does not matter: a page of another site does not know it.
        named = {"authorization": f"Bearer {TOKEN}", "host": "search.example.org"}
        assert client.get("/indexes", headers=named).status_code == 200


def test_more_requests_than_the_queue_holds_are_refused_with_a_time(slow):
    """Some are answered, and the others told when to come again."""
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


@pytest.mark.slow
def test_a_service_beyond_the_machine_without_a_token_warns(folders):
    with service(folders / "dense", "--host", "0.0.0.0") as process:
        assert process.wait_for("Warning: whoever reaches 0.0.0.0 can search")
    with service(folders / "dense", "--host", "0.0.0.0", env={"RKIT_SERVE_TOKEN": TOKEN}) as process:
        assert not [line for line in process.lines if "Warning" in line]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("{folder}/nothere",), "nothere' does not exist. Give index folders"),
        (("{folder}/corpus.jsonl",), "corpus.jsonl' is a file. Give index folders"),
        (("{folder}/dense", "--rerank", "5"), "--rerank 5 has no effect here"),
        (("{folder}/dense", "--fusion", "rrf"), "--fusion combines several indexes, but there is only one"),
        (("{folder}/dense", "--token-file", "{folder}/short"), "has 3 characters; it needs 16 or more"),
        (("{folder}/dense", "--token-file", "{folder}/nothere"), "the token cannot be read"),
        (("{folder}/dense", "--reranker", "{folder}/dense"), "should be a Hugging Face model or a re-ranker"),
        (("{folder}/dense", "--set", "indexer.blok=3"), "did you mean 'indexer.block'"),
        (("{folder}/dense", "--port", "{port}"), "cannot listen at 127.0.0.1, port"),
        (("{folder}/dense", "--host", "999.1.1.1"), "cannot listen at 999.1.1.1"),
        (("{folder}/dense", "--timeout", "0"), "is not in the range"),
    ],
)
def test_what_cannot_be_served_is_one_message(folders, words, message):
    """And exit code 2, before anything is loaded where that can be."""
    (folders / "short").write_text("abc\n")
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        given = [word.format(folder=folders, port=port) for word in words]
        result = CliRunner().invoke(main, ["serve", *given])
    assert (result.exit_code, message in result.stderr) == (2, True), result.stderr


def test_without_the_extra_the_command_says_what_to_install(monkeypatch, folders):
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "prometheus_client" else object())
    result = CliRunner().invoke(main, ["serve", str(folders / "dense")])
    assert result.exit_code == 2
    assert "pip install 'retrievalkit[serve]'" in result.stderr


@pytest.mark.slow
def test_the_encoder_is_loaded_before_the_first_request(folders):
    """A service whose model is gone does not start."""
    words = ["serve", folders / "dense", "--model", folders, "--port", "0"]
    command = [sys.executable, "-m", "retrievalkit", *map(str, words)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == 2
    assert "Traceback" not in ran.stderr


def test_python_serves_with_the_same_words(folders):
    """`rk.serve` takes the options of the command; in a notebook it says where to start it."""

    async def in_a_notebook():
        rk.serve(folders / "dense", port=0)

    with pytest.raises(InputError, match="does not exist"):
        rk.serve(folders / "nothere")
    with pytest.raises(OptionError, match="did you mean 'port'"):
        rk.serve(folders / "dense", prot=1)
    with pytest.raises(UnsupportedError, match="as in a notebook"):
        asyncio.run(in_a_notebook())
