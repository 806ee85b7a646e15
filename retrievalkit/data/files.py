"""Text files, plain or compressed: read as numbered lines, written atomically.

Compression is detected from the first bytes, not from the name, and only a bounded part of the content is in memory.
Everything is strict UTF-8. Only regular files are read, because most are opened several times: a pipe cannot be read
again, and a device may never end.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import re
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from retrievalkit.errors import DataError, nearest, shortlist
from retrievalkit.registry.modules import large_imports
from retrievalkit.storage import fingerprint_file, write_file

LONGEST_LINE = 1 << 26
"""Maximum bytes of a line, decompressed; a longer line is refused before it fills the memory."""
COMPRESSIONS = ("", ".gz", ".zst")
CHUNK = 1 << 20

_GZIP, _ZSTD = b"\x1f\x8b", b"\x28\xb5\x2f\xfd"
_UNREAD = {
    rb"\xfd7zXZ\0": "compressed with xz",
    rb"BZh[1-9]1AY&SY": "compressed with bzip2",
    rb"PK\x03\x04": "a zip archive",
    rb"PAR1\x15": "in Parquet format",
    rb"\x89PNG": "an image",
    rb"%PDF-": "a PDF document",
}
_LOOK = 1 << 12
_SHOWN = 300
_GROUPS = 6
_UTF16 = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
_KERNEL = ("/proc/", "/sys/")


class Line(NamedTuple):
    """A line of a file: number (from 1), byte offsets of its start and end, and text without the line end."""

    number: int
    start: int
    end: int
    text: str


def existing(path: str | Path) -> Path:
    """Check that a path is a regular file or a folder."""
    path = path if isinstance(path, Path) else Path(path)
    try:
        str(path).encode()
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        problem = f"'{path}' does not exist"
        if not os.path.isdir(path.parent):
            problem += f", and neither does the folder '{path.parent}'. Check the path."
        else:
            close = nearest(path.name, names_in(path.parent))
            problem += f"; did you mean '{path.parent / close}'?" if close else ". Check the path."
        raise DataError(problem) from None
    except OSError as error:
        msg = f"cannot read '{str(path)[:_SHOWN]}': {error.strerror}. Check the path and its permissions."
        raise DataError(msg) from None
    except ValueError:
        msg = f"{str(path)!r} is not a path: it contains NUL, or bytes that are not UTF-8. Rename the file."
        raise DataError(msg) from None
    if not (stat.S_ISDIR(mode) or stat.S_ISREG(mode)) or f"{os.path.realpath(path)}/".startswith(_KERNEL):
        msg = f"'{path}' is a pipe, a device or a kernel file, and data is read more than once. Save it to a file."
        raise DataError(msg)
    return path


def names_in(folder: Path) -> list[str]:
    """Return the sorted names in a folder."""
    with reading(folder):
        return sorted(os.listdir(folder))


def find_file(folder: Path, name: str) -> Path | None:
    """Find a file of this name in a folder, plain or compressed."""
    return next((path for end in COMPRESSIONS if os.path.isfile(path := folder / f"{name}{end}")), None)


def inside(path: Path, name: str, kinds: str) -> Path:
    """Return `path` if it is a file; if it is a folder, its file of this name, plain or compressed."""
    if not os.path.isdir(path):
        return path
    if file := find_file(path, name):
        return file
    msg = f"the folder has no {name} (nor {name}.gz, {name}.zst), where its {kinds} would be. It holds {listing(path)}."
    raise DataError(msg, file=path)


def listing(folder: Path) -> str:
    """Return the names in a folder, for an error message."""
    return shortlist(names_in(folder)) or "nothing"


def grouped(names: Mapping[str, Sequence[str]]) -> str:
    """Format the first names and the count of each group on one line, the largest group first."""
    groups = sorted(names.items(), key=lambda item: -len(item[1]))
    listed = "; ".join(f"{group} ({len(members):,}): {shortlist(members, 3)}" for group, members in groups[:_GROUPS])
    rest = sum(len(members) for _, members in groups[_GROUPS:])
    return listed + (f"; and {rest:,} more" if rest else "")


def is_plain(path: str | Path) -> bool:
    """True if a file is uncompressed, so that it can be read from any position."""
    with reading(path), existing(path).open("rb") as stream:
        return not stream.read(4).startswith((_GZIP, _ZSTD))


def fingerprint(path: str | Path) -> str:
    """Return a fingerprint of a file's bytes."""
    with reading(path):
        return fingerprint_file(path)


