"""A Milvus collection with the texts of a vectors/ folder: searches it, and reads its rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrievalkit.data.vectors import VectorBlock
from retrievalkit.errors import ArtifactError
from retrievalkit_milvus.layout import ROW, TEXT, VECTOR, WEIGHTS, WORDS, Layout
from retrievalkit_milvus.server import RETRIES, Connection, import_pymilvus, milvus_errors

MOST_HITS = 16_384
"""Maximum number of hits that Milvus returns per query."""

_HITS_IN_A_REQUEST = 200_000
_QUERIES_IN_A_REQUEST = 256
BYTES_IN_A_REQUEST = 16_000_000
PROPERTY = "retrievalkit.fingerprint"
# Search parameters that must be at least the number of hits, by index type.
_BREADTH = {"HNSW": "ef", "HNSW_SQ": "ef", "HNSW_PQ": "ef", "DISKANN": "search_list", "SCANN": "reorder_k"}
# If the search breadth equals the number of hits, 10, some are missed (recall 0.94 of 20,000 vectors).
_DEFAULT_BREADTH = 100

Hits = tuple[np.ndarray, np.ndarray]
"""Rows and float32 scores, best first; ties in row order."""


@dataclass(frozen=True)
class VectorIndex:
    """Configuration of Milvus's index of the vectors; the index of weights has no options and is always exact.

    Attributes:
        type: Index type, as named by Milvus.
        parameters: Build parameters.
        search_parameters: Search parameters.
    """

    type: str
    parameters: Mapping[str, Any]
    search_parameters: Mapping[str, Any]

    def is_exact(self, field: str) -> bool:
        """True if searching a field is exact."""
        return field != VECTOR or self.type == "FLAT"

    def search_options(self, field: str, limit: int) -> dict[str, Any]:
        """Return Milvus's options for retrieving `limit` rows by a field."""
        parameters = dict(self.search_parameters) if field == VECTOR else {}
        if field == VECTOR and self.type in _BREADTH:
            breadth = _BREADTH[self.type]
            parameters[breadth] = max(limit, int(parameters.get(breadth, _DEFAULT_BREADTH)))
        return {"metric_type": "BM25" if field == WORDS else "IP", "params": parameters}


