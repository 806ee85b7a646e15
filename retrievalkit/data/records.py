"""Records: the fields of a line, a table row or an array element, with their location in the file.

The location lets every error name file and line. The first character of a file distinguishes JSON lines, a JSON array
and a table; all three are read as a stream.
"""

from __future__ import annotations

import csv
import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from retrievalkit.data import files, json_text
from retrievalkit.data.files import Line, filled_lines
from retrievalkit.data.json_text import field_names, shown
from retrievalkit.errors import DataError

HALF_CHARACTER = re.compile("[\ud800-\udfff]")
_CSV = re.compile(r"\.csv(?:\.gz|\.zst)?\Z", re.IGNORECASE)
_NOT_IN_IDS = re.compile("[\0-\x1f\x7f-\x9f\u2028\u2029\ufeff\ud800-\udfff]")


class Record(NamedTuple):
    """The fields and the location of a record.

    Attributes:
        file: The file, or the address of another source.
        line: The line number, from 1.
        fields: Name -> value.
        start: In a plain file, the byte offset of the record.
        end: The byte offset after the record.
        element: In a JSON array, the number of the element, from 1; otherwise 0.
    """

    file: str
    line: int
    fields: dict[str, Any]
    start: int = 0
    end: int = 0
    element: int = 0

    def error(self, problem: str) -> DataError:
        """Return an error at this record."""
        place = f"element {self.element}: " if self.element else ""
        return DataError(place + problem, file=self.file, line=self.line)

    def unknown_form(self, kind: str, forms: tuple[str, ...]) -> DataError:
        """Return the error for fields that match no known format."""
        names = field_names(self.fields)
        return self.error(f"no known format of a {kind} has these fields: {names}. Known formats: {'; '.join(forms)}.")

    def duplicated(self, identifier: str, first: Record) -> DataError:
        """Return the error for an id that an earlier record already uses."""
        unit = getattr(first.file, "_unit", "line")
        place = f"element {first.element}" if first.element else f"{unit} {first.line}"
        where = place if first.file == self.file else f"{first.file}, {place}"
        return self.error(f"the id '{identifier}' is already used at {where}. Every id must be unique.")

    def identifier(self, name: str) -> str:
        """Return the id in a field: text without tabs and line breaks, or an integer, converted to text."""
        return self._identifier(self.fields[name], name)

    def identifiers(self, name: str) -> tuple[str, ...]:
        """Return the list of ids in a field; () if it is absent or null."""
        return tuple(self._identifier(item, name) for item in self.items(name))

    def text(self, name: str) -> str:
        """Return the text in a field."""
        return self._text(self.fields[name], name)

    def texts(self, name: str) -> tuple[str, ...]:
        """Return the list of texts in a field; () if it is absent or null. A single text is a list of one."""
        if isinstance(self.fields.get(name), str):
            return (self.text(name),)
        return tuple(self._text(item, name) for item in self.items(name))

    def items(self, name: str) -> list[Any]:
        """Return the list in a field; [] if it is absent or null."""
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
        if problem := id_problem(value):
            msg = f"'{name}' is {shown(value)}; {problem}"
            raise self.error(msg)
        return value

    def _text(self, value: object, name: str) -> str:
        if not isinstance(value, str):
            msg = f"'{name}' is {shown(value)}, but should be text."
            raise self.error(msg)
        if not value.isascii() and (half := HALF_CHARACTER.search(value)):
            # Neither tokenizers nor UTF-8 files accept it.
            msg = f"character {half.start() + 1} of '{name}' is half a surrogate pair, {shown(half[0])}. Replace it."
            raise self.error(msg)
        return value


def id_problem(identifier: str) -> str | None:
    """Return the reason why a text is not a valid id, as a sentence; None if it is valid.

    Ids are written to run files, id lists and messages, each in a line or cell.
    """
    if identifier.isprintable() and identifier.strip() == identifier != "":
        return None
    if not identifier:
        return "an id may not be empty."
    if _NOT_IN_IDS.search(identifier):
        return "an id may not contain tabs, line breaks or other characters that are not printed."
    if identifier.strip() != identifier:
        return "an id may not begin or end with white space."
    return None