@contextmanager
def reading(path: str | Path) -> Iterator[None]:
    """Convert errors of an unreadable or damaged file to a DataError."""
    try:
        yield
    except (OSError, EOFError, zlib.error) as error:
        if isinstance(error, OSError) and error.errno is not None:
            msg = f"cannot read '{path}': {error.strerror}. Check the file and its permissions."
            raise DataError(msg) from error
        msg = f"the compressed file is damaged or cut off ({error}). Download or compress it again."
        raise DataError(msg, file=path) from error


def stamp(file: Path | int) -> tuple[int, int]:
    """Return size and modification time of a file (by path or descriptor), which change when it is written."""
    with reading(str(file)):
        status = os.fstat(file) if isinstance(file, int) else file.stat()
    return status.st_size, status.st_mtime_ns


@contextmanager
def open_bytes(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, decompressed."""
    path = existing(path)
    if path.is_dir():
        msg = f"'{path}' is a folder, but a file was expected. Give a file in it."
        raise DataError(msg)
    with reading(path), path.open("rb") as stream:
        start = stream.peek(_LOOK)
        if kind := next((kind for magic, kind in _UNREAD.items() if re.match(magic, start)), None):
            msg = f"the file is {kind}, which is not supported. Give plain text, or compress it with gzip or zstandard."
            raise DataError(msg, file=path)
        if start.startswith(_GZIP):
            with gzip.open(stream) as content:
                yield cast("IO[bytes]", content)
        elif start.startswith(_ZSTD):
            import pyarrow

            with pyarrow.CompressedInputStream(stream, "zstd") as content:
                yield io.BufferedReader(content, CHUNK)
        else:
            yield stream


def read_lines(path: str | Path) -> Iterator[Line]:
    """Read the lines of a text file."""
    end = 0
    with open_bytes(path) as stream:
        for number, raw in enumerate(iter(partial(stream.readline, LONGEST_LINE + 1), b""), 1):
            if len(raw) > LONGEST_LINE:
                raise too_long(path, number)
            start, end = end, end + len(raw)
            if number == 1 and raw.startswith(codecs.BOM_UTF8):
                start = len(codecs.BOM_UTF8)
                raw = raw[start:]
            try:
                text = raw.decode()
            except UnicodeDecodeError as error:
                raise not_utf8(path, number, error) from None
            yield Line(number, start, end, text.rstrip("\r\n"))


def filled_lines(path: str | Path) -> Iterator[Line]:
    """Yield the lines that are not blank."""
    return (line for line in read_lines(path) if line.text and not line.text.isspace())


def first_character(path: str | Path) -> str:
    """Return the first non-blank character of a file; "" for an empty file."""
    with open_bytes(path) as stream:
        while block := stream.read(_LOOK):
            # The same white space that `filled_lines` skips.
            if text := block.decode("utf-8", "replace").lstrip().lstrip("\ufeff").lstrip():
                return text[0]
    return ""


@contextmanager
def packed(raw: IO[bytes], path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream that compresses according to the file extension; the same content gives the same bytes."""
    if path.suffix == ".gz":
        with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
            yield cast("IO[bytes]", stream)
    elif path.suffix == ".zst":
        import pyarrow

        with pyarrow.CompressedOutputStream(raw, "zstd") as stream:
            yield stream
    else:
        yield raw


@contextmanager
def write_text(path: str | Path) -> Iterator[IO[str]]:
    """Open a text file for writing; `.gz` and `.zst` are compressed. The file appears when it is complete."""
    with write_file(path) as staging, staging.open("wb") as raw, packed(raw, Path(path)) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="\n", write_through=False)
        yield text
        text.flush()
        text.detach()


def write_jsonl(path: str | Path, rows: Iterable[dict[str, Any]]) -> int:
    """Write one JSON object per line; returns their number."""
    count = 0
    with write_text(path) as stream:
        for row in rows:
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")
            count += 1
    return count


def not_utf8(path: str | Path, line: int, error: UnicodeDecodeError) -> DataError:
    """Return the error for bytes that are not UTF-8."""
    raw, place = error.object, error.start - (error.object.rfind(b"\n", 0, error.start) + 1)
    twice = "compressed twice" if raw.startswith((_GZIP, _ZSTD)) else "in another encoding, or not text"
    guess = "in UTF-16" if raw.startswith(_UTF16) else twice
    msg = f"byte 0x{raw[error.start]:02x} at position {place + 1} of the line is not UTF-8: the file is {guess}."
    return DataError(f"{msg} Save it as UTF-8, for example with iconv.", file=path, line=line)


def too_long(path: str | Path, line: int) -> DataError:
    """Return the error for a line over the size limit."""
    msg = f"the line is longer than {LONGEST_LINE >> 20} MiB. Is it a text file with one record per line?"
    return DataError(msg, file=path, line=line)


uncollected = large_imports
"""Disable the garbage collector in a block: it would repeatedly scan objects that all survive."""
