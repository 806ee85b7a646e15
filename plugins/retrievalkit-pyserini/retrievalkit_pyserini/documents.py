"""Lucene documents created in Java, a batch per call, and the single-segment index that contains them.

Lucene's document number is the text's row, so hits need no lookup and ties are in index order. A single thread adds
documents in that order. Several threads add them in any order and Lucene then sorts them, which costs about as much as
adding plain texts: threads pay off if adding costs more, as with vectors.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np

from retrievalkit.errors import ArtifactError
from retrievalkit_pyserini.bulk import best, do, ints, java_exception, lines, lucene_errors
from retrievalkit_pyserini.handles import bind, constructor, gather, method, returning, static_method, then
from retrievalkit_pyserini.java import java_class, java_megabytes, java_path
from retrievalkit_pyserini.rescoring import TOP

WRITE_BUFFER_MEGABYTES = 256.0
ROW = "row"
_FIELD, _BYTES = "org.apache.lucene.index.IndexableField", "org.apache.lucene.util.BytesRef"


def write_buffer() -> float:
    """Return Lucene's write buffer in megabytes; Anserini's 2,048 exceed Java's memory on a small machine."""
    return min(WRITE_BUFFER_MEGABYTES, java_megabytes() / 8)


class IndexWriting:
    """A context manager for Lucene's IndexWriter: commits, or rolls back if the block fails.

    Args:
        folder: The index folder.
        writer: The IndexWriter.
        one_segment: Merge all segments before the commit.
    """

    def __init__(self, folder: Path, writer: Any, *, one_segment: bool = False) -> None:
        self._folder, self._writer, self._one_segment = folder, writer, one_segment

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            with contextlib.suppress(java_exception()):
                self._writer.rollback()
            return
        with lucene_errors(f"write the index '{self._folder}'"):
            if self._one_segment:
                self._writer.forceMerge(1)
            self._writer.commit()
            self._writer.close()


class DocumentWriter(IndexWriting):
    """Writes a single-segment index.

    Args:
        folder: The index folder.
        configure: Callback that applies settings specific to this index to Lucene's IndexWriterConfig.
        analyzer: Lucene analyzer that tokenizes the texts, if any.
        threads: Threads for adding.
    """

    def __init__(
        self, folder: Path, configure: Callable[[Any], None], *, analyzer: Any = None, threads: int = 1
    ) -> None:
        with lucene_errors(f"start an index in '{folder}'"):
            config = java_class("org.apache.lucene.index.IndexWriterConfig")
            config = config() if analyzer is None else config(analyzer)
            config.setRAMBufferSizeMB(write_buffer())
            # This policy merges only adjacent segments, which keeps document numbers in row order.
            config.setMergePolicy(java_class("org.apache.lucene.index.LogDocMergePolicy")())
            if threads > 1:
                config.setIndexSort(_by_row())
            configure(config)
            writer = java_class("org.apache.lucene.index.IndexWriter")(directory(folder), config)
        super().__init__(folder, writer, one_segment=True)
        self._threads = threads

    def add(self, first: int, ids: Sequence[str], field: Any) -> None:
        """Add texts, each with its id and one additional field.

        Args:
            first: The row of the first text.
            ids: Their ids, without line breaks.
            field: The handle (position -> field) of their indexed content.
        """
        name = lines("".join(f"{identifier}\n" for identifier in ids))
        parts = [_named(name), _sortable(name), field]
        if self._threads > 1:
            parts.append(_row(first, len(ids)))
        document = gather(static_method("java.util.List", "of", "java.util.List", *[object] * len(parts)), *parts)
        add = bind(
            method("org.apache.lucene.index.IndexWriter", "addDocument", "long", "java.lang.Iterable"), 0, self._writer
        )
        with lucene_errors(f"write the index '{self._folder}'"):
            do(then(document, add), len(ids), self._threads)


def _named(name: Any) -> Any:
    store = java_class("org.apache.lucene.document.Field$Store").YES
    types = ("java.lang.String", "java.lang.String", "org.apache.lucene.document.Field$Store")
    return then(name, bind(bind(constructor("org.apache.lucene.document.StringField", *types), 2, store), 0, "id"))


def _sortable(name: Any) -> Any:
    """Return the handle of the id as doc values, by which Anserini's searchers break ties."""
    as_bytes = then(name, returning(_BYTES, constructor(_BYTES, "java.lang.CharSequence")))
    make = constructor("org.apache.lucene.document.BinaryDocValuesField", "java.lang.String", _BYTES)
    return then(as_bytes, bind(make, 0, "id"))


def _by_row() -> Any:
    field = java_class("org.apache.lucene.search.SortField")
    return java_class("org.apache.lucene.search.Sort")(
        field(ROW, java_class("org.apache.lucene.search.SortField$Type").LONG)
    )


def _row(first: int, count: int) -> Any:
    make = bind(constructor("org.apache.lucene.document.NumericDocValuesField", "java.lang.String", "long"), 0, ROW)
    return then(ints(np.arange(first, first + count)), make)


class DocumentSearcher:
    """Searches an index written by a `DocumentWriter`, many queries at a time.

    Args:
        folder: The index folder.
        texts: Expected number of texts.

    Raises:
        ArtifactError: The index does not exist, or is damaged.
    """

    def __init__(self, folder: Path, texts: int) -> None:
        self._searcher = java_class("org.apache.lucene.search.IndexSearcher")(_open_reader(folder, texts))

    def hits(self, queries: Any, count: int, most: int, *, threads: int) -> list[np.ndarray]:
        """Return the rows and scores of each query's best texts, best first, as (hits, 2) float64.

        Args:
            queries: The handle (position -> Lucene query).
            count: Number of queries.
            most: Maximum number of hits per query.
            threads: Number of search threads.
        """
        search = method("org.apache.lucene.search.IndexSearcher", "search", TOP, "org.apache.lucene.search.Query", int)
        search = bind(bind(search, 0, self._searcher), 1, most)
        return best(then(queries, search), count, threads)


def _open_reader(folder: Path, texts: int) -> Any:
    """Open Lucene's reader of an index; checks its number of texts."""
    if not folder.is_dir():
        msg = f"the index is damaged: its folder '{folder}' is missing. Index again."
        raise ArtifactError(msg)
    with lucene_errors(f"open the index '{folder}'", ArtifactError):
        reader = java_class("org.apache.lucene.index.DirectoryReader").open(directory(folder))
    if reader.numDocs() != texts or reader.leaves().size() > 1:
        msg = f"the index '{folder}' is damaged: it has {reader.numDocs()} texts instead of {texts}. Index again."
        reader.close()
        raise ArtifactError(msg)
    # pyjnius resolves overloaded methods by the declared class, so the reader must be cast to the base class.
    return importlib.import_module("jnius").cast("org.apache.lucene.index.IndexReader", reader)


def directory(folder: Path) -> Any:
    """Open a folder as a directory of Lucene."""
    path = java_class("java.io.File")(java_path(folder)).toPath()
    return java_class("org.apache.lucene.store.FSDirectory").open(path)
