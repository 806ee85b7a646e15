"""Records: the fields of a line, a table row or an array element, with their location in the file.

The location lets every error name file and line. The first character of a file says whether it holds JSON lines, a JSON
array or a table; all three are read as a stream.
"""

from __future__ import annotations

import codecs
import csv
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, NamedTuple

from retrievalkit.data import files
from retrievalkit.data.files import Line, filled_lines
from retrievalkit.errors import DataError

_LONGEST_ELEMENT = 1 << 28
_SHOWN = 60
_LONGEST_CELL = 2**31 - 1  # the largest limit that the csv module accepts on every platform


class Record(NamedTuple):
    """The fields of a record, and its location.

    Attributes:
        file: The file, or the address of another source.
        line: Counted from 1.
        fields: Name -> value.
        start: In a plain file, the byte where the record starts.
        end: The byte after the record.
        element: In a JSON array, the element's number, counted from 1; otherwise 0.
    """

    file: str
    line: int
    fields: dict[str, Any]
    start: int = 0
    end: int = 0
    element: int = 0

    def error(self, problem: str) -> DataError:
        """An error in this record."""
        place = f"element {self.element}: " if self.element else ""
        return DataError(place + problem, file=self.file, line=self.line)

    def unknown_form(self, kind: str, forms: tuple[str, ...]) -> DataError:
        """The error for fields that fit no known form."""
        names = ", ".join(self.fields) or "none"
        return self.error(f"no form of a {kind} has these fields: {names}. Known forms: {'; '.join(forms)}.")

    def duplicated(self, identifier: str, first: Record) -> DataError:
        """The error for an id that an earlier record has."""
        place = f"element {first.element}" if first.element else f"line {first.line}"
        where = place if first.file == self.file else f"{first.file}, {place}"
        return self.error(f"the id '{identifier}' is already used at {where}. Every id must be unique.")

    def identifier(self, name: str) -> str:
        """The id in a field: text without tabs and line breaks, or a whole number, which becomes text."""
        return self._identifier(self.fields[name], name)

    def identifiers(self, name: str) -> tuple[str, ...]:
        """The list of ids in a field; () if it is absent or null."""
        return tuple(self._identifier(item, name) for item in self.items(name))

    def text(self, name: str) -> str:
        """The text in a field."""
        return self._text(self.fields[name], name)

    def texts(self, name: str) -> tuple[str, ...]:
        """The list of texts in a field; () if it is absent or null. A single text is a list of one."""
        if isinstance(self.fields.get(name), str):
            return (self.text(name),)
        return tuple(self._text(item, name) for item in self.items(name))

    def items(self, name: str) -> list[Any]:
        """The list in a field; [] if it is absent or null."""
        value = self.fields.get(name)
        if value is None:
            return []
        if not isinstance(value, list | tuple):
            msg = f"'{name}' is {shown(value)}, but should be a list."
            raise self.error(msg)
        return list(value)

    def _identifier(self, value: object, name: str) -> str:
        if isinstance(value, int) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str) or not value:
            msg = f"'{name}' is {shown(value)}; an id is text or a whole number."
            raise self.error(msg)
        if "\n" in value or "\t" in value or "\r" in value:
            msg = f"'{name}' is {shown(value)}; an id may not contain tabs or line breaks."
            raise self.error(msg)
        return self._text(value, name)

    def _text(self, value: object, name: str) -> str:
        if not isinstance(value, str):
            msg = f"'{name}' is {shown(value)}, but should be text."
            raise self.error(msg)
        try:
            value.encode()
        except UnicodeEncodeError:
            # JSON can contain half a surrogate pair, which neither tokenisers nor files accept.
            return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value


