"""Random texts and queries with brute-force results, their vectors folders, and Milvus Lite servers in subprocesses."""

import contextlib
import socket
import subprocess
import sys
import time
from dataclasses import dataclass

import numpy as np
import torch
from retrievalkit_milvus.indexer import Milvus

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorStore, VectorWriter
from retrievalkit.scoring import scores


@dataclass
class Case:
    """Random texts and queries; small integers for tests of ties, so that sums are exact."""

    ids: list
    documents: Representation
    queries: Representation

    def expected(self, k):
        """The ids and scores of brute force for each query; without vectors, texts need a common term."""
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
        """A case of some of the texts, with all queries."""
        rows = list(rows)
        return Case([self.ids[row] for row in rows], self.documents.rows(torch.tensor(rows)), self.queries)


def draw(texts, *, dim=0, m=1, vocabulary=0, queries=5, query_vectors=1, varied=False, integers=False, seed=0):
    """Draw a case with `m` vectors per text (1 to `m` if `varied`) and weights for a quarter of the vocabulary."""
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


def write_vectors(folder, case, *, shards=1):
    """Write the documents of a case to a vectors folder."""
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
def serving(folder):
    """Run a Milvus Lite server in a subprocess; yields its address and the process."""
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


def opened(folder, **options):
    """Open an index."""
    index = Milvus(**options)
    index.open(folder)
    return index


def assert_hits(hits, expected):
    """Assert that hits have the same ids in the same order, and the same scores up to rounding."""
    assert hits[0] == expected[0]
    for own, exact in zip(hits[1], expected[1], strict=True):
        assert own.dtype == np.float32
        np.testing.assert_allclose(own, exact, rtol=1e-4, atol=1e-5)
