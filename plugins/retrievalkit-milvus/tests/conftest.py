"""Vectors folders from arrays, brute force to compare with, and a Milvus Lite server in a process of its own."""

import contextlib
import os
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from pymilvus import MilvusClient
from retrievalkit_milvus.indexer import Milvus
from retrievalkit_milvus.server import CERTIFICATES, GRPC_OPTIONS

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.scoring import scores


@dataclass
class Case:
    """Texts and queries, drawn at random: small integers where ties are wanted, so that sums are exact."""

    ids: list
    documents: Representation
    queries: Representation

    def expected(self, k):
        """For each query the ids and scores of brute force, less texts without a common term where only terms are."""
        everything = scores(self.queries, self.documents).numpy()
        ids, best = [], []
        for row in everything:
            order = np.argsort(-row, kind="stable")[:k]
            if self.documents.vectors is None:
                order = order[row[order] > 0]
            ids.append([self.ids[text] for text in order])
            best.append(row[order])
        return ids, best

    def part(self, rows):
        """Some of the texts, with all queries."""
        rows = list(rows)
        return Case([self.ids[row] for row in rows], self.documents.rows(torch.tensor(rows)), self.queries)


def _draw(texts, *, dim=0, m=1, vocabulary=0, queries=5, query_vectors=1, varied=False, integers=False, seed=0):
    """A case: `m` vectors a text (1 to `m` where `varied`), weights of a quarter of the vocabulary."""
    generator = np.random.default_rng(seed)

    def vectors(count, many):
        shape = (count, many, dim)
        return generator.integers(-2, 3, shape) if integers else generator.standard_normal(shape)

    def weights(count):
        values = generator.integers(1, 3, (count, vocabulary)) if integers else generator.random((count, vocabulary))
        return values * (generator.random((count, vocabulary)) < 0.25)

    def representation(count, many, mask):
        fields = {}
        if dim:
            fields |= {"vectors": torch.tensor(vectors(count, many), dtype=torch.float32), "vector_mask": mask}
        if vocabulary:
            fields |= {"weights": torch.tensor(weights(count), dtype=torch.float32)}
        return Representation(**fields)

    mask = torch.arange(m) < torch.tensor(generator.integers(1, m + 1, texts))[:, None] if varied else None
    query_mask = torch.arange(query_vectors) < torch.tensor(generator.integers(1, query_vectors + 1, queries))[:, None]
    ids = [f"t{row}" for row in range(texts)]
    documents = representation(texts, m, mask)
    return Case(ids, documents, representation(queries, query_vectors, query_mask if query_vectors > 1 else None))


def _store(folder, case, *, shards=1):
    """The documents of a case as a vectors folder."""
    folder.mkdir(parents=True)
    writer, documents = VectorWriter(folder), case.documents
    for shard, rows in enumerate(np.array_split(np.arange(len(case.ids)), shards)):
        part = documents.rows(torch.from_numpy(rows))
        vectors, counts, weights = part.vectors, None, part.weights
        if part.vector_mask is not None:
            vectors, counts = part.vectors[part.vector_mask].numpy(), part.vector_mask.sum(1).numpy()
        elif vectors is not None:
            vectors = vectors.numpy()
        weights = None if weights is None else weights.numpy()
        writer.write_shard(shard, [case.ids[row] for row in rows], vectors, counts=counts, weights=weights)
    writer.finish()
    return VectorStore(folder)


@contextlib.contextmanager
def _serving(folder):
    """A Milvus Lite server on a port of this machine, in a process of its own; yields its address and the process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "milvus_lite.cmdline", "server", "--data-dir", str(folder), "--port", str(port)]
    process = subprocess.Popen([*command, "--host", "127.0.0.1"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(600):
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}", process
    finally:
        process.terminate()
        process.wait()


@pytest.fixture(autouse=True)
def no_token(monkeypatch):
    for name in ("MILVUS_TOKEN", "MILVUS_TOKEN_FILE", "MILVUS_URI", "RKIT_ALLOW_PLAINTEXT_TOKEN", *CERTIFICATES):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def draw():
    return _draw


@pytest.fixture(scope="session")
def serving():
    return _serving


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    """The address of a server that all tests share: Milvus Lite, or the one that RKIT_TEST_MILVUS names."""
    with contextlib.ExitStack() as stack:
        uri = os.environ.get("RKIT_TEST_MILVUS")
        if not uri:
            uri, _ = stack.enter_context(_serving(tmp_path_factory.mktemp("server")))
        client = stack.enter_context(contextlib.closing(MilvusClient(uri, grpc_options=GRPC_OPTIONS)))
        before = client.list_collections()
        yield uri
        for name in set(client.list_collections()) - set(before):
            client.drop_collection(name)


@pytest.fixture(scope="session")
def store(tmp_path_factory):
    """Writes a case as a vectors folder."""
    return lambda case, **options: _store(tmp_path_factory.mktemp("case") / "vectors", case, **options)


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
        return _opened(folder, **options)

    return make


@pytest.fixture(scope="session")
def opened():
    return _opened


def _opened(folder, **options):
    index = Milvus(**options)
    index.open(folder)
    return index


@pytest.fixture(scope="session")
def assert_found():
    """Asks for the same ids in the same order, and the same scores: to the last bit, or up to rounding."""

    def check(hits, expected, *, exact=False):
        assert hits[0] == expected[0]
        for ours, theirs in zip(hits[1], expected[1], strict=True):
            assert ours.dtype == np.float32
            np.testing.assert_allclose(ours, theirs, rtol=0 if exact else 1e-4, atol=0 if exact else 1e-5)

    return check
