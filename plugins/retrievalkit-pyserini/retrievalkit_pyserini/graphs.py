"""A Lucene HNSW index of vectors: every vector is a document, whose number is the vector's row."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit_pyserini.bulk import vectors
from retrievalkit_pyserini.documents import DocumentSearcher, DocumentWriter
from retrievalkit_pyserini.handles import bind, constructor, then
from retrievalkit_pyserini.java import java_class, java_megabytes

FIELD = "vector"
"""Field name that Anserini's dense searcher expects."""

MOST_DIMENSIONS = 1024
"""Lucene's own limit for the vectors of its default codec."""

WRITE_BUFFER_MEGABYTES = 1024.0
"""For vectors and their graph: every flush starts a new graph, which Lucene must merge later."""


class GraphWriter(DocumentWriter):
    """Writes an index of vectors with Lucene's default codec: 16 neighbours per vector, 100 candidates to choose from.

    Another graph needs a subclass of the codec, which only a Java program can write.

    Args:
        folder: The index to write.
        threads: Threads that add vectors.
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
        """Add vectors from a row on, each with the id of its text."""
        self.add(first, ids, then(vectors(rows), self._field))


class GraphSearcher(DocumentSearcher):
    """Searches an index of vectors, many queries at a time."""

    def rows(self, queries: np.ndarray, wanted: int, *, threads: int) -> list[np.ndarray]:
        """For each query vector (queries, dim) the rows of its nearest vectors, about so many, best first."""
        make = constructor("org.apache.lucene.search.KnnFloatVectorQuery", "java.lang.String", "[F", int)
        query = then(vectors(queries), bind(bind(make, 2, wanted), 0, FIELD))
        found = self.hits(query, len(queries), wanted, threads=threads)
        return [hits[:, 0].astype(np.int64) for hits in found]