class Table(NamedTuple):
    """The layout of a table.

    Attributes:
        names: The names of the columns.
        header: True if the first row is a header.
        quoted: True if cells may be quoted, as in CSV.
        bare: A column whose outer quotation marks are stripped, as in DPR's reader.
        gap: The cell separator.
    """

    names: tuple[str, ...]
    header: bool = False
    quoted: bool = False
    bare: str = ""
    gap: str = "\t"

    def fields(self, row: list[str]) -> dict[str, Any]:
        """Column name -> cell."""
        cells = dict(zip(self.names, row, strict=True))
        if self.bare:
            cells[self.bare] = cells[self.bare].strip('"')
        return cells


# The cells of a table's first row -> the layout of the table; None if it is unknown.
TableForm = Callable[[list[str]], Table | None]
Damaged = Callable[[DataError], None]


def read_records(
    path: str | Path, form: TableForm, kinds: str, forms: tuple[str, ...] = (), damaged: Damaged | None = None
) -> Iterator[Record]:
    """Read the records of a file.

    Args:
        path: The file.
        form: Determines the layout of a table.
        kinds: The kind of records, for error messages: "passages".
        forms: The known formats, for error messages.
        damaged: Receives the error of each damaged line or row, which is left out; None = it is raised.
    """
    path = files.existing(path)
    start = files.first_character(path)
    if not start:
        msg = f"the file is empty, but {kinds} were expected."
        raise DataError(msg, file=path)
    file = str(path)
    if start == "{":
        yield from json_lines(path, damaged)
    elif start == "[":
        for line, number, fields in json_text.members(path):
            record = Record(file, line, {}, element=int(number))
            if not isinstance(fields, dict):
                msg = f"it is {shown(fields)}, but should be a JSON object ({{...}})."
                raise record.error(msg)
            yield record._replace(fields=fields)
    else:
        yield from _table(path, form, kinds, forms, damaged)


def table_of(path: str | Path, form: TableForm) -> Table | None:
    """Return the layout of a table file; None for JSON, and for a table that `form` does not recognise."""
    if files.first_character(path) in ("{", "["):
        return None
    cells, gap = first_row(path)
    table = form(cells) if cells else None
    if gap == "\t":
        return table
    return table._replace(quoted=True, gap=gap) if table and table.header else None


def first_row(path: str | Path) -> tuple[list[str], str]:
    """Return the cells of a table's first row ([] for an empty file), and the cell separator.

    The separator is a tab; in a .csv file whose first row, the header, has no tab, it is a comma or semicolon.
    """
    first = next(filled_lines(path), None)
    if first is None:
        return [], "\t"
    gap = "\t"
    if "\t" not in first.text and _CSV.search(str(path)):
        gap = max(",;", key=first.text.count)
    with _csv_errors(path, lambda: first.number):
        return next(_cells([first.text], gap)), gap


def parse_record(raw: bytes, file: str, table: Table | None) -> Record:
    """Parse a record from its bytes, located by `read_records`; `table` is None for JSON lines."""
    lines = [line.rstrip("\r") for line in raw.decode().rstrip("\r\n").split("\n")]
    if table is None:
        return Record(file, 0, json_text.parsed(lines[0]))
    row = next(_cells((line + "\n" for line in lines), table.gap)) if table.quoted else lines[0].split("\t")
    return Record(file, 0, table.fields(row))


def json_lines(path: Path, damaged: Damaged | None = None) -> Iterator[Record]:
    """Read the objects of a JSON lines file; empty lines are skipped."""
    file = str(path)
    for line, start, end, text in filled_lines(path):
        fields, problem = None, ""
        try:
            fields = json_text.parsed(text)
        except ValueError as error:
            problem = f"{error} Each line must be one complete JSON object."
        if isinstance(fields, dict):
            yield Record(file, line, fields, start, end)
        else:
            problem = problem or f"the line is {shown(fields)}, but should be a JSON object ({{...}})."
            leave_out(DataError(problem, file=path, line=line), damaged)


