"""The indexer `lucene_hnsw`: vectors in Lucene's HNSW graph, searched approximately.

    rkit index VECTORS --indexer lucene_hnsw --output hnsw
    rkit search hnsw --queries QUERIES --k 100 --output hnsw.trec

The folder holds `lucene/` (an index that Pyserini's LuceneHnswDenseSearcher can also open) and the vectors themselves,
hard-linked if possible, from which the scores of the graph's hits are computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge

from retrievalkit.contracts import Allowed, Indexer, Representation
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring import best_of_candidates, check_k, scores_of, vectors_alone
from retrievalkit_pyserini.bulk import HITS_IN_A_CALL, vectors
from retrievalkit_pyserini.documents import DocumentSearcher, DocumentWriter
from retrievalkit_pyserini.filtering import with_ids
from retrievalkit_pyserini.handles import bind, constructor, then
from retrievalkit_pyserini.index_folder import INDEX, no_index, undone_on_failure
from retrievalkit_pyserini.java import alone, java_class, java_megabytes, processors

NUMBERS_AT_ONCE = 1 << 22

_VECTORS = "vectors"

FIELD = "vector"
"""Field name expected by Anserini's dense searcher."""

MOST_DIMENSIONS = 1024
"""Lucene's limit for vectors of its default codec."""

WRITE_BUFFER_MEGABYTES = 1024.0
"""Buffer for vectors and their graph: every flush starts a new graph, which Lucene must merge later."""


