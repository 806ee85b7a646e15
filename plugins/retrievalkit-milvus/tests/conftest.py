"""Fixtures of the tests: a server for all tests, vectors folders, and indexes."""

import contextlib
import os

import pytest
from milvus_cases import opened, serving, write_vectors
from pymilvus import MilvusClient
from retrievalkit_milvus.indexer import Milvus
from retrievalkit_milvus.server import CERTIFICATES, GRPC_OPTIONS


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    for name in ("MILVUS_TOKEN", "MILVUS_TOKEN_FILE", "MILVUS_URI", "RKIT_ALLOW_PLAINTEXT_TOKEN", *CERTIFICATES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a server for all tests: RKIT_TEST_MILVUS, or Milvus Lite."""
    with contextlib.ExitStack() as stack:
        uri = os.environ.get("RKIT_TEST_MILVUS")
        if not uri:
            uri, _ = stack.enter_context(serving(tmp_path_factory.mktemp("server")))
        client = stack.enter_context(contextlib.closing(MilvusClient(uri, grpc_options=GRPC_OPTIONS)))
        before = client.list_collections()
        yield uri
        for name in set(client.list_collections()) - set(before):
            client.drop_collection(name)


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Writes the documents of a case to a vectors folder."""
    return lambda case, **options: write_vectors(tmp_path_factory.mktemp("case") / "vectors", case, **options)


@pytest.fixture(scope="session")
def build(tmp_path_factory, store):
    """Indexes a case, and returns the folder."""

    def make(case, *, shards=1, **options):
        folder = tmp_path_factory.mktemp("index")
        Milvus(**options).build(store(case, shards=shards), folder)
        return folder

    return make


@pytest.fixture(scope="session")
def indexed(build):
    """Indexes a case, and returns the opened index."""

    def make(case, **options):
        folder = build(case, **options)
        options.pop("shards", None)
        return opened(folder, **options)

    return make
