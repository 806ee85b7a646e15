"""Vector shards in an object store, read by byte range; only the other files of their folder are downloaded."""

from __future__ import annotations

import hashlib
import io
import itertools
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any, TypeVar

import numpy as np

from retrievalkit import storage
from retrievalkit.data.vectors.arrays import check_finite, read_header, reading
from retrievalkit.errors import ArtifactError

Item = TypeVar("Item")

_HEADER_BYTES = 128  # size of numpy's header of a matrix; rkit never writes a longer header
_GAP_BYTES = 1 << 16
"""Rows closer than this are read in one request: a request costs about as much as transferring these bytes."""


class RangedRows:
    """A matrix in an object store.

    Its checksum is verified when all bytes are read in order, from first to last.

    Args:
        store: The folder.
        name: The name of the object.
        entry: Its size and checksum from the manifest.
        head: Its first bytes.

    Attributes:
        shape, dtype, offset: As in a memory-mapped array.
    """

    def __init__(self, store: storage.Store, name: str, entry: Mapping[str, Any], head: bytes) -> None:
        self.dtype, self.shape, self.offset = read_header(io.BytesIO(head), entry["bytes"], ("<f4", "<f2"), 2)
        self.size = int(np.prod(self.shape))
        self.filename = f"{store.url}/{name}"
        self._store, self._name, self._checksum = store, name, entry["blake2b"]
        self._head = head[: self.offset]
        self._lock, self._next, self._whole = threading.Lock(), 0, False
        self._digest = hashlib.blake2b(digest_size=16)

    def rows(self, start: int, end: int) -> np.ndarray:
        """(end - start, dim): the rows from `start` to `end`."""
        return self._spans([(start, end)])[0]

    def take(self, rows: np.ndarray) -> np.ndarray:
        """(rows, dim): any rows, in the order of `rows`."""
        wanted, places = np.unique(rows, return_inverse=True)
        gap = _GAP_BYTES // (self.shape[1] * self.dtype.itemsize)
        cuts = np.flatnonzero(np.diff(wanted) > gap + 1) + 1
        groups = np.split(wanted, cuts)
        arrays = self._spans([(int(group[0]), int(group[-1]) + 1) for group in groups])
        selected = [array[group - group[0]] for group, array in zip(groups, arrays, strict=True)]
        result: np.ndarray = np.concatenate(selected)[places]
        return result

    def _spans(self, spans: list[tuple[int, int]]) -> list[np.ndarray]:
        width = self.shape[1] * self.dtype.itemsize
        wanted = [(self.offset + start * width, self.offset + end * width) for start, end in spans]
        arrays = []
        for (start, end), data in zip(spans, self._store.parts([(self._name, *span) for span in wanted]), strict=True):
            # bytearray, because torch warns about read-only arrays.
            array = np.frombuffer(bytearray(data), dtype=self.dtype).reshape(end - start, -1)
            if not self._whole:
                self._compare(start, end, array, data)
            arrays.append(array)
        return arrays

    def _compare(self, start: int, end: int, array: np.ndarray, data: bytes) -> None:
        problem = ""
        with self._lock:
            if start == 0:
                self._digest, self._next = hashlib.blake2b(self._head, digest_size=16), 0
            if start == self._next:
                self._digest.update(data)
                self._next = end
                if end == self.shape[0]:
                    self._whole = self._digest.hexdigest() == self._checksum
                    problem = "" if self._whole else "its checksum is not the one recorded"
        try:
            check_finite(array)
        except ValueError as error:
            problem = problem or str(error)
        if problem:
            msg = f"'{self.filename}' is damaged, or was replaced: {problem}. Run the command again, or encode again."
            raise ArtifactError(msg)


def ranged_rows(store: storage.Store, files: Mapping[str, Mapping[str, Any]], names: list[str]) -> list[RangedRows]:
    """Open the vector shards of a folder in a store; with RKIT_VERIFY=1, verify all bytes."""
    for name in names:
        if files[name]["bytes"] <= _HEADER_BYTES:
            msg = f"'{store.url}/{name}' contains no vectors. Encode again."
            raise ArtifactError(msg)
    heads = store.parts([(name, 0, _HEADER_BYTES) for name in names])
    shards = []
    for name, head in zip(names, heads, strict=True):
        with reading(f"{store.url}/{name}"):
            shards.append(RangedRows(store, name, files[name], head))
    if storage.verifies():
        for shard in shards:
            shard.rows(0, shard.shape[0])
    return shards


def read_ahead(items: Iterable[Item]) -> Iterator[Item]:
    """Yield items, computing the next in a thread."""
    source = iter(items)
    context = copy_context()  # of the command that collects the notes
    with ThreadPoolExecutor(1) as thread:
        pending = thread.submit(context.run, lambda: list(itertools.islice(source, 1)))
        while batch := pending.result():
            pending = thread.submit(context.run, lambda: list(itertools.islice(source, 1)))
            yield batch[0]
            del batch
