"""Run files that are opened, but not read into memory: the hits of a query are read when they are wanted.

Opening a file locates the lines of each query. Of a file grouped by query, as programs write them, only the queries'
ids and 20 bytes for each are kept; of any other, 20 bytes for each stretch of lines of the same query. The hits are the
same either way. A compressed file is unpacked into an unnamed temporary file. JSON (BEIR's form) is read whole.
"""

from __future__ import annotations

import codecs
import os
import re
import shutil
import tempfile
import weakref
from array import array
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TypeVar, get_args

from retrievalkit.data import files, packing
from retrievalkit.data.run_forms import RunForm, form_of, is_run_object
from retrievalkit.data.runs import Columns, Hits, Ties, columns_in, hits_in, read_run
from retrievalkit.data.sources import InMemory
from retrievalkit.errors import DataError, UnknownNameError

_Content = TypeVar("_Content", Hits, Columns)

_LONGEST_LINE = 1 << 26
_SHORTEST_STEP = 1 << 10
# Consecutive lines with the same first cell, which ends at a tab if the line has one, or else at a space.
_STRETCH = re.compile(
    rb"([^ \t\r\n][^\t\n]*)\t[^\n]*\n(?:\1\t[^\n]*\n)*|([^ \t\r\n][^ \t\n]*) [^\t\n]*\n(?:\2 [^\t\n]*\n)*"
)


def open_run(path: str | Path, ties: Ties = "document_id") -> Mapping[str, Hits]:
    """A run whose hits are read when they are wanted; see `read_run`, which has the same content.

    Raises:
        DataError: The file is empty or of an unknown form. Damaged lines are reported when they are read.
    """
    if ties not in get_args(Ties):
        raise UnknownNameError("choice of ties", ties, get_args(Ties))
    if isinstance(path, InMemory):
        in_memory: Mapping[str, Hits] = path.run
        return in_memory
    path = files.inside(files.existing(path), "run.trec", "results")
    return read_run(path, ties) if is_run_object(path) else RunFile(path, form_of(path), ties)


def check_run(run: Mapping[str, Hits]) -> None:
    """Read what nobody has read yet of a run that `open_run` opened, to find damaged lines.

    Raises:
        DataError: A line is damaged, or a document occurs twice for a query.
    """
    if isinstance(run, RunFile):
        run.check()


def columns_of(run: Mapping[str, Hits], query: str) -> Columns:
    """The hits of a query as columns: not necessarily by score, with a document perhaps twice; see `RunFile.columns`.

    Reading a run's columns takes half as long as reading its hits.
    """
    if isinstance(run, RunFile):
        return run.columns(query)
    hits = run[query]
    return Columns([document for document, _ in hits], [score for _, score in hits])