def leave_out(error: DataError, damaged: Damaged | None) -> None:
    """Report a damaged record, or raise its error if nobody counts them."""
    if damaged is None:
        raise error
    damaged(error)


def _table(
    path: Path, form: TableForm, kinds: str, forms: tuple[str, ...], damaged: Damaged | None
) -> Iterator[Record]:
    table = table_of(path, form)
    if table is None:
        first = next(filled_lines(path))
        cells, gap = first_row(path)
        columns, by = len(cells), {"\t": "tab", ",": "comma", ";": "semicolon"}[gap]
        known = f". Known formats: {'; '.join(forms)}." if forms else "."
        cause = f"no {kinds} have {columns} {by}-separated column{'s' * (columns != 1)}"
        msg = f"{cause}: {shown(first.text)}{known}"
        raise DataError(msg, file=path, line=first.number)
    if repeated := next((name for name in table.names if name and table.names.count(name) > 1), None):
        msg = f"the header names the column {shown(repeated)} twice. Rename one."
        raise DataError(msg, file=path, line=1)
    plain = ((line, start, end, text.split("\t")) for line, start, end, text in filled_lines(path))
    rows = _quoted_rows(path, table.gap) if table.quoted else plain
    if table.header:
        next(rows)
    file, width = str(path), len(table.names)
    for line, start, end, row in rows:
        if len(row) != width:
            names = ", ".join(table.names)
            msg = f"the row has {len(row)} column{'s' * (len(row) != 1)}, but the table has {width}: {names}."
            leave_out(DataError(msg, file=path, line=line), damaged)
        else:
            yield Record(file, line, table.fields(row), start, end)


def _quoted_rows(path: Path, gap: str) -> Iterator[tuple[int, int, int, list[str]]]:
    """Read the rows of a table whose quoted cells may contain tabs and line breaks."""
    before = current = Line(0, 0, 0, "")
    start, ended = -1, False

    def texts() -> Iterator[str]:
        nonlocal current, start, ended
        for current in files.read_lines(path):
            start = current.start if start < 0 else start
            if current.end - start > files.LONGEST_LINE:
                raise files.too_long(path, before.number + 1)
            yield current.text + "\n"
        ended = True

    with _csv_errors(path, lambda: before.number + 1):
        for row in _cells(texts(), gap):
            if ended:
                msg = "the quotation mark that opens in this row is never closed. Close or remove it."
                raise DataError(msg, file=path, line=before.number + 1)
            if row:
                yield before.number + 1, start, current.end, row
            before, start = current, current.end


def _cells(lines: Iterable[str], gap: str) -> Iterator[list[str]]:
    """Split table rows into cells, which may be quoted."""
    # The csv module limits cells to 128 KiB by default, for the whole process.
    csv.field_size_limit(max(csv.field_size_limit(), files.LONGEST_LINE))
    return csv.reader(lines, delimiter=gap)


@contextmanager
def _csv_errors(path: str | Path, line: Callable[[], int]) -> Iterator[None]:
    """Convert errors of the csv module to a DataError."""
    try:
        yield
    except csv.Error as error:
        reason = str(error)
        if reason.startswith("new-line"):
            reason = "a carriage return (CR) is in it. Save the file with the line ends LF or CRLF"
        msg = f"the row cannot be read: {reason}."
        raise DataError(msg, file=path, line=line()) from None


def hashed_id(text: str) -> str:
    """Return an id for a text that has none: a hash, the same wherever the text occurs."""
    return hashlib.blake2b(text.encode(), digest_size=8).hexdigest()


class QuestionNamer:
    """Generator of ids for texts without ids: a hash, so a question has the same id in all DPR files.

    A text repeated in a file gets the suffix "-2", "-3" ..., because DPR's figures count every occurrence.
    """

    def __init__(self) -> None:
        self._seen: dict[str, int] = {}

    def name(self, text: str) -> str:
        """Return the id of the next occurrence of a text."""
        count = self._seen[text] = self._seen.get(text, 0) + 1
        return hashed_id(text) if count == 1 else f"{hashed_id(text)}-{count}"
