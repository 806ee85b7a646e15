"""Folders of vectors and weights for tests of indexers, and their indexes."""

from __future__ import annotations

import numpy as np
import scipy.sparse
import torch

from retrievalkit import registry, storage
from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorStore, VectorWriter

DIM, TERMS = 8, 40


def write(folder, *, ids=None, vectors=None, counts=None, weights=None, keys=None, shard=20, options=None, **entries):
    """Write texts `t0`, `t1` ... with (rows, dim) vectors, `counts` per text, and (texts, terms) weights, in shards."""
    folder.mkdir(parents=True)
    writer = VectorWriter(folder)
    counts = np.ones(len(vectors if weights is None else weights), dtype=int) if counts is None else np.array(counts)
    ids = [f"t{row}" for row in range(len(counts))] if ids is None else ids
    starts = np.cumsum([0, *counts])
    for number, start in enumerate(range(0, len(counts), shard)):
        end = min(len(counts), start + shard)
        rows = None if vectors is None else vectors[starts[start] : starts[end]]
        matrix = None if weights is None else scipy.sparse.csr_matrix(weights[start:end])
        own = None if keys is None else keys[starts[start] : starts[end]]
        writer.write_shard(number, ids[start:end], rows, counts=counts[start:end], weights=matrix, keys=own)
    written, files = writer.finish(), writer.checksums()
    described = {"command": "encode", "options": options or {}, "counts": written, "files": files}
    storage.write_manifest(folder, "vectors", **described, **entries)
    return VectorStore(folder)


def opened(name, store, folder, **options):
    folder.mkdir()
    counts = registry.create("indexer", name, **options).build(store, folder)
    assert counts["texts"] == len(store)
    indexer = registry.create("indexer", name, **options)
    indexer.open(folder)
    return indexer


def drawn(rows, seed=0, dim=DIM):
    return np.random.default_rng(seed).standard_normal((rows, dim), dtype=np.float32)


def drawn_weights(random, texts, *, values=None, share=0.3):
    weights = random.random((texts, TERMS), dtype=np.float32)
    if values is not None:
        weights = random.choice(values, weights.shape).astype(np.float32)
    return weights * (random.random(weights.shape) < share)


def representation(vectors, counts, weights=None):
    """Return the vectors and weights in memory, padded."""
    mask = None
    if vectors is not None:
        mask = torch.arange(max(counts)) < torch.tensor(counts)[:, None]
        padded = torch.zeros(*mask.shape, vectors.shape[1])
        padded[mask] = torch.from_numpy(vectors).float()
        vectors = padded
    return Representation(vectors, mask, None if weights is None else torch.from_numpy(weights))


def assert_best(indexer, queries, expected, k, *, least=None):
    ids, values = indexer.search(queries, k)
    for row, scores in enumerate(expected):
        order = [text for text in np.argsort(-scores, kind="stable") if least is None or scores[text] > least][:k]
        assert ids[row] == [f"t{text}" for text in order]
        np.testing.assert_allclose(values[row], scores[order], rtol=1e-5, atol=1e-5)
        assert values[row].dtype == np.float32
