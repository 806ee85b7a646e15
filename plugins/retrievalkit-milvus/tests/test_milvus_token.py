"""The token goes to addresses that the user gave, and never unencrypted beyond the machine."""

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
    """The addresses that a client is made for, and the token that each would get."""
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


@pytest.mark.parametrize("uri", [FAR, SAFE, NEAR])
def test_an_address_that_only_a_file_names_never_gets_the_token(uri, sent, monkeypatch):
    monkeypatch.setenv("MILVUS_TOKEN", SECRET)
    message = connect(uri, confirmed=False)
    assert sent == []
    assert f"MILVUS_URI={uri}" in message


def test_an_address_that_the_user_gave_gets_the_token(sent, monkeypatch):
    monkeypatch.setenv("MILVUS_TOKEN", SECRET)
    connect(SAFE)
    monkeypatch.setenv("MILVUS_URI", f"{SAFE}/")
    connect(SAFE, confirmed=False)
    assert sent == [(SAFE, SECRET), (SAFE, SECRET)]
    monkeypatch.setenv("MILVUS_URI", NEAR)
    assert "is named by a manifest or a recipe alone" in connect(SAFE, confirmed=False)


def test_without_a_token_a_files_address_may_be_of_this_machine_only(sent):
    connect(NEAR, confirmed=False)
    assert "would get the queries or vectors" in connect(SAFE, confirmed=False)
    assert sent == [(NEAR, "")]


@pytest.mark.parametrize(
    "uri", [FAR, FAR.replace("http", "tcp"), "http://127.0.0.1.evil.invalid", "http://localhost.evil:1"]
)
def test_the_token_leaves_the_machine_encrypted_or_not_at_all(uri, sent, monkeypatch):
    monkeypatch.setenv("MILVUS_TOKEN", SECRET)
    assert "unencrypted. Use an https address" in connect(uri)
    assert sent == []
    monkeypatch.setenv("RKIT_ALLOW_PLAINTEXT_TOKEN", "1")
    connect(uri)
    assert sent == [(uri, SECRET)]


def test_on_this_machine_the_token_needs_no_encryption(sent, monkeypatch):
    monkeypatch.setenv("MILVUS_TOKEN", SECRET)
    for uri in (NEAR, "http://localhost:19530", "tcp://[::1]:19530"):
        connect(uri)
    assert [token for _, token in sent] == [SECRET] * 3


def test_a_token_in_a_file(sent, monkeypatch, tmp_path):
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
def test_an_index_is_opened_knowing_what_its_manifest_alone_says(options, from_file, tmp_path, monkeypatch):
    """Only what `--set` gives is the user's."""
    seen = []
    monkeypatch.setattr(Milvus, "open", lambda self, folder: seen.append(self.from_files))
    made_by = {"name": "milvus", "options": {"uri": SAFE, "search_parameters": ""}, "distribution": "x", "version": "1"}
    monkeypatch.setattr(
        "retrievalkit.storage.read_manifest", lambda *_: {"indexer": made_by, "inputs": {}, "files": {}}
    )
    open_index(tmp_path, options=options)
    assert ("uri" in seen[0]) == from_file
