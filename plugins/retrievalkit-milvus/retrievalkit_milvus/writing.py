"""Writing the texts of a vectors/ folder to a Milvus collection, whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import InputError, OptionError, RetrievalkitError
from retrievalkit_milvus.bulk import import_in_bulk
from retrievalkit_milvus.collection import (
    BYTES_IN_A_REQUEST,
    PROPERTY,
    Serving,
    VectorIndex,
    load,
    partition_name,
    state,
)
from retrievalkit_milvus.layout import CONTENT, ID, MOST_BYTES, ROW, TEXT, VECTOR, WEIGHTS, WORDS, Layout, most_id_bytes
from retrievalkit_milvus.server import PATIENT_RETRIES, RETRIES, Connection, import_pymilvus, milvus_errors, reason
from retrievalkit_milvus.words import Words


@dataclass(frozen=True)
class Writing:
    """How a collection is written.

    Attributes:
        batch: Rows per request.
        replace: Whether a collection of the same name that has other contents is replaced.
        bulk: Where files are put for the server to read; "" = rows are sent to it.
        words: The texts whose words are searched; None = only vectors and weights are.
    """

    batch: int
    replace: bool
    bulk: str = ""
    words: Words | None = None


def write(
    connection: Connection,
    source: VectorStore,
    layout: Layout,
    index: VectorIndex,
    serving: Serving,
    how: Writing,
) -> None:
    """Write a vectors folder to a collection, which is renamed to its final name once complete and dropped on failure.

    Raises:
        InputError: A collection of that name has other contents, and is not to be replaced; or the texts are not those
            of the vectors.
        OptionError: Milvus does not support the index type or its parameters.
        RetrievalkitError: Milvus reported an error.
    """
    client, name = connection.client, layout.collection
    with milvus_errors(f"make the collection '{name}'", connection.place):
        found = state(connection, name)
        if found == (layout.fingerprint, layout.rows) and not how.replace:
            return
        if found is not None and not how.replace:
            msg = (
                f"{connection.place} has a collection '{name}' already, with other contents. Choose another name with "
                f"--set collection=NAME, or replace it with --set replace=true."
            )
            raise InputError(msg)
        with _made(connection, f"{name}_partial") as partial:
            schema = _schema(layout, source)
            made = {"schema": schema, **_identity(connection, layout)}
            indexes = _indexes(connection, layout, index, how.words)
            client.create_collection(partial, **made)
            if not connection.lite:
                # Build the index on the empty collection first: writing may take hours, and would be wasted if the
                # server then rejected the index parameters.
                _make_index(connection, partial, indexes, index, serving)
                client.drop_collection(partial)
                client.create_collection(partial, **made)
            for number in range(layout.partitions):
                client.create_partition(partial, partition_name(number))
            _fill(connection, partial, source, layout, schema, how)
            _make_index(connection, partial, indexes, index, serving)
            _publish(connection, partial, name, serving)


def _fill(connection: Connection, name: str, source: VectorStore, layout: Layout, schema: Any, how: Writing) -> None:
    """Send all rows, or have the server read them."""
    client = connection.client
    size = max(1, min(how.batch, BYTES_IN_A_REQUEST // (4 * max(1, layout.dim))))
    contents = None if how.words is None else how.words.of(source.ids)
    parts = (
        (partition_name(layout.partition_of(entities[0][TEXT])) if layout.partitions else None, entities)
        for entities in layout.entities(source, size, contents)
    )
    if how.bulk:
        import_in_bulk(connection, name, schema, parts, how.bulk)
    else:
        for partition, entities in parts:
            client.insert(name, entities, partition_name=partition, retry_times=PATIENT_RETRIES)
    client.flush(name, retry_times=PATIENT_RETRIES)
    held = int(client.get_collection_stats(name, retry_times=RETRIES)["row_count"])
    if held != layout.rows:
        msg = f"{connection.place} holds {held:,} of {layout.rows:,} rows that it was given. Index again."
        raise RetrievalkitError(msg)


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


def _publish(connection: Connection, partial: str, name: str, serving: Serving) -> None:
    client = connection.client
    old = f"{name}_replaced"
    client.drop_collection(old)
    if client.has_collection(name):
        client.rename_collection(name, old)
    client.rename_collection(partial, name)
    client.drop_collection(old)
    # Renaming unloads a collection of Milvus Lite, which builds an index when it is loaded.
    load(connection, name, serving, retries=PATIENT_RETRIES)


def _identity(connection: Connection, layout: Layout) -> dict[str, Any]:
    properties = {"properties": {PROPERTY: layout.fingerprint}} if connection.lite else {}
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
    if layout.analyzer:
        analysed = {"enable_analyzer": True, "analyzer_params": json.loads(layout.analyzer)}
        schema.add_field(CONTENT, types.VARCHAR, max_length=MOST_BYTES, **analysed)
        schema.add_field(WORDS, types.SPARSE_FLOAT_VECTOR)
        bm25 = pymilvus.FunctionType.BM25
        schema.add_function(pymilvus.Function("bm25", bm25, input_field_names=[CONTENT], output_field_names=[WORDS]))
    return schema


def _indexes(connection: Connection, layout: Layout, index: VectorIndex, words: Words | None) -> Any:
    indexes = connection.client.prepare_index_params()

    def add(field: str, kind: str, metric: str, parameters: Mapping[str, Any]) -> None:
        # pymilvus sends each parameter separately, but Milvus Lite expects them in one entry, the older format.
        params = {"params": dict(parameters)} if connection.lite else dict(parameters)
        indexes.add_index(field, index_type=kind, index_name=field, metric_type=metric, params=params)

    if layout.dim:
        add(VECTOR, index.type, "IP", index.parameters)
    if layout.vocabulary:
        add(WEIGHTS, "SPARSE_INVERTED_INDEX", "IP", {})
    if words is not None:
        add(WORDS, "SPARSE_INVERTED_INDEX", "BM25", {"bm25_k1": words.k1, "bm25_b": words.b})
    return indexes


def _make_index(connection: Connection, name: str, indexes: Any, index: VectorIndex, serving: Serving) -> None:
    try:
        # Milvus Lite builds the index when the collection is loaded, so waiting here would only poll in vain.
        connection.client.create_index(name, indexes, sync=not connection.lite, retry_times=PATIENT_RETRIES)
        load(connection, name, serving, retries=PATIENT_RETRIES)
    except import_pymilvus().MilvusException as error:
        msg = f"{connection.place} builds no index of the type '{index.type}' with these parameters: "
        raise OptionError(msg + reason(error)) from error
