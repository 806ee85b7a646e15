"""A Lucene HNSW index of vectors: every vector is a document, whose number is the vector's row."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit_pyserini.bulk import vectors
from retrievalkit_pyserini.documents import DocumentSearcher, DocumentWriter
from retrievalkit_pyserini.handles import as_interface, bind, constructor, setter, then
from retrievalkit_pyserini.java import java_class, java_megabytes

FIELD = "vector"
"""Field name that Anserini's dense searcher expects."""

MOST_DIMENSIONS = 4096
WRITE_BUFFER_MEGABYTES = 1024.0
"""For vectors and their graph: every flush starts a new graph, which Lucene must merge later."""

_INT8 = ("lucene104.Lucene104HnswScalarQuantizedVectorsFormat", "lucene99.Lucene99HnswScalarQuantizedVectorsFormat")
_LONGER = ("codecs.DelegatingKnnVectorsFormat", "IndexHnswDenseVectors$DelegatingKnnVectorsFormat")


class GraphWriter(DocumentWriter):
    """Writes an index of vectors.

    Args:
        folder: Where the index goes.
        m: Neighbours of a vector in the graph.
        ef_construction: Number of vectors examined to find the neighbours.
        int8: Whether to compare vectors quantised to eight bits per number.
        threads: Threads for adding.
    """

    def __init__(self, folder: Path, *, m: int, ef_construction: int, int8: bool, threads: int) -> None:
        def configure(config: Any) -> None:
            config.setCodec(_codec(m, ef_construction, int8))
            config.setRAMBufferSizeMB(min(WRITE_BUFFER_MEGABYTES, java_megabytes() / 4))

        super().__init__(folder, configure, threads=threads)
        similarity = java_class("org.apache.lucene.index.VectorSimilarityFunction").MAXIMUM_INNER_PRODUCT
        types = ("java.lang.String", "[F", "org.apache.lucene.index.VectorSimilarityFunction")
        make = constructor("org.apache.lucene.document.KnnFloatVectorField", *types)
        self._field = bind(bind(make, 2, similarity), 0, FIELD)

    def add_vectors(self, first: int, ids: Sequence[str], rows: np.ndarray) -> None:
        """Add vectors from a row on, each with the id of its text."""
        self.add(first, ids, then(vectors(rows), self._field))


def _codec(m: int, ef_construction: int, int8: bool) -> Any:
    """Lucene's own codec with such a graph.

    A Java program would override the codec's choice of a format; no class can be written here, so its field is set.
    """
    codecs = "org.apache.lucene.codecs"
    exact = f"{codecs}.lucene99.Lucene99HnswVectorsFormat"
    graph = (_first_class(*(f"{codecs}.{name}" for name in _INT8)) if int8 else java_class(exact))(m, ef_construction)
    # Lucene by default limits vectors to 1,024 dimensions.
    longer = _first_class(*(f"io.anserini.index.{name}" for name in _LONGER))
    codec = java_class(java_class(f"{codecs}.Codec").getDefault().getClass().getName())()
    # Set through a method handle, because pyjnius frees a reference twice when it sets a field.
    assign = bind(setter(codec, "defaultKnnVectorsFormat"), 0, codec, longer(graph, MOST_DIMENSIONS))
    as_interface("java.lang.Runnable", assign).run()
    return codec


def _first_class(*names: str) -> Any:
    """The first of these Java classes that this Anserini has: 2 (of Pyserini 2) has other names than 1."""
    jnius = importlib.import_module("jnius")
    for name in names[:-1]:
        try:
            return java_class(name)
        except jnius.JavaException:
            continue
    return java_class(names[-1])


class GraphSearcher(DocumentSearcher):
    """Searches an index of vectors, many queries at a time."""

    def rows(self, queries: np.ndarray, wanted: int, *, threads: int) -> list[np.ndarray]:
        """For each query vector (queries, dim) the rows of its nearest vectors, about so many, best first."""
        make = constructor("org.apache.lucene.search.KnnFloatVectorQuery", "java.lang.String", "[F", int)
        query = then(vectors(queries), bind(bind(make, 2, wanted), 0, FIELD))
        found = self.hits(query, len(queries), wanted, threads=threads)
        return [np.array([number for number, _ in hits], dtype=np.int64) for hits in found]
