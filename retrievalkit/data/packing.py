"""Compressed files: what a file is packed with, read from its first bytes, and its bytes unpacked as a stream.

However small the compressed file is, only a bounded part of its content is in memory.
"""

from __future__ import annotations

import gzip
import io
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

from retrievalkit.errors import DataError, MissingDependencyError

COMPRESSIONS = ("", ".gz", ".zst")
CHUNK = 1 << 20
_FEED = 1 << 12  # bytes given to zstandard at once, which may unpack to 32,768 times as many
_LONGEST_MAGIC = 10
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_BZIP2 = re.compile(rb"BZh[1-9]1AY&SY")
_OTHERS = {
    b"\xfd7zXZ\0": "packed with xz",
    b"PK\x03\x04": "a zip archive",
    b"PAR1\x15": "in Parquet",
    b"\x89PNG": "an image",
    b"%PDF-": "a PDF document",
}


def is_packed(start: bytes) -> bool:
    """Whether a file that starts with these bytes is compressed in a way that is read."""
    return start.startswith((_GZIP, _ZSTD))


@contextmanager
def unpacked(stream: io.BufferedReader, path: Path) -> Iterator[IO[bytes]]:
    """The decompressed content of an open file.

    Raises:
        DataError: The file is of a known kind that is not read, such as an archive.
    """
    start = stream.peek(_LONGEST_MAGIC)[:_LONGEST_MAGIC]
    _refuse_other(start, path)
    if start.startswith(_ZSTD):
        yield io.BufferedReader(_Zstandard(stream, _zstandard(path).ZstdDecompressor()), CHUNK)
    elif start.startswith(_GZIP):
        with gzip.open(stream) as content:
            yield cast("IO[bytes]", content)
    else:
        yield stream


def _refuse_other(start: bytes, path: Path) -> None:
    kind = next((kind for magic, kind in _OTHERS.items() if start.startswith(magic)), None)
    if _BZIP2.match(start):
        kind = "packed with bzip2"
    if kind:
        msg = f"the file is {kind}, which is not read. Give plain text, or text packed with gzip or zstandard."
        raise DataError(msg, file=path)


@contextmanager
def packed(raw: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """A stream that compresses as the file's ending says."""
    if path.suffix == ".gz":
        # No file name and no time stamp in the header: the same rows give the same bytes.
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
            yield cast("IO[bytes]", stream)
    elif path.suffix == ".zst":
        with _zstandard(path).ZstdCompressor().stream_writer(raw, closefd=False) as stream:
            yield stream
    else:
        yield raw


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Turn the errors of a file that cannot be read, or that is damaged, into one message."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, error) from error
    except OSError as error:
        msg = f"cannot read '{path}': {error.strerror or error}. Check the file and its permissions."
        raise DataError(msg) from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # the package may not be installed, so its class cannot be named
            raise
        raise _damaged(path, error) from error


def _damaged(path: str | Path, error: Exception) -> DataError:
    return DataError(f"the compressed file is damaged or cut off ({error}). Fetch or pack it again.", file=path)


def _zstandard(path: Path) -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError("zstandard", f"the file '{path}'") from None
    return zstandard


class _Zstandard(io.RawIOBase):
    """Decompresses a stream of zstandard frames; the package's own reader does not notice a truncated stream."""

    def __init__(self, stream: IO[bytes], decompressor: Any) -> None:
        self._stream = stream
        self._decompressor = decompressor
        self._frame: Any = None
        self._rest = b""  # compressed bytes after the end of a frame
        self._ready = memoryview(b"")

    def readable(self) -> bool:
        """True."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer as far as possible, and return the number of bytes."""
        while not self._ready and self._unpack():
            pass
        count = min(len(buffer), len(self._ready))
        buffer[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _unpack(self) -> bool:
        given = self._rest or self._stream.read(_FEED)
        if not given:
            if self._frame is not None:
                msg = "the last frame has no end"
                raise EOFError(msg)
            return False
        self._frame = self._frame or self._decompressor.decompressobj()
        self._ready = memoryview(self._frame.decompress(given))
        self._rest = self._frame.unused_data if self._frame.eof else b""
        if self._frame.eof:
            self._frame = None
        return True
