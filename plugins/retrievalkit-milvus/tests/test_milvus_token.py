"""The token is sent only to addresses that the user set, and unencrypted only to this machine."""

from __future__ import annotations

import pytest
from retrievalkit_milvus import server as connections
from retrievalkit_milvus.indexer import Milvus

from retrievalkit.errors import InputError
from retrievalkit.indexing.open_indexes import open_index

FAR, SAFE, NEAR = "http://milvus.invalid:19530", "https://milvus.invalid:19530", "http://127.0.0.1:19530"
SECRET = "root:s3cret"


@pytest.fixture
def sent(monkeypatch):
    """The address and token of each client."""
    sent = []

    def client(uri, *, token, timeout, **options):
        del timeout, options
        sent.append((uri, token))
        raise InputError("stop here")

    monkeypatch.setattr(connections, "_client", client)
    return sent


def connect(uri, **options):
    with pytest.raises(InputError) as caught:
        connections.connect(uri, timeout=1, **options)
    assert SECRET not in str(caught.value)
    return str(caught.value)


TOKEN = {"MILVUS_TOKEN": SECRET}
CONNECTIONS = [
    # An address from a file gets no token, and is only used without a token if it is on this machine.
    *((uri, False, TOKEN, f"MILVUS_URI={uri}") for uri in (FAR, SAFE, NEAR)),
    (SAFE, False, {**TOKEN, "MILVUS_URI": NEAR}, "comes from a manifest or a recipe"),
    (SAFE, False, {}, "would receive the queries or vectors"),
    (NEAR, False, {}, None),
    # An address from the user gets the token: set by an option, or by MILVUS_URI.
    (SAFE, True, TOKEN, None),
    (SAFE, False, {**TOKEN, "MILVUS_URI": f"{SAFE}/"}, None),
    # The token leaves the machine only encrypted, unless the user allows otherwise.
    (FAR, True, TOKEN, "unencrypted. Use an https address"),
    (FAR.replace("http", "tcp"), True, TOKEN, "unencrypted"),
    ("http://127.0.0.1.evil.invalid", True, TOKEN, "unencrypted"),
    ("http://localhost.evil:1", True, TOKEN, "unencrypted"),
    (FAR, True, {**TOKEN, "RKIT_ALLOW_PLAINTEXT_TOKEN": "1"}, None),
    *((uri, True, TOKEN, None) for uri in (NEAR, "http://localhost:19530", "tcp://[::1]:19530")),
]


@pytest.mark.parametrize(("uri", "confirmed", "environment", "refusal"), CONNECTIONS)
def test_the_token_is_sent_only_to_addresses_of_the_user(uri, confirmed, environment, refusal, sent, monkeypatch):
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    message = connect(uri, confirmed=confirmed)
    assert message == "stop here" if refusal is None else refusal in message
    assert sent == ([(uri, environment.get("MILVUS_TOKEN", ""))] if refusal is None else [])


def test_the_token_may_be_in_a_file(sent, monkeypatch, tmp_path):
    path = tmp_path / "token"
    monkeypatch.setenv("MILVUS_TOKEN_FILE", str(path))
    assert f"MILVUS_TOKEN_FILE names '{path}', which cannot be read" in connect(NEAR)
    path.write_text(f"{SECRET}\n")
    connect(NEAR)
    monkeypatch.setenv("MILVUS_TOKEN", "other")
    connect(NEAR)
    assert sent == [(NEAR, SECRET), (NEAR, "other")]


@pytest.mark.parametrize(
    ("options", "from_file"), [({}, True), ({"search_parameters": "ef=9"}, True), ({"uri": SAFE}, False)]
)
def test_opened_indexers_record_which_options_are_from_the_manifest(options, from_file, tmp_path, monkeypatch):
    """Options that `--set` repeats are the user's."""
    recorded = []
    monkeypatch.setattr(Milvus, "open", lambda self, folder: recorded.append(self.from_files))
    indexer = {"name": "milvus", "options": {"uri": SAFE, "search_parameters": ""}, "distribution": "x", "version": "1"}
    monkeypatch.setattr(
        "retrievalkit.storage.read_manifest", lambda *_: {"indexer": indexer, "inputs": {}, "files": {}}
    )
    open_index(tmp_path, options=options)
    assert ("uri" in recorded[0]) == from_file
