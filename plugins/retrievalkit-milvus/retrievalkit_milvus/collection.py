"""A Milvus collection that holds the texts of a vectors/ folder: writing, searching, and reading rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrievalkit.data.vectors import VectorBlock, VectorStore
from retrievalkit.errors import ArtifactError, InputError, OptionError
from retrievalkit_milvus.layout import ID, ROW, TEXT, VECTOR, WEIGHTS, Layout, most_id_bytes
from retrievalkit_milvus.server import PATIENT_RETRIES, RETRIES, Connection, import_pymilvus, milvus_errors, reason

MOST_HITS = 16_384
"""Maximum number of hits that Milvus returns per query."""

_HITS_IN_A_REQUEST = 200_000
_QUERIES_IN_A_REQUEST = 256
_BYTES_IN_A_REQUEST = 16_000_000
_PROPERTY = "retrievalkit.fingerprint"
# The search parameter of each index type that must be at least the number of hits.
_BREADTH = {"HNSW": "ef", "HNSW_SQ": "ef", "HNSW_PQ": "ef", "DISKANN": "search_list", "SCANN": "reorder_k"}

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
        """Whether searches of this field are exact."""
        return field == WEIGHTS or self.type == "FLAT"

    def search_options(self, field: str, limit: int) -> dict[str, Any]:
        """Milvus's search options for retrieving `limit` rows."""
        parameters = dict(self.search_parameters) if field == VECTOR else {}
        if field == VECTOR and self.type in _BREADTH:
            breadth = _BREADTH[self.type]
            parameters[breadth] = max(limit, int(parameters.get(breadth, 0)))
        return {"metric_type": "IP", "params": parameters}


