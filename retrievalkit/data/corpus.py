"""Corpora: passages with ids, read as a stream, and any one of them by its id.

Memory stays small however large the corpus is: of a plain file only 24 bytes a passage are held, to find it again; of
compressed files and remote sources the passages themselves are held, and only once one is asked for by id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrievalkit.artifacts import fingerprint_file, fingerprint_value
from retrievalkit.data import files, sources
from retrievalkit.data.positions import Duplicates, Positions
from retrievalkit.data.records import Record, Table, read_records, table_of
from retrievalkit.data.sources.remote import fetched_records
from retrievalkit.errors import DataError, nearest

FORMS = (
    "BEIR (_id, title, text)",
    "Tevatron (docid, title, text)",
    "Pyserini (id, contents)",
    "DPR (a table with the header id, text, title)",
    "MS MARCO (a table id, text without a header)",
)

_IDS = ("_id", "docid", "doc_id", "id", "passage_id", "psg_id", "pid")

_CORPUS_FILES = ("corpus.jsonl", "corpus.tsv", "collection.tsv")

_NEAREST_AMONG = 5_000


@dataclass(frozen=True, slots=True)
class Passage:
    """A row of a corpus."""

    id: str
    title: str
    text: str


class Corpus:
    """A collection of passages, iterated over in the order of the source, as often as wanted.

    A duplicated id, a missing field and an empty corpus are errors that name file and line; they are found while
    iterating.

    Args:
        source: What it was opened from, as the user wrote it.
        records: Makes a fresh iterator over (place, passage).
        fingerprint: Computes the fingerprint of the content.
        files: The plain files behind it, in order, if passages can be read from them at any byte.
    """

    def __init__(
        self,
        source: str,
        records: Callable[[], Iterator[tuple[Record, Passage]]],
        fingerprint: Callable[[], str],
        files: tuple[Path, ...] = (),
    ) -> None:
        self.source = source
        self._records = records
        self._fingerprint = fingerprint
        self._files = files
        self._positions: Positions | None = None
        self._held: dict[str, Passage] | None = None
        self._count: int | None = None
        self._print: str | None = None
        self._again: tuple[Any, ...] = (open_corpus, (source,))

    @classmethod
    def of(cls, passages: Iterable[Passage], source: str = "memory") -> Corpus:
        """A corpus of passages that are in memory."""
        given = list(passages)

        def records() -> Iterator[tuple[Record, Passage]]:
            for number, passage in enumerate(given, 1):
                yield Record(source, number, {}), passage

        corpus = cls(source, records, lambda: fingerprint_value([[one.id, one.title, one.text] for one in given]))
        corpus._again = (Corpus.of, (given, source))
        return corpus

    def __reduce__(self) -> tuple[Any, ...]:
        # Hashes of text differ between processes, so that another one has to build its own positions.
        return self._again

    def __repr__(self) -> str:
        return f"Corpus({self.source!r})"

    def __iter__(self) -> Iterator[Passage]:
        if self._held is not None:
            yield from self._held.values()
            return
        duplicates = Duplicates(self._identified)
        count = 0
        for _, passage in self._records():
            if self._count is None:
                duplicates.add(passage.id)
            count += 1
            yield passage
        duplicates.check()
        self._count = self._filled(count)

    def __len__(self) -> int:
        if self._count is None:
            for _ in self:
                pass
        return self._count or 0

    def __contains__(self, document_id: object) -> bool:
        return isinstance(document_id, str) and not self.missing([document_id])

    def get(self, document_id: str) -> Passage:
        """The passage with this id.

        Raises:
            DataError: There is none; names the nearest id.
        """
        if not self._files:
            found = self._loaded().get(document_id)
        else:
            passages = map(passage_of, self._indexed().candidates(document_id))
            found = next((one for one in passages if one.id == document_id), None)
        if found is None:
            raise self.unknown(document_id)
        return found

    def missing(self, document_ids: Iterable[str]) -> set[str]:
        """Those of the ids that no passage has: one call for many ids."""
        if self._files:
            return self._indexed().missing(document_ids)
        held = self._loaded()
        return {one for one in document_ids if one not in held}

    def unknown(self, document_id: str, *, file: object = None, line: int | None = None) -> DataError:
        """The complaint about an id that no passage has."""
        close = nearest(document_id, _alike(document_id, self.ids()))
        hint = f"; did you mean '{close}'?" if close else "."
        msg = (
            f"unknown document id '{document_id}'{hint} It is none of the {len(self)} passages of '{self.source}'. "
            "Give the corpus that the file was made for."
        )
        return DataError(msg, file=file, line=line)

    def ids(self) -> list[str]:
        """The ids of all passages, in order."""
        return [passage.id for passage in self]

    def fingerprint(self) -> str:
        """A fingerprint of the content."""
        if self._print is None:
            self._print = self._fingerprint()
        return self._print

    def _identified(self) -> Iterator[tuple[Record, str]]:
        for record, passage in self._records():
            yield record, passage.id

    def _filled(self, count: int) -> int:
        if not count:
            msg = "the corpus is empty: it holds no passage."
            raise DataError(msg, file=self.source)
        return count

    def _loaded(self) -> dict[str, Passage]:
        if self._held is None:
            self._held = {passage.id: passage for passage in self}
        return self._held

    def _indexed(self) -> Positions:
        if self._positions is None:
            tables = [table_of(file, corpus_table) for file in self._files]
            self._positions = Positions(self._files, tables, self._identified)
            self._count = self._filled(len(self._positions))
        return self._positions


def open_corpus(source: str | Path) -> Corpus:
    """Open a corpus: a file or folder in any known form, `hf:NAME`, `irds:NAME` or `pydoc:PACKAGE,...`.

    Nothing but the first bytes is read yet.

    Raises:
        DataError: There is no such file, or it is no corpus.
    """
    prefix, rest = sources.split_prefix(source)
    if prefix == "pydoc":
        return _documentation(str(source), rest)
    if prefix:
        return Corpus(
            str(source),
            lambda: _passages(fetched_records(prefix, rest, "docs", "corpus")),
            lambda: sources.fingerprint(source),
        )
    paths = _files_of(files.existing(rest))
    plain = all(files.is_plain(path) and files.first_character(path) != "[" for path in paths)
    return Corpus(
        str(source),
        lambda: _passages(record for path in paths for record in read_records(path, corpus_table, "passages", FORMS)),
        lambda: _fingerprint_files(paths),
        tuple(paths) if plain else (),
    )


def passage_of(record: Record) -> Passage:
    """The passage in a record, whichever form it has."""
    fields = record.fields
    name = next((name for name in _IDS if name in fields), None)
    if name is None or ("text" not in fields and "contents" not in fields):
        raise record.unknown_form("passage", FORMS)
    if "text" in fields:
        title = record.text("title") if fields.get("title") is not None else ""
        return Passage(record.identifier(name), title, record.text("text"))
    title, text = split_contents(record.text("contents"))
    return Passage(record.identifier(name), title, text)


def split_contents(contents: str) -> tuple[str, str]:
    """Title and text of Pyserini's `contents`: the first line is the title where more lines follow."""
    first, newline, rest = contents.partition("\n")
    if not newline or not rest.strip():
        return "", contents.strip()
    if len(first) > 1 and first[0] == first[-1] == '"':
        first = first[1:-1]
    return first.strip(), rest.strip()


