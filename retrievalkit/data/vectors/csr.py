"""Rows of scipy CSR matrices in .npz files, read on demand: only the row pointers are in memory.

`scipy.sparse.load_npz` reads the whole file. An uncompressed file can be mapped instead, because its members are stored
as they are.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import scipy.sparse

_LOCAL_HEADER = 30  # bytes of a zip file's local header, before the name and the extra field


class MappedCsr:
    """A CSR matrix in a file.

    Attributes:
        shape: Rows and columns.

    Raises:
        OSError, ValueError, KeyError, zipfile.BadZipFile: The file is not such a matrix, or is damaged.
    """

    def __init__(self, path: Path) -> None:
        with zipfile.ZipFile(path) as archive:
            if {member.compress_type for member in archive.infolist()} != {zipfile.ZIP_STORED}:
                matrix = scipy.sparse.csr_matrix(scipy.sparse.load_npz(path))
                self.shape: tuple[int, int] = matrix.shape
                self._starts, self._columns, self._values = matrix.indptr, matrix.indices, matrix.data
                return
        with np.load(path, allow_pickle=False) as archive:
            texts, vocabulary = archive["shape"].tolist()
            self.shape = texts, vocabulary
            self._starts = archive["indptr"].astype(np.int64)
        self._columns, self._values = _member(path, "indices"), _member(path, "data")
        if len(self._starts) != texts + 1 or not self._starts[-1] == len(self._columns) == len(self._values):
            msg = "its parts do not fit together"
            raise ValueError(msg)

    def rows(self, start: int, end: int) -> Any:
        """The rows from `start` to `end` as a matrix."""
        first, last = self._starts[start], self._starts[end]
        return self._matrix(slice(first, last), self._starts[start : end + 1] - first)

    def take(self, rows: np.ndarray) -> Any:
        """Any rows, in the order given, as a matrix."""
        return self._matrix(*spread(self._starts, rows))

    def _matrix(self, places: slice | np.ndarray, starts: np.ndarray) -> Any:
        # Copied, because members of a zip file are not aligned to the size of their elements.
        parts = (np.array(self._values[places]), np.array(self._columns[places]), starts)
        return scipy.sparse.csr_matrix(parts, shape=(len(starts) - 1, self.shape[1]))


def _member(path: Path, name: str) -> np.ndarray:
    """An array in an uncompressed .npz file, mapped into memory."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as stream:
        stream.seek(archive.getinfo(f"{name}.npy").header_offset)
        header = stream.read(_LOCAL_HEADER)
        stream.seek(int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little"), 1)
        version = np.lib.format.read_magic(stream)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
        if not shape[0]:
            return np.empty(0, dtype=dtype)
        return np.memmap(path, dtype=dtype, mode="r", offset=stream.tell(), shape=shape)


def spread(starts: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The positions of the elements of the wanted runs, and where each run starts among them.

    Args:
        starts: (runs + 1,) where each run starts, which is where the previous run ends.
        wanted: (wanted,) numbers of runs.

    Returns:
        (elements,) the positions of the wanted runs' elements, and (wanted + 1,) the starts of these runs among them.
    """
    first = np.asarray(starts[wanted])
    counts = np.asarray(starts[wanted + 1]) - first
    new = np.concatenate([[0], np.cumsum(counts)])
    return np.repeat(first - new[:-1], counts) + np.arange(new[-1]), new