@dataclass(frozen=True)
class Serving:
    """Search settings for a collection.

    Attributes:
        consistency: Consistency level of searches, as named by Milvus.
        partitions: Numbers of the partitions to search; () = all.
    """

    consistency: str = "Strong"
    partitions: tuple[int, ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """The options of each read request."""
        # The collections' own level need not be sent; Milvus Lite does not support the option.
        level = {} if self.consistency == "Strong" else {"consistency_level": self.consistency}
        chosen = {"partition_names": list(map(partition_name, self.partitions))} if self.partitions else {}
        return {"retry_times": RETRIES, **level, **chosen}


class Collection:
    """A collection in Milvus with the contents of a layout, loaded for searching.

    Raises:
        ArtifactError: The collection does not exist, or has different contents.
    """

    def __init__(
        self, connection: Connection, layout: Layout, index: VectorIndex, serving: Serving = Serving()
    ) -> None:
        self.layout = layout
        self.index = index
        self.serving = serving
        self._connection = connection
        with self._errors("load the collection"):
            current = state(connection, layout.collection)
            if current == (layout.fingerprint, layout.rows):
                connection.client.load_collection(layout.collection, retry_times=RETRIES)
                return
        actual = "is missing" if current is None else f"has {current[1]:,} rows of '{current[0] or 'another program'}'"
        msg = (
            f"the collection '{layout.collection}' in {connection.place} {actual}, instead of {layout.rows:,} rows of "
            f"'{layout.fingerprint}'. Index the vectors again."
        )
        raise ArtifactError(msg)

    @property
    def most_vectors(self) -> int:
        """Maximum number of rows per text."""
        return self.layout.most_vectors

    def nearest(
        self, field: str, queries: Sequence[Any], limit: int, *, without: Sequence[int] = (), only: Sequence[int] = ()
    ) -> Iterator[Hits]:
        """Yield the rows with the largest inner products with each query, omitting rows that share no term with it.

        Args:
            field: Field to search.
            queries: Vectors, or terms with their weights.
            limit: Maximum number of rows per query.
            without: Texts whose rows to exclude.
            only: Texts whose rows to search; () = all.
        """
        conditions = [f"{TEXT} not in {list(without)}"] * bool(without) + [f"{TEXT} in {list(only)}"] * bool(only)
        size = max(1, min(_QUERIES_IN_A_REQUEST, _HITS_IN_A_REQUEST // limit))
        for start in range(0, len(queries), size):
            with self._errors("search"):
                results = self._connection.client.search(
                    self.layout.collection,
                    data=list(queries[start : start + size]),
                    anns_field=field,
                    limit=limit,
                    filter=" and ".join(conditions),
                    output_fields=[ROW],
                    search_params=self.index.search_options(field, limit),
                    **self.serving.options,
                )
            for hits in results:
                yield _sorted(hits, unsigned=field == WORDS)

    def fused(self, inputs: Mapping[str, Sequence[Any]], ranker: Any, candidates: int, limit: int) -> Iterator[Hits]:
        """Yield the best `limit` rows for each query by a pymilvus ranker, from the `candidates` of each field."""
        request = import_pymilvus().AnnSearchRequest
        total = len(next(iter(inputs.values())))
        size = max(1, min(_QUERIES_IN_A_REQUEST, _HITS_IN_A_REQUEST // candidates))
        for start in range(0, total, size):
            parts = [
                request(
                    data=list(queries[start : start + size]),
                    anns_field=field,
                    param=self.index.search_options(field, candidates),
                    limit=candidates,
                )
                for field, queries in inputs.items()
            ]
            with self._errors("search several fields together"):
                results = self._connection.client.hybrid_search(
                    self.layout.collection, parts, ranker, limit=limit, output_fields=[ROW], **self.serving.options
                )
            yield from map(_sorted, results)

    def take(self, texts: np.ndarray) -> VectorBlock:
        """Read the vectors and weights of texts, in the same order."""
        import scipy.sparse

        layout = self.layout
        rows, starts = layout.rows_of(np.asarray(texts, dtype=np.int64))
        # A text's weights are in its first row.
        first, vectors, weights = rows[starts[:-1]], None, None
        entities = dict(self._rows(rows if layout.dim else first))
        if layout.dim:
            vectors = np.empty((len(rows), layout.dim), dtype=np.float32)
            for place, row in enumerate(rows.tolist()):
                vectors[place] = entities[row][VECTOR]
        if layout.vocabulary:
            # Without the placeholder term past the vocabulary.
            terms = [
                {term: weight for term, weight in entities[row][WEIGHTS].items() if term < layout.vocabulary}
                for row in first.tolist()
            ]
            ends = np.cumsum([0, *map(len, terms)])
            columns = np.array([term for text in terms for term in text], dtype=np.int64)
            values = np.array([weight for text in terms for weight in text.values()], dtype=np.float32)
            weights = scipy.sparse.csr_matrix((values, columns, ends), shape=(len(terms), layout.vocabulary))
            weights.sort_indices()
        offsets = starts if layout.dim and layout.offsets is not None else None
        return VectorBlock(0, len(texts), vectors, offsets, weights)

    def _rows(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, Any]]]:
        size = max(1, min(4096, BYTES_IN_A_REQUEST // (4 * max(1, self.layout.dim))))
        wanted = np.unique(rows).tolist()
        for start in range(0, len(wanted), size):
            part = wanted[start : start + size]
            with self._errors("read rows"):
                entities = self._connection.client.get(
                    self.layout.collection, ids=part, output_fields=[ROW, *self.layout.fields], **self.serving.options
                )
            if len(entities) != len(part):
                lost = len(part) - len(entities)
                msg = f"the collection '{self.layout.collection}' has lost {lost} rows. Index the vectors again."
                raise ArtifactError(msg)
            for entity in entities:
                if VECTOR in entity:
                    # A list of Python floats would take several times the memory.
                    entity[VECTOR] = np.asarray(entity[VECTOR], dtype=np.float32)
                yield entity[ROW], entity

    def _errors(self, doing: str) -> Any:
        return milvus_errors(f"{doing} ('{self.layout.collection}')", self._connection.place)


def state(connection: Connection, name: str) -> tuple[str, int] | None:
    """Return the fingerprint of a collection ("" if another program created it) and its rows; None if it is missing."""
    client = connection.client
    if not client.has_collection(name, retry_times=RETRIES):
        return None
    described = client.describe_collection(name, retry_times=RETRIES)
    # Milvus Lite drops descriptions, and servers may reject custom properties, so the fingerprint can be in either.
    fingerprint = described["properties"].get(PROPERTY) or described["description"].partition("retrievalkit ")[2]
    return fingerprint, int(client.get_collection_stats(name, retry_times=RETRIES)["row_count"])


def partition_name(number: int) -> str:
    """Return the name of a partition."""
    return f"part_{number}"


def _sorted(hits: Any, *, unsigned: bool = False) -> Hits:
    rows = np.array(list(hits.ids), dtype=np.int64)
    scores = np.array(list(hits.distances), dtype=np.float32)
    if unsigned:
        # Milvus Lite returns BM25 scores, which are never negative, with a minus sign.
        scores = np.abs(scores)
    order = np.lexsort((rows, -scores))
    return rows[order], scores[order]
