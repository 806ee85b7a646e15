"""Arrays mapped from files, after checking that the header, the type and the file size agree.

numpy trusts the header: with a wrong shape, it would read past the end of the file, which kills the process.
"""

from __future__ import annotations

import io
import math
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np

from retrievalkit.errors import ArtifactError
from retrievalkit.storage import MappedFile

REMEDY = "Encode again, or copy the folder again."

_PIECE = 1 << 22
_LONGEST_HEADER = 1 << 17
_EXPONENT = np.uint16(0x7C00)
_MAGIC = b"\x93NUMPY\x01\x00"
# The header that numpy writes for arrays of numbers and of bytes.
_HEADER = re.compile(
    rb"\{'descr': '([<|][a-z]\d{1,2}|\|S\d{1,2})', 'fortran_order': False, 'shape': \(([\d, ]*)\), \} *\n"
)


@contextmanager
def reading(path: str | Path, remedy: str = REMEDY) -> Iterator[None]:
    """Convert the errors of a damaged file or folder to an ArtifactError."""
    try:
        yield
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        msg = f"'{path}' cannot be read ({error}): it is damaged. {remedy}"
        raise ArtifactError(msg) from error


def open_array(path: Path, dtypes: tuple[str, ...], ndim: int, *, region: tuple[int, int] | None = None) -> np.ndarray:
    """Map an array that `np.save` wrote; it stays readable if the file is replaced or removed.

    Args:
        path: The file.
        dtypes: The accepted types, such as "<f4".
        ndim: The required number of dimensions.
        region: Start and size of the array in the file; None = the whole file.

    Raises:
        OSError: The file cannot be read.
        ValueError: The array does not match; the message gives the reason.
    """
    return array_in(MappedFile.of(path), dtypes, ndim, region=region)


def array_in(
    file: MappedFile, dtypes: tuple[str, ...], ndim: int, *, region: tuple[int, int] | None = None
) -> np.ndarray:
    """Return an array in a mapped file; see `open_array`."""
    buffer = memoryview(file.buffer)
    start, size = region or (0, len(buffer))
    stream = io.BytesIO(buffer[start : start + _LONGEST_HEADER])
    dtype, shape, before = read_header(stream, size, dtypes, ndim)
    if not math.prod(shape):
        return np.empty(shape, dtype=dtype)
    return np.frombuffer(buffer, dtype, math.prod(shape), start + before).reshape(shape)


def read_header(
    stream: IO[bytes], size: int, dtypes: tuple[str, ...], ndim: int
) -> tuple[np.dtype[Any], tuple[int, ...], int]:
    """Type and shape of an array of `size` bytes, and the size of its header; see `open_array`."""
    magic, length = stream.read(len(_MAGIC)), int.from_bytes(stream.read(2), "little")
    header = _HEADER.fullmatch(stream.read(length))
    if magic != _MAGIC or header is None:
        msg = "it does not start as an array of numbers"
        raise ValueError(msg)
    dtype, shape = header[1].decode(), tuple(int(part) for part in header[2].decode().split(",") if part.strip())
    if dtype not in dtypes or len(shape) != ndim:
        msg = f"it is an array {shape} of {dtype}, not one of {' or '.join(dtypes)} with {ndim} dimensions"
        raise ValueError(msg)
    before = len(_MAGIC) + 2 + length
    if before + math.prod(shape) * np.dtype(dtype).itemsize != size:
        msg = f"an array {shape} of {dtype} does not have {size:,} bytes"
        raise ValueError(msg)
    return np.dtype(dtype), shape, before


def check_starts(starts: np.ndarray, elements: int) -> None:
    """Check the start of each run of an array, and the end of the last run.

    Args:
        starts: (runs + 1,).
        elements: The length of the array.

    Raises:
        ValueError: A run lies outside the array, or ends before it starts.
    """
    if not len(starts) or starts[0] != 0 or starts[-1] != elements or (np.diff(starts) < 0).any():
        msg = f"its starts are not ascending from 0 to {elements:,}"
        raise ValueError(msg)


def check_range(numbers: np.ndarray, end: int) -> None:
    """Check that all numbers are in [0, end)."""
    if len(numbers) and not 0 <= numbers.min() <= numbers.max() < end:
        msg = f"it holds numbers from {numbers.min():,} to {numbers.max():,}, outside of 0 to {end - 1:,}"
        raise ValueError(msg)


def check_finite(numbers: np.ndarray) -> None:
    """Check that no number is NaN or infinite."""
    if numbers.dtype == np.float16:
        # NaN and infinity have all exponent bits set. Several times faster than numpy.isfinite for float16.
        finite = ((numbers.view(np.uint16) & _EXPONENT) != _EXPONENT).all()
    else:
        finite = np.isfinite(numbers).all()
    if not finite:
        msg = "it holds numbers that are not finite"
        raise ValueError(msg)


def groups(numbers: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yield each distinct number, ascending, and the positions where it occurs."""
    order = np.argsort(numbers, kind="stable")
    cuts = np.flatnonzero(np.diff(numbers[order])) + 1
    for places in np.split(order, cuts) if len(order) else []:
        yield int(numbers[places[0]]), places


def in_pieces(check: Callable[[np.ndarray], None], array: np.ndarray) -> None:
    """Run a check on a mapped array piece by piece, to limit memory."""
    rows = max(1, _PIECE // max(1, math.prod(array.shape[1:])))
    for start in range(0, len(array), rows):
        check(array[start : start + rows])