class Table(NamedTuple):
    """How the rows of a table are read.

    Attributes:
        names: The names of the columns.
        header: Whether the first row is a header.
        quoted: Whether cells are quoted as in csv.
        bare: A column whose outer quotation marks are stripped, as in DPR's reader.
    """

    names: tuple[str, ...]
    header: bool = False
    quoted: bool = False
    bare: str = ""

    def fields(self, row: list[str]) -> dict[str, Any]:
        """Name -> cell."""
        cells = dict(zip(self.names, row, strict=True))
        if self.bare:
            cells[self.bare] = cells[self.bare].strip('"')
        return cells


# The cells of a table's first row -> how the table is read; None if the form is unknown.
TableForm = Callable[[list[str]], Table | None]


def read_records(path: str | Path, form: TableForm, kinds: str, forms: tuple[str, ...] = ()) -> Iterator[Record]:
    """The records of a file.

    Args:
        path: The file.
        form: How the file is read if it is a table.
        kinds: What the records are, for error messages: "passages".
        forms: The known forms, for error messages.

    Raises:
        DataError: The file is empty, damaged or of an unknown form.
    """
    path = Path(path)
    start = files.first_character(path)
    if not start:
        msg = f"the file is empty, but {kinds} were expected."
        raise DataError(msg, file=path)
    if start == "{":
        yield from json_lines(path)
    elif start == "[":
        yield from _json_array(path)
    else:
        yield from _table(path, form, kinds, forms)


def table_of(path: str | Path, form: TableForm) -> Table | None:
    """How a file is read if it is a table; None for JSON, and for a table that `form` does not know."""
    if files.first_character(path) in ("{", "["):
        return None
    first = next(filled_lines(path), None)
    return first and form(next(csv.reader([first.text], delimiter="\t")))


def parse_record(raw: bytes, file: str, table: Table | None) -> Record:
    """A record from its bytes, at the position that `read_records` reported; `table` is None for JSON lines."""
    text = raw.decode().replace("\r\n", "\n")
    if table is None:
        return Record(file, 0, json.loads(text))
    if table.quoted:
        row = next(csv.reader(io.StringIO(text, newline=""), delimiter="\t"))
    else:
        row = text.rstrip("\n").split("\t")
    return Record(file, 0, table.fields(row))


def json_lines(path: Path) -> Iterator[Record]:
    """The objects of a JSON lines file; empty lines are skipped."""
    file = str(path)
    for line, start, end, text in filled_lines(path):
        try:
            fields = json.loads(text)
        except json.JSONDecodeError as error:
            msg = f"broken JSON: {error.msg} at column {error.colno}. Each line must be one complete JSON object."
            raise DataError(msg, file=path, line=line) from None
        if not isinstance(fields, dict):
            msg = f"the line is {shown(fields)}, but should be a JSON object ({{...}})."
            raise DataError(msg, file=path, line=line)
        yield Record(file, line, fields, start, end)


def shown(value: object) -> str:
    """A value for an error message, shortened."""
    text = repr(value) if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def _json_array(path: Path) -> Iterator[Record]:
    """The elements of a JSON array, with only a few in memory at a time."""
    file = str(path)
    with files.open_bytes(path) as stream:
        window = _Window(path, stream)
        window.skip()
        number = 0
        while window.peek() != "]":
            number += 1
            record = Record(file, window.line, {}, element=number)
            fields = window.take(number)
            if not isinstance(fields, dict):
                msg = f"it is {shown(fields)}, but should be a JSON object ({{...}})."
                raise record.error(msg)
            yield record._replace(fields=fields)
            if window.peek() == ",":
                window.skip()
            elif window.peek() != "]":
                msg = "broken JSON: neither ',' nor ']' follows. Is the file truncated?"
                raise record.error(msg)


