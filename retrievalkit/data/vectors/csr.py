"""Rows of scipy CSR matrices in .npz files, read on demand: only the row pointers are in memory.

`scipy.sparse.load_npz` reads the whole file. An uncompressed file can be memory-mapped instead.
"""

from __future__ import annotations

import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np

from retrievalkit.data.vectors.arrays import array_in, check_finite, check_range, check_starts, groups, reading
from retrievalkit.storage import MappedFile

_LOCAL_HEADER, _LOCAL_MAGIC = 30, b"PK\x03\x04"  # of a zip member; its name and extra field follow
_MOST_COLUMNS = 1 << 31


class MappedCsr:
    """A memory-mapped CSR matrix.

    Attributes:
        shape: Rows and columns.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with path.open("rb") as stream:
            parts, file = members(stream), MappedFile(stream)
        form = array_in(file, ("|S3",), 0, region=parts["format.npy"])
        texts, vocabulary = array_in(file, ("<i4", "<i8"), 1, region=parts["shape.npy"]).tolist()
        self.shape: tuple[int, int] = texts, vocabulary
        self._starts = np.array(array_in(file, ("<i4", "<i8"), 1, region=parts["indptr.npy"]), dtype=np.int64)
        self._columns = array_in(file, ("<i4", "<i8"), 1, region=parts["indices.npy"])
        self._values = array_in(file, ("<f4",), 1, region=parts["data.npy"])
        check_starts(self._starts, len(self._columns))
        fitting = len(self._starts) == texts + 1 and len(self._columns) == len(self._values)
        if form.item() != b"csr" or not fitting or not 0 < vocabulary < _MOST_COLUMNS:
            msg = "its parts do not fit together"
            raise ValueError(msg)

    def rows(self, start: int, end: int) -> Any:
        """Return the rows from `start` to `end` as a matrix."""
        first, last = self._starts[start], self._starts[end]
        piece = self._columns[first:last], self._values[first:last]
        return self.checked([piece], self._starts[start : end + 1] - first)

    def take(self, rows: np.ndarray) -> Any:
        """Return any rows, in the order of `rows`, as a matrix."""
        return joined([self], np.zeros(len(rows), dtype=np.int64), rows)

    def checked(self, pieces: Sequence[tuple[np.ndarray, np.ndarray]], starts: np.ndarray) -> Any:
        """Return a CSR matrix of checked columns and values."""
        import scipy.sparse

        # Copy even a single piece: zip members are not aligned to the element size.
        nothing = self._columns[:0], self._values[:0]
        columns, values = (np.concatenate(parts) for parts in zip(nothing, *pieces, strict=True))
        with reading(self._path):
            # scipy does not check bounds: a bad column index would access memory outside the array.
            check_range(columns, self.shape[1])
            check_finite(values)
        return scipy.sparse.csr_matrix((values, columns, starts), shape=(len(starts) - 1, self.shape[1]))


def joined(files: Sequence[MappedCsr], numbers: np.ndarray, rows: np.ndarray) -> Any:
    """Return rows of several files as a single matrix, in order.

    Args:
        files: The files, at least one.
        numbers: (n,) the file of each row.
        rows: (n,) the row within its file.
    """
    order, pieces, counts = [], [], [np.zeros(1, dtype=np.int64)]
    for number, places in groups(numbers):
        file = files[number]
        elements, starts = spread(file._starts, rows[places])
        pieces.append((file._columns[elements], file._values[elements]))
        counts.append(np.diff(starts))
        order.append(places)
    matrix = files[0].checked(pieces, np.cumsum(np.concatenate(counts)))
    return matrix if len(order) < 2 else matrix[np.argsort(np.concatenate(order))]


def members(stream: IO[bytes]) -> dict[str, tuple[int, int]]:
    """Name -> start and size of each member of an uncompressed .npz file."""
    places = {}
    try:
        with zipfile.ZipFile(stream) as archive:
            for member in archive.infolist():
                stream.seek(member.header_offset)
                header = stream.read(_LOCAL_HEADER)
                if member.compress_type != zipfile.ZIP_STORED or not header.startswith(_LOCAL_MAGIC):
                    msg = f"its member {member.filename} is not stored uncompressed"
                    raise ValueError(msg)
                before = sum(struct.unpack_from("<HH", header, 26))
                places[member.filename] = (member.header_offset + _LOCAL_HEADER + before, member.file_size)
    # All exceptions that zipfile raises for a corrupt directory.
    except (struct.error, NotImplementedError, OverflowError, EOFError) as error:
        msg = f"it is not an .npz file: {error}"
        raise ValueError(msg) from error
    return places


def spread(starts: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return element positions of the selected runs, and the new start of each run.

    Args:
        starts: (runs + 1,) the start of each run, which is the end of the previous run.
        wanted: (wanted,) numbers of the selected runs.

    Returns:
        (elements,) the positions of the elements, and (wanted + 1,) the starts of the runs among them.
    """
    first = np.asarray(starts[wanted])
    counts = np.asarray(starts[wanted + 1]) - first
    new = np.concatenate([[0], np.cumsum(counts)])
    return np.repeat(first - new[:-1], counts) + np.arange(new[-1]), new
