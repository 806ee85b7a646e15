"""A service stops without losing a request, and takes new indexes while it answers."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import threading
import time

import httpx2
import pytest
from services import TOKEN, service

import retrievalkit as rk

pytestmark = pytest.mark.slow

QUERY = {"query": "what is the capital of Peru", "k": 3}


class Askers:
    """Clients that ask without a pause, each on its own connection, and note their answers."""

    def __init__(self, process, count, headers=None):
        self.answers, self.failures = [], []
        self.refused = 0
        self._going = True
        self._threads = [threading.Thread(target=self._ask, args=(process, headers)) for _ in range(count)]

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._going = False
        for thread in self._threads:
            thread.join()

    def wait(self, count):
        end = time.monotonic() + 60
        start = len(self.answers)
        while len(self.answers) < start + count and time.monotonic() < end:
            time.sleep(0.01)

    def _ask(self, process, headers):
        with process.client(headers=headers) as client:
            while self._going:
                try:
                    response = client.post("/search", json=QUERY)
                except httpx2.ConnectError:
                    self.refused += 1  # it never reached the service
                    return
                except httpx2.HTTPError as error:
                    self.failures.append(error)
                    return
                (self.answers if response.status_code == 200 else self.failures).append(response)


def test_no_request_is_lost_when_the_service_stops(folders):
    """Twelve clients ask on while it stops: each gets its answer, or is not let in any more."""
    with service(folders / "dense") as process:
        with Askers(process, 12) as askers:
            askers.wait(100)
            assert process.stop() == 0
        assert askers.failures == []
        assert askers.refused == 12
        assert any("stopped: all requests were answered." in line for line in process.lines)


def test_a_second_signal_stops_at_once(folders):
    """Without waiting for a request that has not ended."""
    with service(folders / "dense", "--timeout", "60") as process:
        place = httpx2.URL(process.address)
        with socket.create_connection((place.host, place.port)) as held:
            held.sendall(b"POST /search HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
            time.sleep(0.2)
            process.child.send_signal(signal.SIGTERM)
            time.sleep(0.3)
            start = time.monotonic()
            assert process.stop() == 128 + signal.SIGTERM
            assert time.monotonic() - start < 5


@pytest.fixture
def copied(folders, tmp_path):
    """An index that may be replaced."""
    shutil.copy(folders / "corpus.jsonl", tmp_path / "corpus.jsonl")
    rk.Index.build(tmp_path / "corpus.jsonl", rk.Index.open(folders / "dense").manifest["checkpoint"]["path"],
                   tmp_path / "index", pooler="mean")  # fmt: skip
    return tmp_path


def replaced(folder, model):
    """The index built anew, with one passage more."""
    row = json.dumps({"_id": "new", "title": "", "text": "capital Peru"})
    (folder / "corpus.jsonl").write_text(f"{(folder / 'corpus.jsonl').read_text()}{row}\n")
    rk.Index.build(folder / "corpus.jsonl", model, folder / "index", pooler="mean", overwrite=True)


@pytest.mark.parametrize("way", ["signal", "address"])
def test_a_new_index_is_swapped_in_without_a_request_failing(copied, tiny_model, way):
    """The file of its texts is replaced too; answers before and after say which index gave them."""
    bearer = {"authorization": f"Bearer {TOKEN}"}
    started = service(copied / "index", env={"RKIT_SERVE_TOKEN": TOKEN})
    with started as process, process.client(headers=bearer) as client:
        with Askers(process, 6, bearer) as askers:
            askers.wait(30)
            replaced(copied, tiny_model)
            askers.wait(30)
            if way == "signal":
                process.child.send_signal(signal.SIGHUP)
                process.wait_for(r"reloaded: index \(flat, 44 texts\)")
            else:
                answer = client.post("/admin/reload").json()
                assert answer["indexes"][0]["texts"] == 44
            askers.wait(30)
        assert askers.failures == []
        assert {response.json()["generation"] for response in askers.answers} == {1, 2}
        assert client.get("/document", params={"id": "new"}).json()["text"] == "capital Peru"
        assert 'rkit_index_texts{index="index"} 44.0' in client.get("/metrics").text
        time.sleep(0.2)
        assert process.stop() == 0


def test_an_index_that_cannot_be_opened_is_not_swapped_in(copied):
    """The old one answers, and the reason is told."""
    bearer = {"authorization": f"Bearer {TOKEN}"}
    started = service(copied / "index", env={"RKIT_SERVE_TOKEN": TOKEN})
    with started as process, process.client(headers=bearer) as client:
        (copied / "index" / "manifest.json").rename(copied / "gone.json")
        response = client.post("/admin/reload")
        assert response.status_code == 409
        assert "the indexes were not reloaded, and the old ones still answer" in response.json()["error"]["message"]
        assert client.post("/search", json=QUERY).json()["generation"] == 1
        process.child.send_signal(signal.SIGHUP)
        assert process.wait_for("Error: the indexes were not reloaded")
        # Other commands end ten seconds after SIGHUP, as if a library did not return (`cli.signals`).
        time.sleep(10.5)
        assert client.get("/health").json()["status"] == "ok"
