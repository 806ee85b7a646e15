"""Text files, plain or compressed: read as numbered lines, written atomically.

Compression is detected by the first bytes, whatever the name. Everything is strict UTF-8.
"""

from __future__ import annotations

import codecs
import gc
import gzip
import io
import json
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from retrievalkit.artifacts import write_file
from retrievalkit.errors import DataError, MissingDependencyError, nearest, shortlist

COMPRESSIONS = ("", ".gz", ".zst")
CHUNK = 1 << 20
_LOOK = 1 << 12
_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class Line(NamedTuple):
    """A line of a file: its number from 1, its first byte, the byte after it, and its text without the line end."""

    number: int
    start: int
    end: int
    text: str


def existing(path: str | Path) -> Path:
    """The path, if it exists.

    Raises:
        DataError: It does not; the message suggests the nearest file in its folder.
    """
    path = Path(path)
    if path.exists():
        return path
    if not path.parent.is_dir():
        msg = f"'{path}' does not exist, and neither does the folder '{path.parent}'. Check the path."
    elif close := nearest(path.name, sorted(one.name for one in path.parent.iterdir())):
        msg = f"'{path}' does not exist; did you mean '{path.parent / close}'?"
    else:
        msg = f"'{path}' does not exist. Check the path."
    raise DataError(msg)


def find_file(folder: Path, name: str) -> Path | None:
    """A file of this name in a folder, plain or compressed."""
    return next((path for end in COMPRESSIONS if (path := folder / f"{name}{end}").is_file()), None)


def inside(path: Path, name: str, kinds: str) -> Path:
    """The file itself, or the file of this name (plain or compressed) in the folder that `path` is."""
    if not path.is_dir():
        return path
    if found := find_file(path, name):
        return found
    msg = f"the folder has no {name} (nor {name}.gz, {name}.zst), where its {kinds} would be. It holds {listing(path)}."
    raise DataError(msg, file=path)


def listing(folder: Path) -> str:
    """The names in a folder, for an error message."""
    return shortlist(sorted(one.name for one in folder.iterdir())) or "nothing"


def is_plain(path: str | Path) -> bool:
    """Whether a file is uncompressed, so that it can be read from any position."""
    with Path(path).open("rb") as stream:
        return not stream.read(4).startswith((_GZIP, _ZSTD))


@contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed."""
    path = existing(path)
    if path.is_dir():
        msg = f"'{path}' is a folder, and a file was expected."
        raise DataError(msg)
    with path.open("rb") as stream, _complaining(path):
        start = stream.peek(4)[:4]
        if start.startswith(_ZSTD):
            yield io.BufferedReader(_Zstandard(stream, _zstandard(path).ZstdDecompressor()), CHUNK)
        elif start.startswith(_GZIP):
            with gzip.open(stream) as unpacked:
                yield cast("IO[bytes]", unpacked)
        else:
            yield stream


@contextmanager
def open_text(path: str | Path) -> Iterator[Iterator[str]]:
    """Open a text file for reading line by line, without line ends."""
    yield (line.text for line in read_lines(path))


def read_lines(path: str | Path) -> Iterator[Line]:
    """The lines of a text file.

    Raises:
        DataError: A line is not UTF-8, or the file is damaged.
    """
    end = 0
    with open_bytes(path) as stream:
        for number, raw in enumerate(stream, 1):
            start, end = end, end + len(raw)
            if number == 1 and raw.startswith(codecs.BOM_UTF8):
                start = len(codecs.BOM_UTF8)
                raw = raw[start:]
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                raise not_utf8(path, number, error) from None
            yield Line(number, start, end, text.rstrip("\r\n"))


def read_blocks(path: str | Path, size: int = CHUNK) -> Iterator[tuple[int, str]]:
    """Blocks of about `size` bytes of a text file, made of whole lines: (number of the first line, text).

    Raises:
        DataError: A line is not UTF-8, or the file is damaged.
    """
    first, rest = 1, b""
    with open_bytes(path) as stream:
        while block := stream.read(size):
            if first == 1 and not rest:
                block = block.removeprefix(codecs.BOM_UTF8)
            whole, end, rest_of_block = block.rpartition(b"\n")
            if not end:
                rest += block
                continue
            raw, rest = rest + whole + end, rest_of_block
            yield first, _decoded(raw, path, first)
            first += raw.count(b"\n")
    if rest:
        yield first, _decoded(rest + b"\n", path, first)


def _decoded(raw: bytes, path: str | Path, first: int) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise not_utf8(path, first + raw.count(b"\n", 0, error.start), error) from None


def count_lines(path: str | Path) -> int:
    """The number of lines of a text file, empty ones included."""
    count, last = 0, b"\n"
    with open_bytes(path) as stream:
        while block := stream.read(CHUNK):
            count, last = count + block.count(b"\n"), block[-1:]
    return count + (last != b"\n")


def filled_lines(path: str | Path) -> Iterator[Line]:
    """The lines that are not blank."""
    return (line for line in read_lines(path) if line.text and not line.text.isspace())


def first_character(path: str | Path) -> str:
    """The first non-blank character of a file; "" for an empty file."""
    with open_bytes(path) as stream:
        while block := stream.read(_LOOK):
            if text := block.decode("utf-8", "replace").lstrip("\ufeff \t\r\n"):
                return text[0]
    return ""


@contextmanager
def write_text(path: str | Path) -> Iterator[IO[str]]:
    """Open a text file for writing; `.gz` and `.zst` are compressed, and the file appears once it is complete."""
    with write_file(path) as staging, staging.open("wb") as raw, _packed(raw, Path(path)) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n", write_through=False)
        yield text
        text.flush()
        text.detach()


def write_jsonl(path: str | Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write one JSON object per line and return their number."""
    count = 0
    with write_text(path) as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def not_utf8(path: str | Path, line: int, error: UnicodeDecodeError) -> DataError:
    """The error for bytes that are not UTF-8."""
    raw, place = error.object, error.start - (error.object.rfind(b"\n", 0, error.start) + 1)
    guess = "UTF-16" if raw.startswith(_UTF16) else "another encoding, or no text"
    msg = f"byte 0x{raw[error.start]:02x} at position {place + 1} of the line is not UTF-8: the file is in {guess}."
    return DataError(f"{msg} Save it as UTF-8, with iconv for one.", file=path, line=line)


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
        packed = self._rest or self._stream.read(CHUNK // 8)
        if not packed:
            if self._frame is not None:
                msg = "the last frame has no end"
                raise EOFError(msg)
            return False
        self._frame = self._frame or self._decompressor.decompressobj()
        self._ready = memoryview(self._frame.decompress(packed))
        self._rest = self._frame.unused_data if self._frame.eof else b""
        if self._frame.eof:
            self._frame = None
        return True


@contextmanager
def _packed(raw: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
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
def _complaining(path: Path) -> Iterator[None]:
    """Turn the errors of a damaged compressed file into one message."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise _damaged(path, error) from error
    except Exception as error:
        if type(error).__name__ != "ZstdError":  # the package may not be installed, so its class cannot be named
            raise
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(f"the compressed file is damaged or cut off ({error}). Fetch or pack it again.", file=path)


@contextmanager
def uncollected() -> Iterator[None]:
    """Turn off the garbage collector: it would repeatedly scan objects that all survive."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