class _Window:
    """The part of a text file that is being parsed: it grows if an element needs more, and drops text already read."""

    def __init__(self, path: Path, stream: IO[bytes]) -> None:
        self.path = path
        self.stream = stream
        self.decoder = codecs.getincrementaldecoder("utf-8-sig")()
        self.scan = json.JSONDecoder().raw_decode
        self.text = ""
        self.at = 0
        self.line = 1
        self.ended = False

    def grow(self, size: int = files.CHUNK) -> None:
        raw = self.stream.read(size)
        self.ended = not raw
        try:
            more = self.decoder.decode(raw, final=not raw)
        except UnicodeDecodeError as error:
            before = self.text.count("\n", self.at) + error.object.count(b"\n", 0, error.start)
            raise files.not_utf8(self.path, self.line + before, error) from None
        self.text, self.at = self.text[self.at :] + more, 0

    def peek(self) -> str:
        """The next character that is not white space; "" at the end."""
        while True:
            while self.at < len(self.text) and self.text[self.at] in " \t\r\n":
                self.move(self.at + 1)
            if self.at < len(self.text):
                return self.text[self.at]
            if self.ended:
                return ""
            self.grow()

    def skip(self) -> None:
        """Skip the next character that is not white space."""
        if self.peek():
            self.move(self.at + 1)

    def move(self, to: int) -> None:
        self.line += self.text.count("\n", self.at, to)
        self.at = to

    def take(self, number: int) -> Any:
        """Parse the element that starts here."""
        while True:
            try:
                value, end = self.scan(self.text, self.at)
            except json.JSONDecodeError as error:
                size = len(self.text) - self.at
                if not self.ended and size < _LONGEST_ELEMENT and _cut_off(error, self.text):
                    self.grow(max(files.CHUNK, size))
                    continue
                line = self.line + self.text.count("\n", self.at, error.pos)
                msg = f"element {number}: broken JSON: {error.msg}. Is the file complete?"
                raise DataError(msg, file=self.path, line=line) from None
            self.move(end)
            return value


def _cut_off(error: json.JSONDecodeError, text: str) -> bool:
    """Whether an error may be due to the text ending too early."""
    return error.msg.startswith(("Unterminated string", "Invalid \\u")) or error.pos > len(text) - 16


def _table(path: Path, form: TableForm, kinds: str, forms: tuple[str, ...]) -> Iterator[Record]:
    table = table_of(path, form)
    if table is None:
        first = next(filled_lines(path))
        columns = len(first.text.split("\t"))
        known = f". Known forms: {'; '.join(forms)}." if forms else "."
        msg = f"no {kinds} come in {columns} tab-separated column{'s' * (columns != 1)}: {shown(first.text)}{known}"
        raise DataError(msg, file=path, line=first.number)
    rows = _quoted_rows(path) if table.quoted else _plain_rows(path)
    if table.header:
        next(rows)
    file, width = str(path), len(table.names)
    for line, start, end, row in rows:
        if len(row) != width:
            names = ", ".join(table.names)
            msg = f"the row has {len(row)} column{'s' * (len(row) != 1)}, but the table has {width}: {names}."
            raise DataError(msg, file=path, line=line)
        yield Record(file, line, table.fields(row), start, end)


def _plain_rows(path: Path) -> Iterator[tuple[int, int, int, list[str]]]:
    for line, start, end, text in filled_lines(path):
        yield line, start, end, text.split("\t")


def _quoted_rows(path: Path) -> Iterator[tuple[int, int, int, list[str]]]:
    """Rows of a table in which quoted cells may contain tabs and line breaks."""
    # The csv module's default limit is 128 KiB per cell; it applies to the whole process.
    csv.field_size_limit(max(csv.field_size_limit(), _LONGEST_CELL))
    current = Line(0, 0, 0, "")

    def texts() -> Iterator[str]:
        nonlocal current
        for current in files.read_lines(path):
            yield current.text + "\n"

    first, start = 1, 0
    try:
        for row in csv.reader(texts(), delimiter="\t"):
            if row:
                yield first, start, current.end, row
            first, start = current.number + 1, current.end
    except csv.Error as error:
        msg = f"the row cannot be read: {error}."
        raise DataError(msg, file=path, line=first) from None