def corpus_table(row: list[str]) -> Table | None:
    """How a corpus in a table is read: DPR's, with or without header, or MS MARCO's."""
    names = tuple(cell.strip().lower() for cell in row)
    if names[0] in _IDS and ("text" in names or "contents" in names):
        return Table(names, header=True, quoted=True, bare="text" if "text" in names else "contents")
    if len(row) == 2:
        return Table(("id", "text"))
    if len(row) == 3:
        return Table(("id", "text", "title"), quoted=True, bare="text")
    return None


def _passages(records: Iterable[Record]) -> Iterator[tuple[Record, Passage]]:
    for record in records:
        yield record, passage_of(record)


def _documentation(source: str, packages: str) -> Corpus:
    from retrievalkit.data.sources import pydoc

    def records() -> Iterator[tuple[Record, Passage]]:
        for number, passage in enumerate(pydoc.passages(packages), 1):
            yield Record(source, number, {}), passage

    return Corpus(source, records, lambda: pydoc.fingerprint(packages))


def _files_of(path: Path) -> list[Path]:
    """The files of a corpus: itself, the corpus of a BEIR folder, or all data files of a folder."""
    if path.is_file():
        return [path]
    for name in _CORPUS_FILES:
        if corpus := files.find_file(path, name):
            return [corpus]
    ends = tuple(f"{kind}{end}" for kind in (".jsonl", ".json", ".tsv") for end in files.COMPRESSIONS)
    found = sorted(one for one in path.iterdir() if one.is_file() and one.name.endswith(ends))
    if not found:
        msg = f"the folder holds no corpus.jsonl and no .jsonl, .json or .tsv file, but {files.listing(path)}."
        raise DataError(msg, file=path)
    return found


def _fingerprint_files(paths: list[Path]) -> str:
    prints = [fingerprint_file(path) for path in paths]
    return prints[0] if len(prints) == 1 else fingerprint_value(prints)


def _alike(name: str, known: list[str]) -> list[str]:
    """Of many ids, some that may be near a name: comparing with all of millions would take minutes."""
    if len(known) <= _NEAREST_AMONG:
        return known
    lengths = (len(name) - 1, len(name), len(name) + 1)
    alike = [one for one in known if len(one) in lengths and (one[:2] == name[:2] or one[-2:] == name[-2:])]
    alike.sort(key=lambda one: (one[:2] != name[:2]) + (one[-2:] != name[-2:]) + (one[-4:] != name[-4:]))
    return alike[:_NEAREST_AMONG]


def text_digest(passage: Passage) -> bytes:
    """A digest of a passage's text, whatever its white space; of its title where it has no text."""
    text = " ".join(passage.text.split()) or f"\n{passage.title}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
