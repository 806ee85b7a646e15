"""Passages in tables and objects of any form, whose fields the user names: `--text-field`, `--title-field` ...

A row without an id gets one from its title and text, so that it stays when other rows come and go.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from retrievalkit.data import files
from retrievalkit.data.corpus import Corpus, Passage, open_corpus, passage_of
from retrievalkit.data.forms import CORPUS, PASSAGE_IDS
from retrievalkit.data.json_text import field_names
from retrievalkit.data.records import Record, Table, first_row
from retrievalkit.data.sources import Source, open_source
from retrievalkit.data.sources.local import Local
from retrievalkit.data.sources.parquet import Parquet
from retrievalkit.errors import nearest

_TEXTS = ("text", "contents", "content", "body", "passage")


@dataclass(frozen=True)
class Columns:
    """The names of the fields of a passage; "" = a usual name, if there is one.

    Attributes:
        text: The text; its usual names are text, contents, content, body and passage.
        title: The title.
        id: The id.
    """

    text: str = ""
    title: str = ""
    id: str = ""


def open_own(source: str | Path, columns: Columns | None) -> Corpus:
    """Open a corpus in which the user has named fields (None = none), or a table of the user's own."""
    opened = open_source(source)
    if columns is None and not _is_own(opened):
        return open_corpus(source)

    def passages() -> Iterator[tuple[Record, Passage]]:
        reader = _Reader(columns or Columns())
        # Any table with a header.
        named = CORPUS._replace(table=lambda row: Table(tuple(map(str.strip, row)), header=True, quoted=True))
        rows = opened.corpus_records(named) if isinstance(opened, Local) else opened.records("passages")
        return ((record, reader.passage(record)) for record in rows)

    return Corpus(str(source), passages, opened.corpus_fingerprint, size=opened.size)


def _is_own(opened: Source) -> bool:
    """Whether it is a kind of table of which no known form is: one of commas, or Parquet."""
    if isinstance(opened, Local):
        return (
            not opened.is_folder
            and files.first_character(opened.path) not in "{["
            and first_row(opened.path)[1] != "\t"
        )
    return isinstance(opened, Parquet)


class _Reader:
    """Makes passages of records."""

    def __init__(self, columns: Columns) -> None:
        self._columns = columns
        self._seen: dict[str, int] = {}

    def passage(self, record: Record) -> Passage:
        """The passage in a record."""
        known = {name.lower(): name for name in record.fields}
        if self._columns == Columns() and "contents" in known and any(name in known for name in PASSAGE_IDS):
            return passage_of(record)
        text = _found(record, known, self._columns.text, _TEXTS)
        if not text:
            names = field_names(record.fields)
            msg = f"none of the fields is known to be the text. Name it: text_field. The fields are {names}."
            raise record.error(msg)
        title = _found(record, known, self._columns.title, ("title",))
        identifier = _found(record, known, self._columns.id, PASSAGE_IDS)
        read = Passage("", _text(record, title), _text(record, text))
        if identifier:
            return replace(read, id=record.identifier(identifier))
        digest = hashlib.blake2b(f"{read.title}\n{read.text}".encode(), digest_size=8).hexdigest()
        count = self._seen[digest] = self._seen.get(digest, 0) + 1
        return replace(read, id=digest if count == 1 else f"{digest}-{count}")


def _found(record: Record, known: dict[str, str], named: str, usual: tuple[str, ...]) -> str:
    """The field that the user named, or else one with a usual name; "" if there is none."""
    if not named:
        return next((known[name] for name in usual if name in known), "")
    if named in record.fields:
        return named
    close = nearest(named, record.fields)
    hint = f"; did you mean '{close}'?" if close else "."
    msg = f"there is no field '{named}'{hint} The fields are {field_names(record.fields)}. Name one of them."
    raise record.error(msg)


def _text(record: Record, name: str) -> str:
    return record.text(name) if name and record.fields[name] is not None else ""
