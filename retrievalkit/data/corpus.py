"""Corpora: passages with ids, read as a stream, and any one of them by its id.

Memory stays small however large the corpus is: of a plain file only 24 bytes a passage are held, to find it again; of
compressed files and remote sources the passages themselves are held, and only once one is asked for by id.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrievalkit.artifacts import fingerprint_file, fingerprint_value
from retrievalkit.data import sources
from retrievalkit.data.sources import Record, Table
from retrievalkit.errors import DataError, nearest

FORMS = (
    "BEIR (_id, title, text)",
    "Tevatron (docid, title, text)",
    "Pyserini (id, contents)",
    "DPR (a table with the header id, text, title)",
    "MS MARCO (a table id, text without a header)",
)
_IDS = ("_id", "docid", "doc_id", "id", "passage_id", "psg_id", "pid")
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
        self._index: _Index | None = None
        self._held: dict[str, Passage] | None = None
        self._count: int | None = None
        self._print: str | None = None

    @classmethod
    def of(cls, passages: Iterable[Passage], source: str = "memory") -> Corpus:
        """A corpus of passages that are in memory."""
        held = list(passages)

        def records() -> Iterator[tuple[Record, Passage]]:
            for number, passage in enumerate(held, 1):
                yield Record(source, number, {}), passage

        return cls(source, records, lambda: _fingerprint_passages(held))

    def __repr__(self) -> str:
        return f"Corpus({self.source!r})"

    def __iter__(self) -> Iterator[Passage]:
        if self._held is not None:
            yield from self._held.values()
            return
        checker = _Duplicates(self._records)
        count = 0
        for record, passage in self._records():
            if self._count is None:
                checker.add(passage.id)
            count += 1
            yield passage
        checker.check()
        if not count:
            msg = "the corpus is empty: it holds no passage."
            raise DataError(msg, file=self.source)
        self._count = count

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
        if self._files:
            found = self._indexed().read(document_id)
        else:
            found = self._loaded().get(document_id)
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
        msg = f"unknown document id '{document_id}'"
        if close := nearest(document_id, _alike(document_id, self.ids())):
            msg += f"; did you mean '{close}'?"
        known = f"The corpus '{self.source}' has {len(self)} passages and not this one."
        return DataError(f"{msg}{'' if close else '.'} {known} Is it the corpus that the file was made for?", file=file, line=line)

    def ids(self) -> list[str]:
        """The ids of all passages, in order."""
        return [passage.id for passage in self]

    def fingerprint(self) -> str:
        """A fingerprint of the content."""
        if self._print is None:
            self._print = self._fingerprint()
        return self._print

    def _loaded(self) -> dict[str, Passage]:
        if self._held is None:
            self._held = {passage.id: passage for passage in self}
        return self._held

    def _indexed(self) -> _Index:
        if self._index is None:
            self._index = _Index(self._files, self._records)
            self._count = len(self._index)
        return self._index

    def __getstate__(self) -> dict[str, Any]:
        msg = "a Corpus cannot be pickled; open it again from its source."
        raise TypeError(msg)


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
            lambda: _passages(sources.fetched_records(prefix, rest, "docs", "corpus")),
            lambda: sources.fingerprint(source),
        )
    files = _files(sources.existing(rest))
    plain = all(sources.is_plain(file) and sources.first_character(file) != "[" for file in files)
    return Corpus(
        str(source),
        lambda: _passages(record for file in files for record in sources.read_records(file, corpus_table, "passages")),
        lambda: _fingerprint_files(files),
        tuple(files) if plain else (),
    )


def passage_of(record: Record) -> Passage:
    """The passage in a record, whichever form it has."""
    fields = record.fields
    name = next((name for name in _IDS if name in fields), None)
    if name is None or ("text" not in fields and "contents" not in fields):
        raise sources.unknown_form(record, "passage", FORMS)
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
    from retrievalkit.data import pydoc

    def records() -> Iterator[tuple[Record, Passage]]:
        for number, passage in enumerate(pydoc.passages(packages), 1):
            yield Record(source, number, {}), passage

    return Corpus(source, records, lambda: pydoc.fingerprint(packages))


def _files(path: Path) -> list[Path]:
    """The files of a corpus: itself, the corpus of a BEIR folder, or all data files of a folder."""
    if path.is_file():
        return [path]
    for name in ("corpus.jsonl", "collection.tsv", "corpus.tsv"):
        if found := sources.find_file(path, name):
            return [found]
    ends = tuple(f"{kind}{end}" for kind in (".jsonl", ".json", ".tsv") for end in sources.COMPRESSIONS)
    files = sorted(one for one in path.iterdir() if one.is_file() and one.name.endswith(ends))
    if not files:
        found = ", ".join(sorted(one.name for one in path.iterdir())[:12]) or "nothing"
        msg = f"the folder holds no corpus.jsonl and no .jsonl, .json or .tsv file, but {found}."
        raise DataError(msg, file=path)
    return files


def _fingerprint_files(files: list[Path]) -> str:
    prints = [fingerprint_file(file) for file in files]
    return prints[0] if len(prints) == 1 else fingerprint_value(prints)


def _fingerprint_passages(passages: list[Passage]) -> str:
    return fingerprint_value([[one.id, one.title, one.text] for one in passages])


def _alike(name: str, known: Iterable[str]) -> list[str]:
    """Of many ids, some that may be near a name: comparing with all of millions would take minutes."""
    if len(known := list(known)) <= _NEAREST_AMONG:
        return known
    lengths = (len(name) - 1, len(name), len(name) + 1)
    alike = [one for one in known if len(one) in lengths and (one[:3] == name[:3] or one[-3:] == name[-3:])]
    return alike[:_NEAREST_AMONG]


class _Duplicates:
    """Finds an id that was given twice, at 8 bytes an id."""

    def __init__(self, records: Callable[[], Iterator[tuple[Record, Passage]]]) -> None:
        self._records = records
        self._hashes = array("q")
        self._next_check = 1024

    def add(self, document_id: str) -> None:
        self._hashes.append(hash(document_id))
        if len(self._hashes) == self._next_check:
            self.check()
            self._next_check *= 2

    def check(self) -> None:
        """Raise DataError where two ids so far are equal."""
        import numpy

        ordered = numpy.sort(numpy.frombuffer(self._hashes, dtype=numpy.int64)) if self._hashes else numpy.empty(0)
        twice = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        if not twice:
            return
        first: dict[str, Record] = {}
        for record, passage in self._records():
            if hash(passage.id) in twice:
                if passage.id in first:
                    raise duplicated(passage.id, record, first[passage.id])
                first[passage.id] = record


def duplicated(identifier: str, record: Record, first: Record) -> DataError:
    """The complaint about an id that stands twice."""
    place = f"element {first.element}" if first.element else f"line {first.line}"
    where = place if first.file == record.file else f"{first.file}, {place}"
    return record.error(f"the id '{identifier}' is used already at {where}. Every id stands for one thing.")


class _Index:
    """Where each passage of plain files lies, by the hash of its id: sorted hashes, start and end bytes."""

    def __init__(self, files: tuple[Path, ...], records: Callable[[], Iterator[tuple[Record, Passage]]]) -> None:
        import numpy

        self._files = files
        self._names = [str(file) for file in files]
        self._tables = [sources.table_of(file, corpus_table) for file in files]
        self._bases = numpy.cumsum([0, *(file.stat().st_size for file in files)])
        hashes, starts, sizes = array("q"), array("q"), array("q")
        duplicates = _Duplicates(records)
        base_of = dict(zip(self._names, self._bases.tolist(), strict=False))
        for record, passage in records():
            duplicates.add(passage.id)
            starts.append(base_of[record.file] + record.start)
            sizes.append(record.end - record.start)
        duplicates.check()
        hashes = duplicates._hashes
        order = numpy.argsort(numpy.frombuffer(hashes, dtype=numpy.int64), kind="stable") if hashes else []
        self._hashes = numpy.frombuffer(hashes, dtype=numpy.int64)[order] if hashes else numpy.empty(0)
        self._starts = numpy.frombuffer(starts, dtype=numpy.int64)[order] if hashes else numpy.empty(0)
        self._sizes = numpy.frombuffer(sizes, dtype=numpy.int64)[order] if hashes else numpy.empty(0)

    def __len__(self) -> int:
        return len(self._hashes)

    def missing(self, document_ids: Iterable[str]) -> set[str]:
        import numpy

        wanted = list(document_ids)
        hashes = numpy.array([hash(one) for one in wanted], dtype=numpy.int64)
        places = numpy.minimum(numpy.searchsorted(self._hashes, hashes), len(self._hashes) - 1)
        return {wanted[i] for i in numpy.flatnonzero(self._hashes[places] != hashes).tolist()}

    def read(self, document_id: str) -> Passage | None:
        place = int(self._hashes.searchsorted(hash(document_id)))
        while place < len(self._hashes) and self._hashes[place] == hash(document_id):
            passage = self._read(int(self._starts[place]), int(self._sizes[place]))
            if passage.id == document_id:
                return passage
            place += 1
        return None

    def _read(self, start: int, size: int) -> Passage:
        number = int(self._bases.searchsorted(start, side="right")) - 1
        with self._files[number].open("rb") as stream:
            stream.seek(start - int(self._bases[number]))
            return passage_of(sources.parse_record(stream.read(size), self._names[number], self._tables[number]))
