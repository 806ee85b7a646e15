"""Corpora: passages with ids, read as a stream or by id.

For plain files, memory use is 24 bytes per passage, for its position. Passages of compressed files and of other sources
are loaded into memory at the first lookup by id.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from retrievalkit.contracts.encoding import Text
from retrievalkit.data import files
from retrievalkit.data.fields import LeftOut, Value, fields_of
from retrievalkit.data.files import stamp
from retrievalkit.data.forms import CORPUS, PASSAGE_IDS, PASSAGE_TEXTS, corpus_table, incomplete, roles_of
from retrievalkit.data.json_text import field_names, shown
from retrievalkit.data.positions import Duplicates, Places, Positions, lines_with
from retrievalkit.data.records import (
    Damaged,
    QuestionNamer,
    Record,
    Table,
    first_row,
    id_problem,
    leave_out,
    table_of,
)
from retrievalkit.data.same_text import PLAIN, plain_fields, plain_form
from retrievalkit.data.sources import open_source
from retrievalkit.data.sources.local import Local, Parquet
from retrievalkit.errors import DataError, nearest
from retrievalkit.reporting.notices import Blanks
from retrievalkit.reporting.terminal import counted
from retrievalkit.storage import fingerprint_value

_NEAREST_AMONG = 5_000
_CUT, _FORM, _OUTLINE = "cut", "text_form", "outline"
_CUT_TYPES = {"document": str, "gap": str, "heading": str} | dict.fromkeys(
    ("number", "of", "start", "header", "page"), int
)


@dataclass(frozen=True, slots=True)
class Cut:
    """The record that rkit cut a passage from a document: it is passage `number` of `of`, with the id DOCUMENT#NUMBER.

    A passage without this record is a document of its own, whatever its id looks like.

    Attributes:
        start: Its position in the document, in characters; None if unknown, as in records of earlier versions.
        gap: The white space before it that no passage contains.
        header: Length of a table's header at its beginning, which is repeated from an earlier passage.
        heading: The headings above it: "Guide > Install".
        page: Number of its page, slide or sheet, from 1.
    """

    document: str
    number: int
    of: int
    start: int | None = None
    gap: str = ""
    header: int = 0
    heading: str = ""
    page: int | None = None

    @property
    def record(self) -> dict[str, Any]:
        """Its values, except for unknown and empty ones."""
        return {key: value for key in self.__slots__ if (value := getattr(self, key)) or (key, value) == ("start", 0)}


@dataclass(frozen=True, slots=True)
class Passage:
    """A passage of a corpus.

    Attributes:
        fields: Metadata, see `data.fields`.
        cut: The record of the document that rkit cut it from.
        text_form: The record of the form of its id and texts, see `data.same_text`; "" = as they came.
        outline: Of a whole document, if its source knows it: `place(position)` returns the headings and the page there.
    """

    id: str
    title: str
    text: str
    fields: Mapping[str, Value] = field(default_factory=dict, hash=False)
    cut: Cut | None = None
    text_form: str = field(default="", compare=False)
    outline: Any = field(default=None, compare=False, repr=False)

    @property
    def content(self) -> Text:
        """The text to encode."""
        return Text(self.title, self.text, self.fields)


class Corpus:
    """A collection of passages that can be iterated any number of times, in source order.

    Iteration reports duplicate ids, missing fields and an empty corpus with file and line, and counts empty passages.

    Args:
        source: The address, as the user wrote it.
        records: Creates a new iterator over (record, passage).
        fingerprint: Computes the fingerprint of the content.
        files: The underlying plain files, in order, if passages can be read by byte position.
        size: Returns the number of passages without reading them, or None if it is unknown.

    Attributes:
        counts_empty: True to report the number of empty passages in a note.
    """

    def __init__(
        self,
        source: str,
        records: Callable[[], Iterator[tuple[Record, Passage]]],
        fingerprint: Callable[[], str],
        files: tuple[Path, ...] = (),
        size: Callable[[], int | None] = lambda: None,
    ) -> None:
        self.source = source
        self._records = records
        self._fingerprint = fingerprint
        self._files = files
        self._stamps = tuple(map(stamp, files))
        self._size = size
        self._positions: Positions | None = None
        self._scanned = False
        self._by_id: dict[str, Passage] | None = None
        self._count: int | None = None
        self._print: str | None = None
        self._reduced: tuple[Any, ...] = (open_corpus, (source,))
        self.counts_empty = True

    @classmethod
    def of(cls, passages: Iterable[Passage], source: str = "memory") -> Corpus:
        """Create a corpus from passages in memory."""
        collection = list(passages)

        def records() -> Iterator[tuple[Record, Passage]]:
            for number, passage in enumerate(collection, 1):
                yield Record(source, number, {}), passage

        def fingerprint() -> str:
            return fingerprint_value([[passage.id, passage.title, passage.text] for passage in collection])

        corpus = cls(source, records, fingerprint, size=lambda: len(collection))
        corpus._reduced = (Corpus.of, (collection, source))
        return corpus

    def __reduce__(self) -> tuple[Any, ...]:
        # String hashes differ between processes, so each process builds its own positions.
        return self._reduced

    def __repr__(self) -> str:
        return f"Corpus({self.source!r})"

    def __iter__(self) -> Iterator[Passage]:
        if self._by_id is not None:
            yield from self._by_id.values()
            return
        if self._count is not None:
            yield from (passage for _, passage in self._records())
            return
        duplicates, count = Duplicates(self._identified), 0
        for _, passage in self._reported():
            duplicates.add(passage.id)
            count += 1
            yield passage
        duplicates.check()
        self._count = self._nonempty(count)

    def __len__(self) -> int:
        if self._count is None:
            for _ in self:
                pass
        return self._count or 0

    def expected_size(self) -> int | None:
        """Return the number of passages: exact if known, otherwise an estimate without parsing, for a progress bar."""
        return self._size() if self._count is None else self._count

    def __contains__(self, document_id: object) -> bool:
        return isinstance(document_id, str) and not self.missing([document_id])

    def get(self, document_id: str) -> Passage:
        """Return the passage with this id.

        Raises:
            DataError: The id is unknown; the message suggests the nearest id.
        """
        if not self._files:
            passage = self._loaded().get(document_id)
        else:
            passages = map(passage_of, self._indexed().candidates(document_id))
            passage = next((passage for passage in passages if passage.id == document_id), None)
        if passage is None:
            raise self.unknown(document_id)
        return passage

    def missing(self, document_ids: Iterable[str]) -> set[str]:
        """Return the ids that are not in the corpus. One call for many ids is much faster than many calls."""
        if self._files:
            return self._indexed().missing(document_ids)
        passages = self._loaded()
        return {document for document in document_ids if document not in passages}

    def find(self, document_ids: Iterable[str]) -> dict[str, Passage]:
        """Return the passages with these ids; unknown ids are left out.

        The first call scans the files for the ids without parsing all passages, so that a single query does not wait.
        """
        wanted = list(dict.fromkeys(document_ids))
        if self._files and self._positions is None and not self._scanned:
            self._scanned = True
            passages: dict[str, Passage] = {}
            # On an error, the full read below reports the problem.
            with suppress(DataError, ValueError):
                if all(table_of(file, corpus_table) is None for file in self._files):
                    stamped = zip(self._files, self._stamps, strict=True)
                    lines = (lines_with(file, PASSAGE_IDS, wanted, before) for file, before in stamped)
                    records = itertools.chain.from_iterable(lines)
                    for passage in map(passage_of, records):
                        if passage.id in wanted:
                            passages.setdefault(passage.id, passage)
                if len(passages) == len(wanted):
                    return passages
        missing = self.missing(wanted)
        return {document: self.get(document) for document in wanted if document not in missing}

    def unknown(self, document_id: str, *, file: object = None, line: int | None = None) -> DataError:
        """Return the error for an unknown document id."""
        close = nearest_id(document_id, self.ids())
        hint = f"; did you mean '{close}'?" if close else "."
        msg = (
            f"unknown document id '{document_id}'{hint} It is not among the {counted(len(self), 'passages')} of "
            f"'{self.source}'. Give the corpus with these ids."
        )
        return DataError(msg, file=file, line=line)

    def ids(self) -> list[str]:
        """Return the ids of all passages, in order."""
        return [passage.id for passage in self]

    @property
    def _modified(self) -> bool:
        """True if the files that were opened have been modified in place since."""
        return tuple(map(stamp, self._files)) != self._stamps

    def fingerprint(self) -> str:
        """Return a fingerprint of the content, computed once."""
        if self._print is None:
            self._print = self._fingerprint()
        return self._print

    def _reported(self) -> Iterator[tuple[Record, Passage]]:
        """Yield the records, then report the number of empty passages."""
        blanks = Blanks("passages", self.source)
        for record, passage in self._records():
            blanks.see(passage.id, passage.title, passage.text)
            yield record, passage
        if self.counts_empty:
            blanks.report()

    def _identified(self) -> Iterator[tuple[Record, str]]:
        return ((record, passage.id) for record, passage in self._reported())

    def _nonempty(self, count: int) -> int:
        if not count:
            msg = "the corpus is empty. Give a file or folder with passages."
            raise DataError(msg, file=self.source)
        return count

    def _loaded(self) -> dict[str, Passage]:
        if self._by_id is None:
            self._by_id = {passage.id: passage for passage in self}
        return self._by_id

    def _indexed(self) -> Positions:
        if self._positions is None:
            tables = [table_of(file, corpus_table) for file in self._files]
            self._positions = Positions(Places(self._files, tables, self._stamps), self._identified)
            self._count = self._nonempty(len(self._positions))
        return self._positions


def open_corpus(source: str | Path) -> Corpus:
    """Open a corpus: a file or folder in any known format, or a source such as `hf:NAME` or `pydoc:PACKAGE,...`.

    Only the first bytes are read at this point.

    Raises:
        DataError: The file does not exist, or is not a corpus.
    """
    opened = open_source(source)
    return Corpus(
        source if isinstance(source, str) else str(source),  # an in-memory address holds its rows
        lambda: passages_of(str(source), opened.records("passages"), passage_with),
        opened.corpus_fingerprint,
        opened.plain_files(),
        opened.size,
    )


@dataclass(frozen=True)
class Columns:
    """The field names of a passage; "" = a usual name, if present."""

    text: str = ""
    title: str = ""
    id: str = ""

    def of(self, record: Record) -> tuple[str, str, str] | None:
        """Return the fields with the id, the title and the text; None = the usual names."""
        usual = roles_of(tuple(record.fields))
        roles = self.id or usual[0], self.title or usual[1], self.text or usual[2]
        if absent := next((name for name in roles if name and name not in record.fields), None):
            close = nearest(absent, record.fields)
            hint = f"; did you mean '{close}'?" if close else "."
            msg = f"there is no field '{absent}'{hint} The fields are {field_names(record.fields)}. Name one of them."
            raise record.error(msg)
        if not roles[2]:
            names = field_names(record.fields)
            msg = f"no field has a usual name for the text; the fields are {names}. Set text_field to one of them."
            raise record.error(msg)
        return None if self == Columns() else roles


def open_own(source: str | Path, columns: Columns | None, damaged: Damaged | None = None) -> Corpus:
    """Open a corpus whose fields the user named (None = none), or a custom table.

    The id of a row without an id is a hash of its title and text, so it does not depend on other rows.

    Args:
        source: A file or another source.
        columns: The fields.
        damaged: Receives the error of each damaged record, which is left out; None = it is raised.
    """
    opened = open_source(source)
    if columns is None and not isinstance(opened, Parquet):
        if not isinstance(opened, Local) or opened.is_folder or files.first_character(opened.path) in "{[":
            return open_corpus(source)
        table = table_of(opened.path, corpus_table)
        if first_row(opened.path)[1] == "\t" and not (table and table.header and not roles_of(table.names)[0]):
            return open_corpus(source)

    def passages() -> Iterator[tuple[Record, Passage]]:
        # Any table with a header.
        form = CORPUS._replace(
            table=lambda row: Table(tuple(map(str.strip, row)), header=True, quoted=True), damaged=damaged
        )
        rows = opened.corpus_records(form) if isinstance(opened, Local) else opened.records("passages")
        own, name_of = columns or Columns(), QuestionNamer().name
        return passages_of(
            str(source), rows, lambda record, left: passage_with(record, left, own.of(record), name_of), damaged
        )

    return Corpus(str(source), passages, opened.corpus_fingerprint, size=opened.size)


def write_corpus(path: str | Path, passages: Iterable[Passage]) -> int:
    """Write passages as BEIR JSON lines; returns their number."""
    rows = (
        {"_id": passage.id, "title": passage.title, "text": passage.text, "metadata": passage.fields}
        | ({_FORM: passage.text_form} if passage.text_form else {})
        | ({} if passage.cut is None else {_CUT: passage.cut.record})
        for passage in passages
    )
    return files.write_jsonl(path, ({name: value for name, value in row.items() if value != {}} for row in rows))


def passages_of(
    source: str,
    records: Iterable[Record],
    convert: Callable[[Record, LeftOut], Passage],
    damaged: Damaged | None = None,
) -> Iterator[tuple[Record, Passage]]:
    """Yield records with their passages, then note the number of values that cannot be fields; see `leave_out`."""
    left_out = LeftOut()
    for record in records:
        try:
            passage = convert(record, left_out)
        except DataError as error:
            leave_out(error, damaged)
        else:
            yield record, passage
    left_out.report(source)


def passage_of(record: Record) -> Passage:
    """Return the passage in a record of any known format."""
    return passage_with(record, LeftOut())


def passage_with(
    record: Record,
    left_out: LeftOut,
    roles: tuple[str, str, str] | None = None,
    name_of: Callable[[str], str] | None = None,
) -> Passage:
    """Return the passage in a record.

    Args:
        record: The record.
        left_out: Counts the values that cannot be fields.
        roles: The fields with the id, the title and the text, "" = none; None = those with a usual name.
        name_of: Names a record without an id by its title and text, and allows an empty text; None = it is refused.
    """
    fields = record.fields
    name, titled, texted = roles or roles_of(tuple(fields))
    if not texted or not (name or name_of):
        raise incomplete(record, "passage", CORPUS.known, id=PASSAGE_IDS, text=PASSAGE_TEXTS)
    usual = () if roles else ("contents",)
    if texted.lower() in usual:
        title, text = split_contents(record.text(texted))
    else:
        title = record.text(titled) if titled and fields[titled] is not None else ""
        text = "" if name_of and fields[texted] is None else record.text(texted)
    identifier = record.identifier(name) if name or name_of is None else name_of(f"{title}\n{text}")
    cut, form = cut_of(record, identifier), PLAIN if fields.get(_FORM) == PLAIN else ""
    outline = fields.get(_OUTLINE) if hasattr(fields.get(_OUTLINE), "place") else None  # not a value of JSON
    records = {_CUT: cut, _FORM: form, _OUTLINE: outline}
    known = (name, titled, texted, *usual, *(key for key, value in records.items() if value))
    return Passage(identifier, title, text, fields_of(fields, known, left_out), cut, form, outline)


def plain_passage(passage: Passage) -> Passage:
    """Return a passage with its id, texts and fields in plain form; see `data.same_text`.

    Raises:
        DataError: Nothing is left of its id.
    """
    document = plain_form(passage.id if passage.cut is None else passage.cut.document).strip()
    if problem := id_problem(document):
        msg = f"the id {shown(passage.id)} is {shown(document)} in plain form, and {problem} Choose another id."
        raise DataError(msg)
    cut = None if passage.cut is None else replace(passage.cut, document=document)
    identifier = document if cut is None else f"{document}#{cut.number}"
    texts = plain_form(passage.title), plain_form(passage.text)
    return Passage(identifier, *texts, plain_fields(passage.fields), cut, PLAIN, passage.outline)


def cut_of(record: Record, identifier: str) -> Cut | None:
    """Return the record of the document that a passage was cut from; None if it has none."""
    value = record.fields.get(_CUT)
    known = {name: part for name, part in value.items() if part is not None} if isinstance(value, Mapping) else {}
    if not {*_CUT_TYPES} >= {*known} >= {"document", "number", "of"}:
        return None
    cut = Cut(**known)
    # By type, because True is an int too.
    fits = all(type(part) is _CUT_TYPES[name] for name, part in known.items())
    fits = fits and bool(cut.document) and 1 <= cut.number <= cut.of and min(cut.start or 0, cut.header) >= 0
    if fits and identifier == f"{cut.document}#{cut.number}":
        return cut
    msg = f"'cut' is {shown(value)}, but the id is '{identifier}'. Passage 'number' of the 'of' passages of 'document' "
    msg += "has the id DOCUMENT#NUMBER: change both, or remove 'cut'."
    raise record.error(msg)


def split_contents(contents: str) -> tuple[str, str]:
    """Split Pyserini's `contents` into title and text: the first line is the title if more lines follow."""
    first, newline, rest = contents.partition("\n")
    if not newline or not rest.strip():
        return "", contents.strip()
    if len(first) > 1 and first[0] == first[-1] == '"':
        first = first[1:-1]
    return first.strip(), rest.strip()


def nearest_id(name: str, known: Sequence[str]) -> str | None:
    """Return the most similar id; None if no id is similar, or if there are too many: millions take minutes."""
    return nearest(name, known) if len(known) <= _NEAREST_AMONG else None
