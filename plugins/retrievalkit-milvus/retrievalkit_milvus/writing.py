"""Writes the texts of a vectors/ folder to a Milvus collection: all of them, or none."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import InputError, OptionError, RetrievalkitError, UnsupportedError
from retrievalkit_milvus.collection import BYTES_IN_A_REQUEST, PROPERTY, VectorIndex, partition_name, state
from retrievalkit_milvus.layout import CONTENT, ID, MOST_BYTES, ROW, TEXT, VECTOR, WEIGHTS, WORDS, Layout, longest_id
from retrievalkit_milvus.server import PATIENT_RETRIES, RETRIES, Connection, import_pymilvus, milvus_errors, reason

_ROWS_IN_A_REQUEST = 2000


@dataclass(frozen=True)
class Words:
    """The passages that a vectors folder was encoded from, and BM25's parameters.

    Attributes:
        source: The corpus, as the user named it.
        analyzer: Milvus's analyzer, in its JSON.
        k1: Term frequency saturation: the higher, the longer repetitions of a term add to the score.
        b: Length normalisation, 0 to 1.
    """

    source: str
    analyzer: str
    k1: float
    b: float

    @property
    def identity(self) -> list[object]:
        """Parts of a fingerprint of the words."""
        return [open_corpus(self.source).fingerprint(), self.analyzer, self.k1, self.b]

    def of(self, ids: Iterable[str]) -> Iterator[str]:
        """Yield title and text of each id; the ids must be in corpus order.

        Raises:
            InputError: The corpus lacks a text, or has it at another position.
            UnsupportedError: A passage is too long for Milvus.
        """
        passages = iter(open_corpus(self.source))
        for text_id in ids:
            # With the same order, neither needs to be in memory as a whole.
            passage = next((passage for passage in passages if passage.id == text_id), None)
            if passage is None:
                msg = (
                    f"the corpus '{self.source}' lacks the text '{text_id}', or has it at another position than the "
                    f"vectors. Set the option texts to the corpus that was encoded, in the same order."
                )
                raise InputError(msg)
            content = f"{passage.title} {passage.text}".strip()
            if len(content) > MOST_BYTES // 4 and (size := len(content.encode())) > MOST_BYTES:
                msg = (
                    f"the text '{text_id}' has {size:,} bytes, but Milvus supports at most {MOST_BYTES:,}. Cut it into "
                    f"passages, or index without the option texts."
                )
                raise UnsupportedError(msg)
            yield content


def analyzer_json(text: str) -> str:
    """Convert an analyzer's name, such as standard or english, or Milvus's JSON, to JSON.

    Raises:
        OptionError: The JSON is invalid.
    """
    if not text.lstrip().startswith("{"):
        return json.dumps({"type": text})
    try:
        return json.dumps(json.loads(text), sort_keys=True)
    except ValueError as error:
        msg = f"option 'analyzer' is '{text}', but must be a name such as english, or Milvus's JSON: {error}."
        raise OptionError(msg) from error


def write(
    connection: Connection,
    source: VectorStore,
    layout: Layout,
    index: VectorIndex,
    *,
    replace: bool,
    words: Words | None = None,
) -> None:
    """Write a vectors folder to a collection, which gets its final name when it is complete, and is dropped on failure.

    Args:
        connection: The Milvus to write to.
        source: The vectors folder.
        layout: The contents of the collection.
        index: Configuration of the vector index.
        replace: Replace a collection that has the same name but other contents.
        words: The texts whose words are searched; None = vectors and weights only.

    Raises:
        InputError: A collection of that name has other contents and must not be replaced; or the texts do not match
            the vectors.
        OptionError: Milvus does not support the index type or its parameters.
        RetrievalkitError: Milvus reported an error.
    """
    client, name = connection.client, layout.collection
    with milvus_errors(f"create the collection '{name}'", connection.place):
        current = state(connection, name)
        if current == (layout.fingerprint, layout.rows) and not replace:
            return
        if current is not None and not replace:
            msg = (
                f"{connection.place} already has a collection '{name}' with other contents. Choose another name with "
                f"--set collection=NAME, or replace it with --set replace=true."
            )
            raise InputError(msg)
        partial = f"{name}_partial"
        client.drop_collection(partial, retry_times=RETRIES)  # left by a killed build
        try:
            indexes = _indexes(connection, layout, index, words)
            _create(connection, partial, source, layout, index, indexes)
            _insert(connection, partial, source, layout, words)
            _make_index(connection, partial, indexes, index)
            _rename(client, partial, name)
        except BaseException:
            with suppress(import_pymilvus().MilvusException):  # report the original error instead
                client.drop_collection(partial, retry_times=RETRIES)
            raise


def _create(
    connection: Connection, name: str, source: VectorStore, layout: Layout, index: VectorIndex, indexes: Any
) -> None:
    """Create an empty collection with its partitions."""
    client = connection.client
    properties = {"properties": {PROPERTY: layout.fingerprint}} if connection.lite else {}
    options = {"schema": _schema(layout, source), "consistency_level": "Strong", **properties}
    client.create_collection(name, **options)
    if not connection.lite:
        # Build the index on the empty collection first: writing may take hours, and would be wasted if the server then
        # rejected the index parameters.
        _make_index(connection, name, indexes, index)
        client.drop_collection(name)
        client.create_collection(name, **options)
    for number in range(layout.partitions):
        client.create_partition(name, partition_name(number))


def _insert(connection: Connection, name: str, source: VectorStore, layout: Layout, words: Words | None) -> None:
    """Insert all rows.

    Raises:
        RetrievalkitError: Milvus did not store all rows.
    """
    client = connection.client
    size = max(1, min(_ROWS_IN_A_REQUEST, BYTES_IN_A_REQUEST // (4 * max(1, layout.dim))))
    contents = None if words is None else words.of(source.ids)
    for entities in layout.entities(source, size, contents):
        partition = partition_name(layout.partition_of(entities[0][TEXT])) if layout.partitions else None
        client.insert(name, entities, partition_name=partition, retry_times=PATIENT_RETRIES)
    client.flush(name, retry_times=PATIENT_RETRIES)
    stored = int(client.get_collection_stats(name, retry_times=RETRIES)["row_count"])
    if stored != layout.rows:
        msg = f"{connection.place} stored only {stored:,} of {layout.rows:,} rows. Index again."
        raise RetrievalkitError(msg)


def _rename(client: Any, partial: str, name: str) -> None:
    """Give a complete collection its final name, and drop the collection that had this name."""
    old = f"{name}_replaced"
    client.drop_collection(old)
    if client.has_collection(name):
        client.rename_collection(name, old)
    client.rename_collection(partial, name)
    client.drop_collection(old)
    # Renaming unloads a collection of Milvus Lite, which builds an index when it is loaded.
    client.load_collection(name, retry_times=PATIENT_RETRIES)


def _schema(layout: Layout, source: VectorStore) -> Any:
    pymilvus = import_pymilvus()
    types = pymilvus.DataType
    description = f"retrievalkit {layout.fingerprint}"
    schema = pymilvus.MilvusClient.create_schema(auto_id=False, enable_dynamic_field=False, description=description)
    schema.add_field(ROW, types.INT64, is_primary=True)
    schema.add_field(TEXT, types.INT64)
    schema.add_field(ID, types.VARCHAR, max_length=longest_id(source.ids))
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


def _make_index(connection: Connection, name: str, indexes: Any, index: VectorIndex) -> None:
    try:
        # Milvus Lite builds the index when the collection is loaded, so waiting here would only poll in vain.
        connection.client.create_index(name, indexes, sync=not connection.lite, retry_times=PATIENT_RETRIES)
        connection.client.load_collection(name, retry_times=PATIENT_RETRIES)
    except import_pymilvus().MilvusException as error:
        msg = f"{connection.place} cannot build an index of the type '{index.type}' with these parameters: "
        raise OptionError(msg + reason(error)) from error
