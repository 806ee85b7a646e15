"""A service stops without losing requests, and reloads its indexes while it answers."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time

import httpx2
import pytest
from retrievalkit_serve.collection import Collection
from retrievalkit_serve.failures import RefusedError
from retrievalkit_serve.serve import ServeOptions
from services import TOKEN, service

import retrievalkit as rk

pytestmark = pytest.mark.slow

QUERY = {"query": "what is the capital of Peru", "k": 3}


class Clients:
    """Clients that search without pauses, each on its own connection, and record the answers."""

    def __init__(self, process, count, headers=None):
        self.answers, self.failures = [], []
        self.refused = 0
        self._active = True
        self._threads = [threading.Thread(target=self._search, args=(process, headers)) for _ in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._active = False
        for thread in self._threads:
            thread.join()

    def wait(self, count):
        end = time.monotonic() + 60
        start = len(self.answers)
        while len(self.answers) < start + count and time.monotonic() < end:
            time.sleep(0.01)

    def _search(self, process, headers):
        with process.client(headers=headers) as client:
            while self._active:
                try:
                    response = client.post("/search", json=QUERY)
                except httpx2.ConnectError:
                    self.refused += 1  # the request never reached the service
                    return
                except httpx2.HTTPError as error:
                    self.failures.append(error)
                    return
                (self.answers if response.status_code == 200 else self.failures).append(response)


def test_no_request_is_lost_when_the_service_stops(folders):
    """Twelve clients search while it stops: each request is answered, or its connection refused."""
    with service(folders / "dense") as process:
        with Clients(process, 12) as clients:
            clients.wait(100)
            assert process.stop() == 0
        assert clients.failures == []
        assert clients.refused == 12
        assert any("stopped: all requests were answered." in line for line in process.lines)


def test_a_second_signal_stops_immediately(folders):
    """Without waiting for pending requests."""
    with service(folders / "dense", "--timeout", "60") as process:
        url = httpx2.URL(process.address)
        with socket.create_connection((url.host, url.port)) as connection:
            connection.sendall(b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            time.sleep(0.2)
            process.child.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            start = time.monotonic()
            assert process.stop() == 128 + signal.SIGTERM
            assert time.monotonic() - start < 5


@pytest.fixture
def copied(folders, tmp_path):
    """A folder with an index that tests may replace."""
    shutil.copy(folders / "corpus.jsonl", tmp_path / "corpus.jsonl")
    rk.Index.build(tmp_path / "corpus.jsonl", rk.Index.open(folders / "dense").manifest["checkpoint"]["path"],
                   tmp_path / "index", pooler="mean")  # fmt: skip
    return tmp_path


def rebuild(folder, model):
    """Build the index again, with another passage."""
    row = json.dumps({"_id": "new", "title": "", "text": "capital Peru"})
    (folder / "corpus.jsonl").write_text(f"{(folder / 'corpus.jsonl').read_text()}{row}\n")
    rk.Index.build(folder / "corpus.jsonl", model, folder / "index", pooler="mean", overwrite=True)


@pytest.mark.parametrize("by", ["itself", "signal", "request"])
def test_no_request_fails_during_a_reload(copied, tiny_model, by):
    """Although the file of the texts is replaced too."""
    bearer = {"authorization": f"Bearer {TOKEN}"}
    started = service(copied / "index", env={"RKIT_SERVE_TOKEN": TOKEN})
    with started as process, process.client(headers=bearer) as client:
        with Clients(process, 6, bearer) as clients:
            clients.wait(30)
            rebuild(copied, tiny_model)
            process.wait_for(r"reloaded: .*index \(flat, 44 texts\)")
            generation = 3 - (by == "itself")
            if by == "signal":
                process.child.send_signal(signal.SIGHUP)
            elif by == "request":
                assert client.post("/admin/reload").json()["generation"] == generation
            while client.get("/health").json()["generation"] < generation:
                time.sleep(0.05)
            clients.wait(30)
        assert clients.failures == []
        assert {response.json()["generation"] for response in clients.answers} == set(range(1, generation + 1))
        assert client.get("/document", params={"id": "new"}).json()["text"] == "capital Peru"
        assert 'rkit_index_texts{index="index"} 44.0' in client.get("/metrics").text
        time.sleep(0.2)
        assert process.stop() == 0


def test_a_reload_reuses_texts_that_can_still_be_read(copied):
    """The same ones, unless their file was touched, which its readers refuse; limits of scores are kept too."""
    options = ServeOptions([str(copied / "index")])
    first = Collection(options)
    first.calibrate()
    same = Collection(options, 2, first)
    assert same.nonsense == first.nonsense != {}
    identifier = json.loads((copied / "corpus.jsonl").read_text().splitlines()[0])["_id"]
    assert same.document(identifier) == first.document(identifier)
    os.utime(copied / "corpus.jsonl", ns=(1, 1))
    for before in (first, same):
        again = Collection(options, 3, before)
        assert again.document(identifier).text
        with pytest.raises(RefusedError):
            before.document(identifier)


def test_a_failed_reload_keeps_the_old_indexes(copied):
    """They answer as before although all their files are gone; the response and the log have the reason."""
    bearer = {"authorization": f"Bearer {TOKEN}"}
    started = service(copied / "index", env={"RKIT_SERVE_TOKEN": TOKEN})
    with started as process, process.client(headers=bearer) as client:
        paths = {"/search": QUERY, "/explain": {"query": QUERY["query"], "ids": ["d1"]}}

        def answers():
            bodies = [client.post(path, json=body).json() for path, body in paths.items()]
            return [{**body, "took_ms": 0} for body in bodies] + [client.get("/document", params={"id": "d1"}).json()]

        before = answers()
        shutil.rmtree(copied)
        assert answers() == before
        assert process.wait_for("Error: the indexes were not reloaded, and the old ones still answer")
        time.sleep(3)
        assert sum("Error" in line for line in process.lines) == 1
        response = client.post("/admin/reload")
        assert response.status_code == 409
        assert "the indexes were not reloaded, and the old ones still answer" in response.json()["error"]["message"]
        assert answers() == before
        process.child.send_signal(signal.SIGHUP)
        assert process.wait_for("Error: the indexes were not reloaded")
        # Other commands end ten seconds after SIGHUP, as if a library did not return (`cli.signals`).
        time.sleep(10.5)
        assert client.get("/health").json()["status"] == "ok"


def write_version(folder, number):
    """Write documents that all name their version."""
    folder.mkdir(exist_ok=True)
    for name in range(6):
        (folder / f"{name}.txt").write_text(f"the capital of Peru, document {name} of version{number}")


def test_a_service_follows_a_collection(tiny_model, tmp_path):
    """From one state to the next, by its name: no answer mixes two, and none fails."""
    pytest.importorskip("retrievalkit_documents")
    pytest.importorskip("retrievalkit_pyserini")
    docs, index = tmp_path / "handbook", tmp_path / "index"
    write_version(docs, 0)
    rk.sync(docs, index, model=tiny_model)
    with service(index) as process, process.client() as client:
        assert process.wait_for(r"serving handbook: dense \(flat, 6 texts\), bm25 \(bm25, 6 texts\)")
        with Clients(process, 2) as clients:
            for number in range(1, 4):
                write_version(docs, number)
                rk.sync(docs, index)
                end = time.monotonic() + 30
                while f"version{number}" not in client.get("/search?query=capital").json()["hits"][0]["snippet"]:
                    assert time.monotonic() < end
                    time.sleep(0.1)
        assert clients.failures == []
        for response in clients.answers:
            versions = {re.search("version[0-9]", hit["snippet"])[0] for hit in response.json()["hits"]}
            assert len(versions) == 1
        assert client.get("/indexes").json()["collection"] == "handbook"
        assert [model["id"] for model in client.get("/v1/models").json()["data"]] == ["handbook"]
        # A sync that was killed while it replaced the indexes.
        manifest = json.loads((index / "manifest.json").read_text())
        (index / "manifest.json").write_text(json.dumps(manifest | {"replacing": ["bm25"]}))
        os.utime(index / "dense" / "manifest.json")
        process.wait_for("is between two states")
        assert client.get("/search?query=capital").status_code == 200
        rk.sync(docs, index, name="guide")
        process.wait_for("reloaded: guide: dense")
        assert client.get("/indexes").json()["collection"] == "guide"


def test_a_folder_is_followed_and_served_by_one_process(tiny_model, tmp_path):
    docs, index = tmp_path / "docs", tmp_path / "index"
    write_version(docs, 0)
    pytest.importorskip("retrievalkit_documents")
    words = ("sync", docs, index, "--watch", "--serve", "--model", tiny_model, "--name", "guide")
    with service(*words, command=()) as process, process.client() as client:
        assert client.get("/indexes").json()["collection"] == "guide"
        process.wait_for("Following")
        (docs / "new.txt").write_text("Lima is the capital")
        end = time.monotonic() + 30
        while "new.txt" not in [hit["id"] for hit in client.get("/search?query=Lima").json()["hits"]]:
            assert time.monotonic() < end
            time.sleep(0.1)
        assert process.stop(signal.SIGINT) == 0
    # In a process of its own: the thread that syncs ends the service by a signal.
    words = [sys.executable, "-m", "retrievalkit", "sync", tmp_path / "missing", index, "--watch", "--serve"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (done.returncode, "does not exist" in done.stderr) == (2, True)