class LuceneHnsw(Indexer):
    """Approximate nearest neighbours with Lucene's HNSW graph, one or many vectors per text.

    HNSW (Malkov and Yashunin 2018, https://arxiv.org/abs/1603.09320) stores 4 bytes per dimension and up to 32 links
    per vector; search time grows about logarithmically. Retrieval is approximate (`rkit index --check` measures
    recall), scores are exact: float32 inner products of the original vectors, or the sum over the best matches for
    several query vectors (MaxSim). Building with several threads gives a different graph, and hits, each time.

    Args:
        ef_search: Minimum number of vectors that a query explores: more gives higher recall and slower search.
        threads: Threads for building and searching; none = one per processor.
    """

    indexes = "vectors"

    _store: VectorStore
    _searcher: GraphSearcher

    def __init__(self, *, ef_search: Annotated[int, Ge(1)] = 100, threads: Annotated[int, Ge(1)] | None = None) -> None:
        self.threads = threads or processors()
        self.ef_search = ef_search

    @alone
    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, float]:
        """Add all vectors to one graph.

        Raises:
            UnsupportedError: The folder has no vectors, also has weights, or has vectors that are too long for Lucene.
            RetrievalkitError: Lucene ran out of disk space or memory. No files are left behind.
        """
        _check_source(source)
        folder = Path(index_dir)
        with undone_on_failure(folder), GraphWriter(folder / INDEX, threads=self.threads) as writer:
            first = 0
            for block in source.blocks(max(1, NUMBERS_AT_ONCE // source.dim)):
                assert block.vectors is not None
                rows = np.arange(first, first + len(block.vectors))
                writer.add_vectors(first, source.ids.take(source.texts_of(rows)), block.vectors)
                first += len(rows)
        source.link(folder / _VECTORS)
        return {"texts": len(source), "vectors": source.rows}

    @alone
    def open(self, index_dir: Path) -> None:
        """Open an index; its folder may have been moved.

        Raises:
            ArtifactError: The index does not exist, or is damaged.
        """
        folder = Path(index_dir)
        if not (folder / _VECTORS).is_dir():
            raise no_index(folder, "lucene_hnsw", f"its folder {_VECTORS} is missing", "VECTORS")
        self._store = VectorStore(folder / _VECTORS)
        self._searcher = GraphSearcher(folder / INDEX, self._store.rows)

    @alone
    def search(self, queries: Representation | Any, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """For each query, the best texts that the graph search reaches; ties in index order."""
        return self._search(queries, k)

    @alone
    def search_among(
        self, queries: Representation | Any, k: int, allowed: Allowed
    ) -> tuple[list[list[str]], list[np.ndarray]]:
        """Like `search`, with a filter: if few texts pass, Lucene compares all of them."""
        return self._search(queries, k, allowed)

    def _search(
        self, queries: Representation, k: int, allowed: Allowed | None = None
    ) -> tuple[list[list[str]], list[np.ndarray]]:
        check_k(k)
        store = self._store
        k = min(k, len(store if allowed is None else allowed))
        only = None if allowed is None else with_ids(allowed.ids)
        vectors = vectors_alone(queries, store.dim)
        hits: list[tuple[np.ndarray, np.ndarray]] = []
        step = max(1, HITS_IN_A_CALL // (self._wanted(k) * vectors.shape[1]))
        for start in range(0, len(queries), step):
            part = queries.rows(slice(start, start + step))
            hits += best_of_candidates(part, store, self._candidates(part, k, only), k)
        return [store.ids.take(texts) for texts, _ in hits], [scores for _, scores in hits]

    @alone
    def scores(self, queries: Representation | Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """The scores of the requested texts over all of their vectors; NaN for an unknown id."""
        vectors_alone(queries, self._store.dim)
        return scores_of(queries, self._store, list(map(self._store.ids.rows, ids)))

    def _wanted(self, k: int) -> int:
        """The number of vectors to retrieve so that they cover about k texts."""
        rows = int(self._store.rows)
        return min(rows, max(self.ef_search, k) * -(-rows // len(self._store)))

    def _candidates(self, queries: Representation, k: int, only: Any) -> list[np.ndarray]:
        """For each query, the texts of the vectors that its vectors retrieve, ascending; at least k if they exist."""
        store = self._store
        vectors = vectors_alone(queries, store.dim).cpu()
        mask = torch.ones(vectors.shape[:2], dtype=torch.bool) if queries.vector_mask is None else queries.vector_mask
        texts: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * len(queries)
        unsure, wanted = np.arange(len(queries)), self._wanted(k)
        while len(unsure):
            real = mask[unsure]
            rows = self._searcher.rows(vectors[unsure][real].float().numpy(), wanted, threads=self.threads, only=only)
            for query, nearest in zip(unsure, _by_query(rows, real.sum(dim=1).tolist()), strict=True):
                texts[query] = np.unique(store.texts_of(nearest))
            unsure = np.array([row for row in unsure if len(texts[row]) < k and wanted < store.rows], dtype=np.int64)
            wanted = min(store.rows, 2 * wanted)
        return texts


def _check_source(source: VectorStore) -> None:
    if not source.dim or source.vocabulary:
        content = "vectors and weights" if source.dim else "weights over a vocabulary and no vectors"
        other = "flat" if source.dim else "impact"
        msg = f"'{source.folder}' has {content}, but indexer 'lucene_hnsw' needs vectors alone. Use --indexer {other}."
        raise UnsupportedError(msg)
    if source.dim > MOST_DIMENSIONS:
        msg = (
            f"vectors of '{source.folder}' have {source.dim} dimensions, but Lucene allows at most {MOST_DIMENSIONS}. "
            "Use --indexer flat or faiss."
        )
        raise UnsupportedError(msg)


def _by_query(rows: Sequence[np.ndarray], counts: Sequence[int]) -> Iterator[np.ndarray]:
    """The concatenated hits of each query's vectors."""
    start = 0
    for count in counts:
        yield np.concatenate([np.empty(0, dtype=np.int64), *rows[start : start + count]])
        start += count


class GraphWriter(DocumentWriter):
    """Writes an index of vectors with Lucene's default codec: 16 neighbours per vector, 100 candidates to choose from.

    A different graph needs a subclass of the codec, which only a Java program can define.

    Args:
        folder: The index to write.
        threads: Number of threads that add vectors.
    """

    def __init__(self, folder: Path, *, threads: int) -> None:
        def configure(config: Any) -> None:
            config.setRAMBufferSizeMB(min(WRITE_BUFFER_MEGABYTES, java_megabytes() / 4))

        super().__init__(folder, configure, threads=threads)
        similarity = java_class("org.apache.lucene.index.VectorSimilarityFunction").MAXIMUM_INNER_PRODUCT
        types = ("java.lang.String", "[F", "org.apache.lucene.index.VectorSimilarityFunction")
        make = constructor("org.apache.lucene.document.KnnFloatVectorField", *types)
        self._field = bind(bind(make, 2, similarity), 0, FIELD)

    def add_vectors(self, first: int, ids: Sequence[str], rows: np.ndarray) -> None:
        """Add vectors starting at a row, each with the id of its text."""
        self.add(first, ids, then(vectors(rows), self._field))


class GraphSearcher(DocumentSearcher):
    """Searches an index of vectors, many queries at a time."""

    def rows(self, queries: np.ndarray, wanted: int, *, threads: int, only: Any = None) -> list[np.ndarray]:
        """For each query vector (queries, dim), the rows of its nearest vectors, about `wanted`, best first.

        `only` is a Lucene query that restricts the vectors; None = all.
        """
        types = ("java.lang.String", "[F", int, *(() if only is None else ("org.apache.lucene.search.Query",)))
        make = constructor("org.apache.lucene.search.KnnFloatVectorQuery", *types)
        make = make if only is None else bind(make, 3, only)
        query = then(vectors(queries), bind(bind(make, 2, wanted), 0, FIELD))
        results = self.hits(query, len(queries), wanted, threads=threads)
        return [hits[:, 0].astype(np.int64) for hits in results]