class RunFile(Mapping[str, Hits]):
    """Query id -> its hits, best first, read from a file at each access; see `open_run`."""

    def __init__(self, path: Path, form: RunForm, ties: Ties) -> None:
        self.path = path
        self.form = form
        self._ties = ties
        self._numbers: dict[str, int] = {}
        self._of, self._starts, self._sizes = array("i"), array("q"), array("q")
        self._stream = self._opened()
        weakref.finalize(self, self._stream.close)
        self._stamp = _stamp(self._stream)
        self._locate()
        self._seen = bytearray(len(self._numbers))

    def __len__(self) -> int:
        return len(self._numbers)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __contains__(self, query: object) -> bool:
        return query in self._numbers

    def __getitem__(self, query: str) -> Hits:
        return self._read(query, hits_in)

    def columns(self, query: str) -> Columns:
        """The hits of a query as columns; in the order of the lines, unless ties are as in the run.

        A document may occur twice: accessing the query's hits raises the error for it.
        """
        return self._read(query, columns_in)

    def check(self) -> None:
        """Read the queries that have not been read yet; see `check_run`."""
        for query, number in self._numbers.items():
            if not self._seen[number]:
                self[query]

    def _read(self, query: str, read: Callable[..., dict[str, _Content]]) -> _Content:
        number = self._numbers[query]
        try:
            found = read([(1, self._raw(number).decode())], self.path, self.form, self._ties)
        except (DataError, UnicodeDecodeError):
            self._complain()
            raise
        if list(found) != [query]:
            msg = f"lines of query '{query}' are separated differently. Separate all cells by tabs, or all by spaces."
            raise DataError(msg, file=self.path)
        self._seen[number] = True
        return found[query]

    def _opened(self) -> IO[bytes]:
        if files.is_plain(self.path):
            return self.path.open("rb")
        # Unnamed, so that nothing is left if the process is killed.
        unpacked = tempfile.TemporaryFile()  # noqa: SIM115 - it is open as long as the run is
        with files.open_bytes(self.path) as stream:
            shutil.copyfileobj(stream, unpacked, packing.CHUNK)
        unpacked.flush()
        return unpacked

    def _locate(self) -> None:
        end = 0
        for start, block in self._blocks():
            place = size = 0
            tabs = b"\t" in block
            while place < len(block):
                after = _after_stretch(block, place) if tabs else _after_lines(block, place, size)
                size = after - place
                first = block[place : block.index(b"\n", place)]
                if not first.isspace() and first:
                    self._add(self._query(first), start + place, after - place, end)
                    end = start + after
                place = after
        if len(self._starts) > len(self._numbers):
            self._sort()

    def _add(self, query: str, start: int, size: int, end: int) -> None:
        """Add a stretch; `end` is where the last one ends."""
        number = self._numbers.setdefault(query, len(self._numbers))
        if self._of and self._of[-1] == number and end == start:
            self._sizes[-1] += size
            return
        self._of.append(number)
        self._starts.append(start)
        self._sizes.append(size)

    def _sort(self) -> None:
        """Put the stretches of each query side by side, in the file's order."""
        import numpy

        order = numpy.argsort(numpy.frombuffer(self._of, numpy.intc), kind="stable")
        for name in ("_of", "_starts", "_sizes"):
            values = getattr(self, name)
            ordered = numpy.frombuffer(values, values.typecode)[order]
            setattr(self, name, array(values.typecode, ordered.tobytes()))

    def _blocks(self) -> Iterator[tuple[int, bytes]]:
        """Blocks of whole lines, each with its first byte's position in the file."""
        self._stream.seek(0)
        start, rest = 0, b""
        while block := self._stream.read(packing.CHUNK):
            if start == 0 and not rest and block.startswith(codecs.BOM_UTF8):
                start, block = len(codecs.BOM_UTF8), block[len(codecs.BOM_UTF8) :]
            whole, newline, after = block.rpartition(b"\n")
            if not newline:
                rest += block
                if len(rest) > _LONGEST_LINE:
                    msg = f"a line is longer than {_LONGEST_LINE >> 20} MiB. Is this file a run?"
                    raise DataError(msg, file=self.path)
                continue
            lines = rest + whole + newline
            yield start, lines
            start, rest = start + len(lines), after
        if rest:
            yield start, rest + b"\n"

    def _query(self, line: bytes) -> str:
        """The query of a line."""
        try:
            return self.form.row(line.decode().rstrip("\r"), self.path, 1, ranks=False)[0]
        except (DataError, UnicodeDecodeError):
            self._complain()
            raise

    def _raw(self, number: int) -> bytes:
        """The lines of a query."""
        if _stamp(self._stream) != self._stamp:
            msg = "the file changed while it was being read. Start again."
            raise DataError(msg, file=self.path)
        place = bisect_left(self._of, number)
        parts = []
        while place < len(self._of) and self._of[place] == number:
            self._stream.seek(self._starts[place])
            part = self._stream.read(self._sizes[place])
            parts.append(part if part.endswith(b"\n") else part + b"\n")
            place += 1
        return b"".join(parts)

    def _complain(self) -> None:
        """Raise the error for the first damaged line, with its number."""
        for line in files.filled_lines(self.path):
            self.form.row(line.text, self.path, line.number, ranks=self._ties == "run")


def _after_stretch(block: bytes, place: int) -> int:
    """Where the consecutive lines with the first cell of this line end."""
    found = _STRETCH.match(block, place)
    return found.end() if found else block.index(b"\n", place) + 1


def _after_lines(block: bytes, place: int, size: int) -> int:
    """As `_after_stretch`, of a block without tabs; faster if the lines are about as long as `size`.

    Lines are counted, not looked at: in the next so many bytes, where is the last line with this first cell, and are
    there as many of them as lines up to there?
    """
    after = block.index(b"\n", place) + 1
    prefix = block[place : block.find(b" ", place, after) + 1]
    if len(prefix) < 2 or prefix.startswith(b"\r"):
        return after
    step = max(size, _SHORTEST_STEP)
    while block.startswith(prefix, after):
        start, stop = after - 1, block.index(b"\n", min(after + step, len(block)) - 1) + 1
        last = block.rfind(b"\n" + prefix, start, stop - 1) + 1
        after = block.index(b"\n", last) + 1
        if block.count(b"\n" + prefix, start, after) < block.count(b"\n", start, after - 1):
            return _after_stretch(block, place)
        if after < stop:
            break
        step *= 2
    return after


def _stamp(stream: IO[bytes]) -> tuple[int, int]:
    status = os.fstat(stream.fileno())
    return status.st_size, status.st_mtime_ns
