"""Tables in a folder of documents (.csv, .tsv, .jsonl): a passage per row.

Tables that the core's strict reader refuses are read as text: spreadsheet programs write them in local encodings, with
a first line `sep=;`, decimal commas, a title above the header, and rows of different lengths. A table without a column
of texts is read too: each row becomes a text, `name: Zebra | price: 1,50`, and its short cells become fields.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path

from retrievalkit.contracts.commands import counted
from retrievalkit.data.corpus import Columns, Passage, open_own
from retrievalkit.data.records import first_row
from retrievalkit.errors import DataError
from retrievalkit_documents.readers.plain import content, decoded
from retrievalkit_documents.text import MOST_CHARACTERS, Text, UnreadableError, form_of

TABLES = (".csv", ".tsv", ".jsonl")
_SEPARATOR = re.compile(r"\A\ufeff?\"?sep=(.)\"?\n")
_SEPARATORS = "\t;|,"  # a comma may be part of numbers
_SAMPLE = 100  # rows
_NUMBER = re.compile(r"[-+]?[\d.,' \u00a0]*\d(?:[.,]\d+)?(?:[eE][-+]?\d+)?\s?[%\u20ac$\u00a3]?|\d+[-./]\d+[-./]\d+.*")
_YEAR = re.compile(r"(?:19|20)\d\d")
_DECIMAL_COMMA = re.compile(r"[-+]?(?:\d{1,3}(?:\.\d{3})+|\d+)(?:,\d+)?")
_LONGEST_NAME, _LONGEST_FIELD = 80, 200  # characters
_MOST_ROWS = 1 << 20


def read_table(path: Path, columns: Columns) -> tuple[list[Passage], str]:
    """Return the rows of a table by the user's fields, or by the usual fields, or else each row as a text.

    Args:
        path: The table.
        columns: The user's fields.

    Returns:
        The rows, and a sentence about damaged rows, which are left out.

    Raises:
        UnreadableError: It is not a table, has only a header, or is too large.
        DataError: No row of JSON lines can be read.
    """
    is_json = path.suffix.lower() == ".jsonl"
    for named in dict.fromkeys((columns, Columns())):
        with suppress(DataError):
            rows, note = _loaded(path, named)
            return rows if is_json or first_row(path)[1] == "," else _with_decimal_points(rows), note
    if is_json:
        return _loaded(path, columns)
    gap, records = _records(path)
    rows, note = _by_name(records)
    return rows if gap == "," else _with_decimal_points(rows), note


def _by_name(rows: list[tuple[str, dict[str, str]]]) -> tuple[list[Passage], str]:
    """Return rows by their usual fields, or else each row as a text."""
    with tempfile.TemporaryDirectory(prefix="rkit-") as folder:
        file = Path(folder, "table.jsonl")
        if all(fields for _, fields in rows):
            with suppress(DataError):
                file.write_text("".join(json.dumps(fields) + "\n" for _, fields in rows), encoding="ascii")
                return _loaded(file, Columns())
        texts = {hashlib.blake2b(text.encode(), digest_size=8).hexdigest(): (text, row) for text, row in rows}
        written = (
            {
                "id": name,
                "text": text,
                "metadata": {name: cell for name, cell in row.items() if len(cell) <= _LONGEST_FIELD},
            }
            for name, (text, row) in texts.items()
        )
        file.write_text("".join(json.dumps(row) + "\n" for row in written), encoding="ascii")
        return _loaded(file, Columns())


def reason_of(error: Exception, path: Path) -> str:
    """Return the reason why a row or file is not read; without its name, so that files are grouped by reason."""
    line = getattr(error, "line", None)
    text = str(error).removeprefix(f"{path}:").removeprefix(f"{line}:").strip().replace(f"'{path}'", "the file")
    return text if line is None else f"line {line}: {text}"


def _loaded(path: Path, columns: Columns) -> tuple[list[Passage], str]:
    """Return the rows of a table, and a sentence about damaged rows; raise the error if all are."""
    lines, first = set[int | None](), list[DataError]()

    def leave_out(error: DataError) -> None:
        lines.add(error.line)
        first.extend([error] * (not first))

    table = open_own(path, columns, leave_out)
    table.counts_empty = False
    rows, size = list[Passage](), 0
    try:
        for row in table:
            rows.append(row)
            size += len(row.text)
            if len(rows) > _MOST_ROWS or size > MOST_CHARACTERS:
                msg = f"of more than {_MOST_ROWS:,} rows or {MOST_CHARACTERS >> 20} MiB of text, for rkit index"
                raise UnreadableError(msg)
    except DataError as error:
        raise first[0] if first and error.line is None else error from None
    return rows, f"{counted(len(lines), 'rows')} left out, the first in {reason_of(first[0], path)}" if first else ""


def _records(path: Path) -> tuple[str, list[tuple[str, dict[str, str]]]]:
    """Return the separator, and the text and the fields of each row."""
    with path.open("rb") as stream:
        source = decoded(content(stream), Text())
    declared = _SEPARATOR.match(source)
    source = form_of(source[declared.end() :] if declared else source.lstrip("\ufeff"))
    gap = declared[1] if declared else max(_SEPARATORS, key=lambda gap: _fit(source, gap))
    rows = [*islice(_rows(source, gap), _MOST_ROWS + 1)]
    if len(rows) > _MOST_ROWS:
        msg = f"of more than {_MOST_ROWS:,} rows, for rkit index"
        raise UnreadableError(msg)
    start = next((number for number, row in enumerate(rows) if sum(map(bool, row)) > 1), 0)  # below a title
    if len(rows) < start + 2:
        msg = "not a table with a header and rows"
        raise UnreadableError(msg)
    names = _names(rows[start])
    records: list[tuple[str, dict[str, str]]] = [(" ".join(row).strip(), {}) for row in rows[:start]]
    for row in rows[start + bool(names) :]:
        if names:
            fields = dict(zip(names, _fitted(row, len(names), gap), strict=False))
            records.append((" | ".join(f"{name}: {cell}" for name, cell in fields.items() if cell), fields))
        else:
            records.append((" | ".join(filter(None, row)), {}))
    return gap, records


def _rows(source: str, gap: str) -> Iterator[list[str]]:
    """Yield the cells of rows that are not empty; none if it is not a table."""
    with suppress(csv.Error, TypeError):
        for row in csv.reader(io.StringIO(source), delimiter=gap, skipinitialspace=True):
            if any(cells := [" ".join(cell.split()) for cell in row]):
                yield cells


def _fit(source: str, gap: str) -> float:
    """Return how well a separator divides the first rows: the share of rows of the same length."""
    lengths = [len(row) for row in islice(_rows(source, gap), _SAMPLE)]
    length, rows = Counter(lengths).most_common(1)[0] if lengths else (0, 0)
    return rows / len(lengths) if length > 1 else 0


def _names(row: list[str]) -> list[str]:
    """Return the names in a header; [] if the row has numbers other than years, or long texts."""
    if any(len(cell) > _LONGEST_NAME or (_NUMBER.fullmatch(cell) and not _YEAR.fullmatch(cell)) for cell in row):
        return []
    names: list[str] = []
    for number, cell in enumerate(row, 1):
        name = cell or f"column {number}"
        names.append(f"{name} ({number})" if name in names else name)
    return names


def _fitted(row: list[str], columns: int, gap: str) -> list[str]:
    """Return the cells of a row; the last includes the cells beyond the header, which it should have quoted."""
    return [*row[: columns - 1], gap.join(row[columns - 1 :])] if len(row) > columns else row


def _with_decimal_points(rows: list[Passage]) -> list[Passage]:
    """Return rows with points in the fields that are numbers with decimal commas; their texts stay as they are."""
    names = {name for row in rows for name in row.fields}

    def is_decimal(name: str) -> bool:
        cells = [value for row in rows if (value := row.fields.get(name))]
        texts = [cell for cell in cells if isinstance(cell, str)]
        numbers = len(texts) == len(cells) and all(map(_DECIMAL_COMMA.fullmatch, texts))
        return numbers and any("," in cell for cell in texts)

    decimal = {name for name in names if is_decimal(name)}
    if not decimal:
        return rows

    def with_points(row: Passage) -> Passage:
        numbers = {name: str(row.fields[name]) for name in decimal & row.fields.keys()}
        points = {name: number.replace(".", "").replace(",", ".") for name, number in numbers.items()}
        return replace(row, fields={**row.fields, **points})

    return [*map(with_points, rows)]
