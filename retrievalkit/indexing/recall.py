"""Recall of an index against brute-force search: `rkit index --check`.

Queries are searched in the index and by brute force over its vectors. They are a random sample of the folder's texts,
or the queries of a file, encoded with the checkpoint. A hit counts if its score is at least that of the last text in
the brute-force top k, so ties do not lower recall.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrievalkit import storage
from retrievalkit.contracts import Representation
from retrievalkit.data.queries import read_queries
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError
from retrievalkit.indexing.open_indexes import OpenIndex, open_index
from retrievalkit.indexing.query_encoders import Encoders
from retrievalkit.indexing.segments import joined_vectors
from retrievalkit.models.precision import Precision
from retrievalkit.reporting.terminal import counted
from retrievalkit.scoring import check_k, scores_of, top_k, viewed

SEED = 0
QUERIES = 100
DEPTH = 10
_BLOCK = 8192
_BATCH = 256
# Relative to a query's best score: the error of summing float32 in a different order.
_ROUNDING = 1e-4
_MAX_QUERY_VECTORS = 32


@dataclass(frozen=True)
class Recall:
    """The result of a check.

    Attributes:
        queries: Number of queries searched.
        k: Hits per query.
        recall: Fraction of the top-k texts that the index returned, averaged over queries.
        exact: True if the index returned the whole top k of every query, with equal scores up to rounding.
        largest_difference: The largest difference between a hit's score in the index and its score by brute force.
        source: Origin of the queries.
    """

    queries: int
    k: int
    recall: float
    exact: bool
    largest_difference: float
    source: str

    def as_json(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return asdict(self)

    @property
    def summary(self) -> str:
        """The result as a line of text."""
        exactness = "exact" if self.exact else "not exact"
        return (
            f"recall@{self.k} {self.recall:.4f} over {counted(self.queries, 'queries')} ({self.source}), "
            f"{exactness}; scores differ by {self.largest_difference:.2g} at most"
        )


def check_index(
    folder: str | Path,
    *,
    queries: str | Path | None = None,
    count: int = QUERIES,
    k: int = DEPTH,
    options: Mapping[str, Any] | None = None,
    model: str | Path | None = None,
    precision: Precision | None = None,
) -> Recall:
    """Compare an index with brute-force search, and record the result in its manifest."""
    check_k(k)
    if precision is not None and queries is None:
        msg = "precision has no effect: without check_queries, no query is encoded. Leave it out, or set check_queries."
        raise OptionError(msg)
    index = open_index(folder, options=options)
    if not index.needs_encoding:
        msg = f"index '{folder}' indexes texts (indexer '{index.name}'): there are no vectors to compare it with."
        raise UnsupportedError(msg)
    store = _vectors(index)
    depth = min(k, len(store))
    searched, exact, difference = 0, True, 0.0
    shares: list[float] = []
    for encoded in _own_texts(store, count) if queries is None else _encoded(index, queries, count, model, precision):
        batch = viewed(encoded, index.indexer.view)
        searched += len(batch)
        ids, reported = index.indexer.search(batch, depth)
        rows = [store.ids.rows(hits) for hits in ids]
        for hits, texts in zip(ids, rows, strict=True):
            if (texts < 0).any():
                unknown = hits[int(np.argmax(texts < 0))]
                msg = f"index '{index.folder}' returns the text '{unknown}' and holds no vectors of it. Index again."
                raise ArtifactError(msg)
        best, _ = top_k(batch, store.blocks(_BLOCK), depth, width=store.block_rows(_BLOCK))
        for scores, own, every in zip(scores_of(batch, store, rows), reported, best.numpy(), strict=True):
            top = every[np.isfinite(every)]
            if not len(top):
                exact &= not len(scores)
                continue
            rounding = _ROUNDING * max(1.0, float(np.abs(top).max()))
            matching = int((scores >= top[-1] - rounding).sum())
            differs = float(np.abs(scores - np.asarray(own)).max(initial=0.0))
            shares.append(min(matching, len(top)) / len(top))
            difference = max(difference, differs)
            exact &= matching == len(top) and differs <= rounding
    share = sum(shares) / len(shares) if shares else 1.0
    source = "texts of the folder" if queries is None else str(queries)
    recall = Recall(searched, k, round(share, 6), exact, difference, source)
    storage.add_to_manifest(index.folder, check=asdict(recall) | ({"options": dict(options)} if options else {}))
    return recall


def check_beforehand(source: str | Path, queries: str | Path | None) -> None:
    """Refuse an impossible check before an index is built."""
    if storage.kind_of(source) != "vectors":
        msg = f"check compares an index of vectors with brute force, but '{source}' is not a vectors folder."
        raise UnsupportedError(msg)
    if queries is not None:
        read_queries(queries)


def _vectors(index: OpenIndex) -> VectorStore:
    """Return the verified vectors that the index was built from, inside the index or at the recorded path."""
    view = index.indexer.view
    if "segments" in index.manifest:
        joined = joined_vectors(index.folder, index.manifest, view=view)
        if joined is not None:
            return joined
    recorded = index.manifest["inputs"].get("vectors")
    if recorded is None:
        msg = f"'{index.folder / storage.MANIFEST}' is damaged: inputs.vectors is missing. Index again."
        raise ArtifactError(msg)
    for place in (index.folder / "vectors", Path(recorded["path"])):
        if storage.kind_of(place) == "vectors":
            store = VectorStore(place)
            if store.fingerprint == recorded["fingerprint"]:
                return VectorStore(place, view=view)
    if index.manifest.get("change", 0) > len(index.manifest.get("segments", ())):
        msg = f"index '{index.folder}' was changed, and holds no vectors to compare it with (indexer '{index.name}')."
        raise UnsupportedError(msg)
    msg = f"the vectors of '{index.folder}' have changed, or are no longer at '{recorded['path']}'. Restore them."
    raise ArtifactError(msg)


def _own_texts(store: VectorStore, count: int) -> Iterator[Representation]:
    """Yield texts as queries, with one of their vectors, or with all if their number varies (late interaction)."""
    random = np.random.default_rng(SEED)
    sampled = np.sort(random.choice(len(store), min(count, len(store)), replace=False))
    for start in range(0, len(sampled), _BATCH):
        block = store.take(sampled[start : start + _BATCH])
        weights = None if block.weights is None else torch.from_numpy(block.weights.toarray())
        if block.vectors is None:
            yield Representation(weights=weights)
            continue
        counts = np.minimum(block.counts, _MAX_QUERY_VECTORS)
        first = np.cumsum(block.counts) - block.counts
        if block.starts is None and block.keys is None:
            first += random.integers(0, counts)
            counts = np.ones_like(counts)
        places = first[:, None] + np.minimum(np.arange(counts.max()), counts[:, None] - 1)
        mask = np.arange(counts.max()) < counts[:, None]
        vectors = torch.from_numpy(block.vectors[places].astype(np.float32))
        keys = None if block.keys is None else torch.from_numpy(block.keys[places].astype(np.int64))
        yield Representation(vectors, torch.from_numpy(mask), weights, keys=keys)


def _encoded(
    index: OpenIndex, file: str | Path, count: int, model: str | Path | None, precision: Precision | None
) -> Iterator[Representation]:
    """Yield the first queries of a file, encoded with the checkpoint of the index."""
    queries = read_queries(file)[:count]
    encoders = Encoders(model, [index], precision or "fp32")
    for start in range(0, len(queries), _BATCH):
        texts = [index.formed(query.content) for query in queries[start : start + _BATCH]]
        yield encoders.of(index).encode(texts, "query", precision=encoders.precision)