class Collection:
    """An existing collection, loaded for searching.

    Args:
        connection: The Milvus that holds the collection.
        layout: The expected contents.
        index: The index of its vectors.

    Raises:
        ArtifactError: The collection does not exist, or has other contents.
    """

    def __init__(self, connection: Connection, layout: Layout, index: VectorIndex) -> None:
        self.layout = layout
        self.index = index
        self._connection = connection
        with self._errors("load the collection"):
            found = state(connection, layout.collection)
            if found == (layout.fingerprint, layout.rows):
                connection.client.load_collection(layout.collection, retry_times=RETRIES)
        if found != (layout.fingerprint, layout.rows):
            held = "is missing" if found is None else f"holds {found[1]:,} rows of '{found[0] or 'another program'}'"
            msg = (
                f"the collection '{layout.collection}' in {connection.place} {held}, and should hold {layout.rows:,} "
                f"rows of '{layout.fingerprint}'. Index the vectors again."
            )
            raise ArtifactError(msg)

    @property
    def most_vectors(self) -> int:
        """The largest number of rows of any text."""
        return self.layout.most_vectors

    def nearest(self, field: str, queries: Sequence[Any], limit: int, *, but: Sequence[int] = ()) -> Iterator[Hits]:
        """For each query, the rows with the largest inner products; rows that share no term with it are omitted.

        Args:
            field: Field to search.
            queries: Vectors, or terms with their weights.
            limit: Maximum number of rows per query.
            but: Texts whose rows to exclude.
        """
        size = max(1, min(_QUERIES_IN_A_REQUEST, _HITS_IN_A_REQUEST // limit))
        for start in range(0, len(queries), size):
            with self._errors("search"):
                found = self._connection.client.search(
                    self.layout.collection,
                    data=list(queries[start : start + size]),
                    anns_field=field,
                    limit=limit,
                    filter=f"{TEXT} not in {list(but)}" if but else "",
                    output_fields=[ROW],
                    search_params=self.index.search_options(field, limit),
                    retry_times=RETRIES,
                )
            yield from map(_sorted, found)

    def take(self, texts: np.ndarray) -> VectorBlock:
        """Read the vectors and weights of the given texts, in the given order."""
        layout = self.layout
        rows, starts = layout.rows_of(np.asarray(texts, dtype=np.int64))
        # A text's weights are stored in its first row.
        first, vectors, weights = rows[starts[:-1]], None, None
        entities = dict(self._rows(rows if layout.dim else first))
        if layout.dim:
            vectors = np.empty((len(rows), layout.dim), dtype=np.float32)
            for place, row in enumerate(rows.tolist()):
                vectors[place] = entities[row][VECTOR]
        if layout.vocabulary:
            weights = _matrix([entities[row][WEIGHTS] for row in first.tolist()], layout.vocabulary)
        return VectorBlock(
            0, len(texts), vectors, starts if layout.dim and layout.offsets is not None else None, weights
        )

    def _rows(self, rows: np.ndarray) -> Iterator[tuple[int, dict[str, Any]]]:
        size = max(1, min(4096, _BYTES_IN_A_REQUEST // (4 * max(1, self.layout.dim))))
        wanted = np.unique(rows).tolist()
        for start in range(0, len(wanted), size):
            part = wanted[start : start + size]
            with self._errors("read rows"):
                found = self._connection.client.get(
                    self.layout.collection, ids=part, output_fields=[ROW, *self.layout.fields], retry_times=RETRIES
                )
            if len(found) != len(part):
                msg = (
                    f"the collection '{self.layout.collection}' has lost rows: {len(found)} of {len(part)} exist. "
                    f"Index the vectors again."
                )
                raise ArtifactError(msg)
            for entity in found:
                if VECTOR in entity:
                    # A list of Python floats takes several times the memory.
                    entity[VECTOR] = np.asarray(entity[VECTOR], dtype=np.float32)
                yield entity[ROW], entity

    def _errors(self, doing: str) -> Any:
        return milvus_errors(f"{doing} ('{self.layout.collection}')", self._connection.place)


def state(connection: Connection, name: str) -> tuple[str, int] | None:
    """A collection's fingerprint ("" if another program created it) and number of rows; None if it does not exist."""
    client = connection.client
    if not client.has_collection(name, retry_times=RETRIES):
        return None
    described = client.describe_collection(name, retry_times=RETRIES)
    # Milvus Lite drops descriptions, and servers may reject custom properties, so the fingerprint can be in either.
    fingerprint = described["properties"].get(_PROPERTY) or described["description"].partition("retrievalkit ")[2]
    return fingerprint, int(client.get_collection_stats(name, retry_times=RETRIES)["row_count"])


def write(
    connection: Connection,
    source: VectorStore,
    layout: Layout,
    index: VectorIndex,
    *,
    batch: int,
    replace: bool,
) -> None:
    """Write a vectors folder to a collection, which is renamed to its final name once complete and dropped on failure.

    Raises:
        InputError: A collection of that name has other contents, and `replace` is false.
        OptionError: Milvus does not support the index type or its parameters.
        RetrievalkitError: Milvus reported an error.
    """
    client, name = connection.client, layout.collection
    with milvus_errors(f"make the collection '{name}'", connection.place):
        found = state(connection, name)
        if found == (layout.fingerprint, layout.rows) and not replace:
            return
        if found is not None and not replace:
            msg = (
                f"{connection.place} has a collection '{name}' already, with other contents. Choose another name with "
                f"--set collection=NAME, or replace it with --set replace=true."
            )
            raise InputError(msg)
        with _made(connection, f"{name}_partial") as partial:
            made = {"schema": _schema(layout, source), **_identity(connection, layout)}
            indexes = _indexes(connection, layout, index)
            client.create_collection(partial, **made)
            if not connection.lite:
                # Build the index on the empty collection first: writing may take hours, and would be wasted if the
                # server then rejected the index parameters.
                _make_index(connection, partial, indexes, index)
                client.drop_collection(partial)
                client.create_collection(partial, **made)
            size = max(1, min(batch, _BYTES_IN_A_REQUEST // (4 * max(1, layout.dim))))
            for entities in layout.entities(source, size):
                client.insert(partial, entities, retry_times=PATIENT_RETRIES)
            client.flush(partial, retry_times=PATIENT_RETRIES)
            _make_index(connection, partial, indexes, index)
            _publish(client, partial, name)


@contextmanager
def _made(connection: Connection, name: str) -> Iterator[str]:
    """Yield the name for a temporary collection, dropping any leftover of a killed process now and ours on errors."""
    client = connection.client
    client.drop_collection(name, retry_times=RETRIES)
    try:
        yield name
    except BaseException:
        try:
            client.drop_collection(name, retry_times=RETRIES)
        except import_pymilvus().MilvusException:
            # The original error is the one to report.
            pass
        raise


def _publish(client: Any, partial: str, name: str) -> None:
    old = f"{name}_replaced"
    client.drop_collection(old)
    if client.has_collection(name):
        client.rename_collection(name, old)
    client.rename_collection(partial, name)
    client.drop_collection(old)
    # Renaming unloads a collection of Milvus Lite, which builds an index when it is loaded.
    client.load_collection(name)


def _identity(connection: Connection, layout: Layout) -> dict[str, Any]:
    properties = {"properties": {_PROPERTY: layout.fingerprint}} if connection.lite else {}
    return {"consistency_level": "Strong", **properties}


def _schema(layout: Layout, source: VectorStore) -> Any:
    pymilvus = import_pymilvus()
    types = pymilvus.DataType
    description = f"retrievalkit {layout.fingerprint}"
    schema = pymilvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=description)
    schema.add_field(ROW, types.INT64, is_primary=True)
    schema.add_field(TEXT, types.INT64)
    schema.add_field(ID, types.VARCHAR, max_length=most_id_bytes(source.ids))
    if layout.dim:
        schema.add_field(VECTOR, types.FLOAT_VECTOR, dim=layout.dim)
    if layout.vocabulary:
        schema.add_field(WEIGHTS, types.SPARSE_FLOAT_VECTOR)
    return schema


def _indexes(connection: Connection, layout: Layout, index: VectorIndex) -> Any:
    indexes = connection.client.prepare_index_params()
    if layout.dim:
        # pymilvus sends each parameter separately, but Milvus Lite expects them in one entry, the older format.
        params = {"params": dict(index.parameters)} if connection.lite else dict(index.parameters)
        indexes.add_index(VECTOR, index_type=index.type, index_name=VECTOR, metric_type="IP", params=params)
    if layout.vocabulary:
        indexes.add_index(WEIGHTS, index_type="SPARSE_INVERTED_INDEX", index_name=WEIGHTS, metric_type="IP", params={})
    return indexes


def _make_index(connection: Connection, name: str, indexes: Any, index: VectorIndex) -> None:
    try:
        # Milvus Lite builds the index when the collection is loaded, so waiting here would only poll in vain.
        connection.client.create_index(name, indexes, sync=not connection.lite, retry_times=PATIENT_RETRIES)
        connection.client.load_collection(name, retry_times=PATIENT_RETRIES)
    except import_pymilvus().MilvusException as error:
        msg = f"{connection.place} builds no index of the type '{index.type}' with these parameters: "
        raise OptionError(msg + reason(error)) from error


def _sorted(hits: Any) -> Hits:
    rows = np.array(list(hits.ids), dtype=np.int64)
    scores = np.array(list(hits.distances), dtype=np.float32)
    order = np.lexsort((rows, -scores))
    return rows[order], scores[order]


def _matrix(terms: Sequence[Mapping[int, float]], vocabulary: int) -> Any:
    """The weights as scipy CSR (texts, vocabulary), without the placeholder term past the vocabulary."""
    import scipy.sparse

    kept = [{term: weight for term, weight in row.items() if term < vocabulary} for row in terms]
    starts = np.cumsum([0, *map(len, kept)])
    columns = np.array([term for row in kept for term in row], dtype=np.int64)
    values = np.array([weight for row in kept for weight in row.values()], dtype=np.float32)
    matrix = scipy.sparse.csr_matrix((values, columns, starts), shape=(len(terms), vocabulary))
    matrix.sort_indices()
    return matrix
