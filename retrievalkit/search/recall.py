"""The recall of an index against brute force: what `rkit index --check` measures.

    rkit index VECTORS --indexer N --output DIR --check
    rkit index INDEX --check [--check-queries FILE] [--check-count N] [--check-k K]

Some queries are searched in the index and by brute force over its vectors. Queries are texts of the folder, drawn
with a seed, or those of a file, which the checkpoint encodes. A text counts as found if its score is at least that of
the last text of brute force, so that ties cost nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from retrievalkit import artifacts
from retrievalkit.contracts import Representation
from retrievalkit.data.queries import read_queries
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, UnsupportedError
from retrievalkit.model.precision import Precision
from retrievalkit.score import check_k, scores_of, top_k, viewed
from retrievalkit.search.encoders import Encoders
from retrievalkit.search.sources import OpenIndex, open_index

SEED = 0
QUERIES = 100
DEPTH = 10
_BLOCK = 8192
_BATCH = 256
# Relative to a query's best score: what another order of additions in float32 may change.
_ROUNDING = 1e-4
_MOST_QUERY_VECTORS = 32


@dataclass(frozen=True)
class Recall:
    """The result of a check.

    Attributes:
        queries: How many queries were searched.
        k: Hits of each.
        recall: The share of the k best texts that the index found, averaged over queries.
        exact: Whether the index found all of them for every query, with their scores up to rounding.
        largest_difference: Between a hit's score in the index and by the scoring rule.
        source: Where the queries come from.
    """

    queries: int
    k: int
    recall: float
    exact: bool
    largest_difference: float
    source: str


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
    """Compare an index with brute force, and write the result into its manifest.

    Args:
        folder: The index.
        queries: A queries file; None = texts of the folder itself.
        count: The largest number of queries.
        k: Hits of each.
        options: Options of the indexer that differ from those at indexing.
        model: The checkpoint that encodes the queries of a file, if it was moved.
        precision: The number format to encode them in; None = fp32.

    Raises:
        InputError: There is nothing to compare with, or the vectors were altered.
    """
    check_k(k)
    index = open_index(folder, options=options)
    if not index.needs_encoding:
        msg = f"index '{folder}' is one of texts (indexer '{index.name}'): there are no vectors to compare it with."
        raise UnsupportedError(msg)
    store = VectorStore(_vectors(index), view=index.indexer.view)
    total = _Total()
    for asked in _own_texts(store, count) if queries is None else _encoded(index, queries, count, model, precision):
        total.add(index, store, viewed(asked, index.indexer.view), min(k, len(store)))
    source = "texts of the folder" if queries is None else str(queries)
    found = Recall(total.queries, k, round(total.share, 6), total.exact, total.difference, source)
    _note(index, found, options or {})
    return found


def check_beforehand(source: str | Path, queries: str | Path | None) -> None:
    """Refuse a check that is impossible, before an index is built.

    Raises:
        InputError: The source is a corpus, or the queries file is not one.
    """
    if artifacts.kind_of(source) != "vectors":
        msg = f"--check compares an index of vectors with brute force, and '{source}' is no vectors folder."
        raise UnsupportedError(msg)
    if queries is not None:
        read_queries(queries)


def _vectors(index: OpenIndex) -> Path:
    """The folder of vectors that the index was built from, inside it or at its old place, verified."""
    made_of = index.manifest["inputs"]["vectors"]
    for place in (index.folder / "vectors", Path(made_of["path"])):
        if artifacts.kind_of(place) == "vectors":
            store = VectorStore(place)
            store.verify()
            if store.fingerprint == made_of["fingerprint"]:
                return place
    msg = (
        f"the vectors that index '{index.folder}' was made of are not at '{made_of['path']}' any more (or are others), "
        f"and without them there is nothing to compare with. Encode again, or put them back."
    )
    raise ArtifactError(msg)


class _Total:
    """Sums over all queries so far."""

    def __init__(self) -> None:
        self.queries = 0
        self.exact = True
        self.difference = 0.0
        self._shares: list[float] = []

    @property
    def share(self) -> float:
        return sum(self._shares) / len(self._shares) if self._shares else 1.0

    def add(self, index: OpenIndex, store: VectorStore, asked: Representation, k: int) -> None:
        self.queries += len(asked)
        ids, reported = index.indexer.search(asked, k)
        rows = [store.ids.rows(one) for one in ids]
        for found, texts in zip(ids, rows, strict=True):
            if (texts < 0).any():
                unknown = found[int(np.argmax(texts < 0))]
                msg = f"index '{index.folder}' finds '{unknown}', which is no text of its vectors. Index again."
                raise ArtifactError(msg)
        best, _ = top_k(asked, store.blocks(_BLOCK), k, width=store.block_rows(_BLOCK))
        for true, given, wanted in zip(scores_of(asked, store, rows), reported, best.numpy(), strict=True):
            self._add_query(true, np.asarray(given), wanted[np.isfinite(wanted)])

    def _add_query(self, true: np.ndarray, given: np.ndarray, wanted: np.ndarray) -> None:
        if not len(wanted):
            self.exact &= not len(true)
            return
        rounding = _ROUNDING * max(1.0, float(np.abs(wanted).max()))
        found = int((true >= wanted[-1] - rounding).sum())
        difference = float(np.abs(true - given).max(initial=0.0))
        self._shares.append(min(found, len(wanted)) / len(wanted))
        self.difference = max(self.difference, difference)
        self.exact &= found == len(wanted) and difference <= rounding


def _own_texts(store: VectorStore, count: int) -> Iterator[Representation]:
    """Texts of the folder as queries: one vector of each, or all if their number varies, as with token vectors."""
    random = np.random.default_rng(SEED)
    chosen = np.sort(random.choice(len(store), min(count, len(store)), replace=False))
    for start in range(0, len(chosen), _BATCH):
        block = store.take(chosen[start : start + _BATCH])
        weights = None if block.weights is None else torch.from_numpy(block.weights.toarray())
        if block.vectors is None:
            yield Representation(weights=weights)
            continue
        counts = np.minimum(block.counts, _MOST_QUERY_VECTORS)
        first = np.cumsum(block.counts) - block.counts
        if block.starts is None:
            first += random.integers(0, counts)
            counts = np.ones_like(counts)
        places = first[:, None] + np.minimum(np.arange(counts.max()), counts[:, None] - 1)
        mask = np.arange(counts.max()) < counts[:, None]
        vectors = torch.from_numpy(block.vectors[places].astype(np.float32))
        yield Representation(vectors, torch.from_numpy(mask), weights)


def _encoded(
    index: OpenIndex, file: str | Path, count: int, model: str | Path | None, precision: Precision | None
) -> Iterator[Representation]:
    """The first queries of a file, encoded by the checkpoint that made the index."""
    queries = read_queries(file)[:count]
    encoders = Encoders(model, [index], precision or "fp32")
    for start in range(0, len(queries), _BATCH):
        texts = [("", query.text) for query in queries[start : start + _BATCH]]
        yield encoders.of(index).encode(texts, "query", precision=encoders.precision)


def _note(index: OpenIndex, found: Recall, options: Mapping[str, Any]) -> None:
    """Write the result into the index's manifest."""
    entry = asdict(found) | ({"options": dict(options)} if options else {})
    artifacts.add_to_manifest(index.folder, check=entry)


def as_json(found: Recall) -> dict[str, Any]:
    """The result as JSON values."""
    return asdict(found)


def describe(found: Recall) -> str:
    """The result as a line of text."""
    how = "exact" if found.exact else "not exact"
    return (
        f"recall@{found.k} {found.recall:.4f} over {found.queries:,} queries ({found.source}), {how}; "
        f"scores differ by {found.largest_difference:.2g} at most"
    )
