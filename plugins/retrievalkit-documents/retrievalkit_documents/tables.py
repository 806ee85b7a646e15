"""Tables in a folder of documents (.csv, .tsv) that the core's strict reader refuses, read as text.

Spreadsheet programs write them in local encodings, with a first line `sep=;`, and with rows of different lengths. A
table without a column of texts is read too: each row becomes a text, `name: Zebra | price: 42`.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from retrievalkit.errors import DataError
from retrievalkit_documents.readers.plain import content, decoded
from retrievalkit_documents.text import Text, UnreadableError, form_of

Rows = TypeVar("Rows")
_SEPARATOR = re.compile(r"\A\ufeff?\"?sep=(.)\"?\n")
_SEPARATORS = ",;\t|"


def read_table(path: Path, load: Callable[[Path], Rows]) -> Rows:
    """Return the rows of a table by its columns, or else each row as a text.

    Args:
        path: The table.
        load: Reads the passages of a file of JSON lines.

    Raises:
        UnreadableError: It is not a table, or has only a header.
    """
    records = _records(path)
    texts: dict[str, str] = {}
    for record in records:
        text = " | ".join(f"{name}: {cell}" for name, cell in record.items() if cell)
        texts[hashlib.blake2b(text.encode(), digest_size=8).hexdigest()] = text
    with tempfile.TemporaryDirectory(prefix="rkit-") as folder:
        file = Path(folder, "table.jsonl")
        try:
            file.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="ascii")
            return load(file)
        except DataError:
            rows = ({"id": identifier, "text": text} for identifier, text in texts.items())
            file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="ascii")
            return load(file)


def _records(path: Path) -> list[dict[str, str]]:
    with path.open("rb") as stream:
        source = decoded(content(stream), Text())
    declared = _SEPARATOR.match(source)
    source = form_of(source[declared.end() :] if declared else source.lstrip("\ufeff"))
    first = next(filter(str.strip, source.split("\n")), "")
    gap = declared[1] if declared else max(_SEPARATORS, key=first.count)
    try:
        rows = [row for row in csv.reader(io.StringIO(source), delimiter=gap) if any(map(str.strip, row))]
    except (csv.Error, TypeError):
        rows = []
    if len(rows) < 2:
        msg = "not a table with a header and rows"
        raise UnreadableError(msg)
    names = [name.strip() or f"column {number}" for number, name in enumerate(rows[0], 1)]
    return [_record(names, row, gap) for row in rows[1:]]


def _record(names: list[str], row: list[str], gap: str) -> dict[str, str]:
    """Return the cells by name; the last cell includes the cells beyond the header, which it should have quoted."""
    cells = [*row[: len(names) - 1], gap.join(row[len(names) - 1 :])] if len(row) > len(names) else row
    return {name: " ".join(cell.split()) for name, cell in zip(names, cells, strict=False)}
