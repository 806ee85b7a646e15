"""Passages in tables and objects with custom field names: `--text-field`, `--title-field` ...

The id of a row without an id is a hash of its title and text, so it does not depend on other rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from retrievalkit.data import files
from retrievalkit.data.corpus import Corpus, Passage, open_corpus, passage_with, passages_of
from retrievalkit.data.fields import LeftOut
from retrievalkit.data.forms import CORPUS, corpus_table, roles_of
from retrievalkit.data.json_text import field_names
from retrievalkit.data.queries import QuestionNamer
from retrievalkit.data.records import Damaged, Record, Table, first_row, table_of
from retrievalkit.data.sources import open_source
from retrievalkit.data.sources.local import Local, Parquet
from retrievalkit.errors import nearest


@dataclass(frozen=True)
class Columns:
    """The field names of a passage; "" = a usual name, if present."""

    text: str = ""
    title: str = ""
    id: str = ""


_USUAL = Columns()


def open_own(source: str | Path, columns: Columns | None, damaged: Damaged | None = None) -> Corpus:
    """Open a corpus whose fields the user named (None = none), or a custom table.

    Args:
        source: A file or another source.
        columns: The fields.
        damaged: Receives the error of each damaged record, which is left out; None = it is raised.
    """
    opened = open_source(source)
    if columns is None and not isinstance(opened, Parquet):
        if not isinstance(opened, Local) or opened.is_folder or files.first_character(opened.path) in "{[":
            return open_corpus(source)
        if first_row(opened.path)[1] == "\t" and not _lacks_ids(opened.path):
            return open_corpus(source)

    def passages() -> Iterator[tuple[Record, Passage]]:
        # Any table with a header.
        form = CORPUS._replace(
            table=lambda row: Table(tuple(map(str.strip, row)), header=True, quoted=True), damaged=damaged
        )
        rows = opened.corpus_records(form) if isinstance(opened, Local) else opened.records("passages")
        namer = QuestionNamer()
        return passages_of(
            str(source), rows, lambda record, left_out: _passage(record, left_out, columns or _USUAL, namer), damaged
        )

    return Corpus(str(source), passages, opened.corpus_fingerprint, size=opened.size)


def _lacks_ids(path: Path) -> bool:
    """True if a table has a header that names no ids."""
    table = table_of(path, corpus_table)
    return table is not None and table.header and not roles_of(table.names)[0]


def _passage(record: Record, left_out: LeftOut, columns: Columns, namer: QuestionNamer) -> Passage:
    roles = dict(zip(("id", "title", "text"), roles_of(tuple(record.fields)), strict=True))
    for part in roles:
        name = getattr(columns, part)
        if name and name not in record.fields:
            close = nearest(name, record.fields)
            hint = f"; did you mean '{close}'?" if close else "."
            msg = f"there is no field '{name}'{hint} The fields are {field_names(record.fields)}. Name one of them."
            raise record.error(msg)
        roles[part] = name or roles[part]
    if not roles["text"]:
        names = field_names(record.fields)
        msg = f"no field has a usual name for the text; the fields are {names}. Set text_field to the name of a field."
        raise record.error(msg)
    named = None if columns == _USUAL else (roles["id"], roles["title"], roles["text"])
    return passage_with(record, left_out, named, namer.name)
