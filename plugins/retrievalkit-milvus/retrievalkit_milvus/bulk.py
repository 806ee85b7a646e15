"""Bulk insert: rows as Parquet files in the server's object store, which the server reads by itself.

Files are put by fsspec, so that a bucket of any kind serves (s3://, gs://, az://), with the credentials of its own
environment variables; or the folder of a standalone server that keeps its data on a disk of this machine.
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from retrievalkit.errors import InputError, MissingDependencyError, RetrievalkitError
from retrievalkit_milvus.server import Connection

_BYTES_IN_A_FILE = 128_000_000
_POLL_SECONDS = 0.5

PLACE = "MILVUS_BULK"
"""Environment variable: a place for files that the user vouches for."""

Part = tuple[str | None, list[dict[str, Any]]]
"""A partition, and rows of it."""


def check_place(place: str) -> None:
    """Refuse a place elsewhere that only a recipe names: it may be a stranger's, and would get all vectors.

    Raises:
        InputError: The user does not vouch for it.
    """
    if "://" in place and place != os.environ.get(PLACE):
        msg = (
            f"the place '{place}' (option 'bulk') is named by a recipe alone, and would get the vectors. If you know "
            f"it, say so: {PLACE}={place} in the environment."
        )
        raise InputError(msg)


def import_in_bulk(connection: Connection, name: str, schema: Any, parts: Iterable[Part], place: str) -> None:
    """Put all rows into files, have the server read each as soon as it is there, and wait until all are read.

    The files are removed at the end, however that comes. Rows of one partition come one after the other.

    Raises:
        InputError: Nothing can be written there.
        RetrievalkitError: The server could not read a file; names its reason.
    """
    store = _Store(place)
    # pymilvus offers this call on no public object that later versions keep.
    handler = connection.client._get_connection()
    try:
        with tempfile.TemporaryDirectory(prefix="rkit-milvus-bulk-") as folder:
            tasks = [
                handler.do_bulk_insert(name, partition or "", [store.put(file)])
                for partition, file in _files(parts, schema, Path(folder))
            ]
        for task in tasks:
            while (state := handler.get_bulk_insert_state(task)).state_name != "Completed":
                if state.state_name.startswith("Failed"):
                    reason = " ".join(str(state.failed_reason).split())[:500]
                    msg = f"{connection.place} could not read the rows put for it: {reason}"
                    raise RetrievalkitError(msg)
                time.sleep(_POLL_SECONDS)
    finally:
        store.clear()


def _files(parts: Iterable[Part], schema: Any, folder: Path) -> Iterator[tuple[str | None, Path]]:
    """Parquet files of rows of one partition each; a file is gone when the next is asked for."""
    try:
        from pymilvus.bulk_writer import BulkFileType, LocalBulkWriter
    except ImportError as error:
        raise MissingDependencyError("pymilvus[bulk-writer]", "option 'bulk'", "'pymilvus[bulk-writer]'") from error
    for name in ("bulk_writer", "local_bulk_writer", "buffer"):
        # It reports each step on the terminal.
        logging.getLogger(name).setLevel(logging.CRITICAL + 1)
    writer, held, partition = None, 0, None
    for number, entities in parts:
        if writer is not None and (number != partition or held > _BYTES_IN_A_FILE):
            yield from _written(writer, partition)
            writer = None
        if writer is None:
            # One that never writes by itself: it would do so in a thread, whose errors get lost.
            parquet = BulkFileType.PARQUET
            writer, held = LocalBulkWriter(schema, str(folder), chunk_size=1 << 60, file_type=parquet), 0
        partition = number
        for entity in entities:
            writer.append_row(entity)
            held += sum(_size(value) for value in entity.values())
    if writer is not None:
        yield from _written(writer, partition)


def _written(writer: Any, partition: str | None) -> Iterator[tuple[str | None, Path]]:
    writer.commit()
    if not writer.batch_files:
        msg = f"the rows for the server could not be written to '{tempfile.gettempdir()}'. Is there room?"
        raise RetrievalkitError(msg)
    for file in map(Path, writer.batch_files[0]):
        yield partition, file
        file.unlink()


def _size(value: Any) -> int:
    return value.nbytes if hasattr(value, "nbytes") else 16 * len(value) if isinstance(value, dict | str) else 8


class _Store:
    """A new folder at a place that this machine writes and the server reads."""

    def __init__(self, place: str) -> None:
        import fsspec

        self._place = place
        try:
            self._files, folder = fsspec.core.url_to_fs(place)
        except ImportError as error:
            msg = f"option 'bulk' is '{place}', and fsspec says: {error}."
            raise InputError(msg) from error
        except ValueError as error:
            msg = f"option 'bulk' is '{place}', which is no place for files: {error}. Give s3://BUCKET/FOLDER."
            raise InputError(msg) from error
        self._folder = f"{folder}/rkit-{uuid.uuid4().hex}"
        self._is_local = "file" in self._files.protocol

    def put(self, file: Path) -> str:
        """Copy a file there; returns its name as the server knows it."""
        target = f"{self._folder}/{uuid.uuid4().hex}{file.suffix}"
        try:
            self._files.makedirs(self._folder, exist_ok=True)
            self._files.put_file(str(file), target)
        except Exception as error:
            # What a store raises is a matter of its own library.
            msg = f"cannot write to '{self._place}' (option 'bulk'): {' '.join(str(error).split())[:300]}"
            raise InputError(msg) from error
        # A server knows its bucket, and wants names in it.
        return target if self._is_local else target.partition("/")[2]

    def clear(self) -> None:
        """Remove the folder."""
        with suppress(Exception):
            self._files.rm(self._folder, recursive=True)
