"""Reads a folder of documents: its files, the passages of each, and the changes since the last reading.

A file counts as changed if its size or times differ from the last reading and its content does too. Its passages depend
only on its content and file extension, except for their ids, which begin with its path.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from retrievalkit.data.columns import Columns
from retrievalkit.data.corpus import Passage, open_corpus, passage_of, write_corpus
from retrievalkit.data.files import fingerprint
from retrievalkit.data.passage_parts import parts_of
from retrievalkit.data.records import Record
from retrievalkit.errors import DataError, RetrievalkitError
from retrievalkit_documents.listing import documents_below
from retrievalkit_documents.source import EVERY
from retrievalkit_documents.tables import TABLES, read_table, reason_of
from retrievalkit_documents.text import Document, UnreadableError
from retrievalkit_documents.workers import read_documents

_UNSETTLED = 2_000_000_000
"""Nanoseconds: a file changed this shortly before it is read may change again with the same timestamp."""


@dataclass(frozen=True)
class File:
    """A file as it was read.

    Attributes:
        stamp: Its size, and the change times of its content and directory entry; empty if it may still change without
            a new stamp.
        digest: The fingerprint of its content.
        passages: Number of passages.
        problem: The reason why it has no passages.
        note: Content that its passages lack.
    """

    stamp: tuple[int, ...]
    digest: str
    passages: int
    problem: str = ""
    note: str = ""

    def is_at(self, path: Path, *, retry: bool) -> bool:
        """True if the file at a path need not be read again; a file with a problem is read again on retry."""
        try:
            return self.stamp == _stamp(path) and not (self.problem and retry)
        except OSError:
            return False


@dataclass
class State:
    """The files of a folder, by path, and their passages in the same order.

    Attributes:
        files: The files, including files that could not be read.
        passages: The file with the passages; None if there are none.
        others: Paths of files that are not read, by reason.
        read: Number of files read rather than reused.
        left: Content of the files read that is not in their text: kind, such as "images" -> number in each file.
    """

    files: dict[str, File] = field(default_factory=dict)
    passages: Path | None = None
    others: dict[str, list[str]] = field(default_factory=dict)
    read: int = 0
    left: dict[str, list[int]] = field(default_factory=dict)

    @property
    def documents(self) -> dict[str, str]:
        """The path of each file with passages -> the fingerprint of its content."""
        return {name: file.digest for name, file in self.files.items() if not file.problem}

    @property
    def skipped(self) -> dict[str, list[str]]:
        """Paths of all files without passages, or without some of their content, by reason."""
        reasons = {reason: list(names) for reason, names in self.others.items()}
        for name, file in self.files.items():
            if reason := file.problem or file.note:
                reasons.setdefault(reason, []).append(name)
        return reasons

    def groups(self) -> Iterator[tuple[str, list[Passage]]]:
        """Yield the path of each file with its passages."""
        if self.passages is None:
            return
        corpus = open_corpus(self.passages)
        corpus.counts_empty = False
        stream = iter(corpus)
        for name, file in self.files.items():
            yield name, list(islice(stream, file.passages))


@dataclass(frozen=True)
class Reader:
    """Converts files to passages.

    Attributes:
        cut: Cuts a text into passages.
        columns: The fields of tables.
    """

    cut: Callable[[str], list[str]]
    columns: Columns

    def passages(self, path: Path, name: str, document: Document | UnreadableError | None) -> tuple[list[Passage], str]:
        """Return the passages of a file, a table or a document that was read, and a note on content that is left out.

        Their ids begin with the file's name.

        Raises:
            UnreadableError: The file has no passages.
            DataError: The file cannot be read.
        """
        note = ""
        if document is None:
            rows, note = read_table(path, self.columns)
            whole = [replace(row, id=f"{name}/{row.id}") for row in rows]
        elif isinstance(document, UnreadableError):
            raise document
        else:
            fields = {"id": name, "title": document.title, "text": document.text, "metadata": document.fields}
            whole = [passage_of(Record(str(path), 1, fields))]
        parts = [part for passage in whole for part in parts_of(passage, self.cut) if part.text.strip() or part.title]
        if not parts:
            msg = "without text"
            raise UnreadableError(msg)
        return parts, note


def read(
    folder: Path, before: State, reader: Reader, output: Path, *, exclude: Sequence[str] = (), retry: bool = True
) -> State:
    """Read new and changed files of a folder, and write the passages of all files.

    Args:
        folder: The folder.
        before: The files and passages of the last reading with the same reader.
        reader: Converts a file to passages.
        output: The file to write the passages to.
        exclude: Patterns of files that are not read.
        retry: Read unchanged files again if they could not be read last time.

    Raises:
        DataError: The folder, or one inside it, cannot be listed.
    """
    state = State(passages=output)
    paths = documents_below(folder, EVERY, state.others, exclude)
    same = [name for name, _ in paths] == list(before.files)
    if same and all(before.files[name].is_at(path, retry=retry) for name, path in paths):
        return replace(before, others=state.others, read=0)
    known = before.groups()

    def unchanged(name: str) -> list[Passage]:
        return next(group for other, group in known if other == name)  # both are in path order

    def checked() -> Iterator[_Check]:
        for name, path in paths:
            check = _Check(name, path, before.files.get(name))
            check.look(retry=retry)
            yield check

    def passages() -> Iterator[Passage]:
        for check, document in read_documents(checked(), lambda check: check.document):
            name, old, group = check.name, check.old, list[Passage]()
            if old is not None and check.is_same:
                state.files[name] = old
                yield from unchanged(name)
                continue
            problem, note = check.problem, ""
            if check.has_same_content and old is not None:
                group, note = unchanged(name), old.note
            try:
                if not (check.has_same_content or problem):
                    state.read += 1
                    group, note = reader.passages(check.path, name, document)
                    for kind, count in document.left.items() if isinstance(document, Document) else ():
                        state.left.setdefault(kind, []).append(count)
            except Exception as error:  # noqa: BLE001 - a parser may raise anything, and ends its file, not the folder
                problem = _reason(error, check.path)
            stamp = check.stamp
            settled = bool(stamp) and max(stamp[1:]) < time.time_ns() - _UNSETTLED
            state.files[name] = File(stamp if settled else (), check.digest, len(group), problem, note)
            yield from group

    write_corpus(output, passages())
    return state


@dataclass
class _Check:
    """A file compared with the last reading.

    Attributes:
        is_same: True if it has the same stamp.
        has_same_content: True if it has another stamp, but the same content.
        problem: The reason why its content cannot be compared.
    """

    name: str
    path: Path
    old: File | None
    stamp: tuple[int, ...] = ()
    digest: str = ""
    is_same: bool = False
    has_same_content: bool = False
    problem: str = ""

    def look(self, *, retry: bool) -> None:
        """Compare stamp and content; the stamp comes first, because the file may change in between."""
        self.is_same = self.old is not None and self.old.is_at(self.path, retry=retry)
        if self.is_same:
            return
        try:
            self.stamp = _stamp(self.path)
            self.digest = fingerprint(self.path)
        except (OSError, DataError) as error:
            self.problem = _reason(error, self.path)
        self.has_same_content = self.old is not None and self.old.digest == self.digest and not self.old.problem

    @property
    def document(self) -> Path | None:
        """The file, if it has to be read as a document."""
        read = not (self.is_same or self.has_same_content or self.problem)
        return self.path if read and self.path.suffix.lower() not in TABLES else None


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _reason(error: Exception, path: Path) -> str:
    """Return the reason why a file is not read; without its name, so that files are grouped by reason."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if not isinstance(error, RetrievalkitError | UnreadableError):
        return f"that the reader cannot read ({type(error).__name__})"
    return reason_of(error, path)


@dataclass(frozen=True)
class Difference:
    """The documents that differ between two readings of a folder.

    Attributes:
        added: Paths that are new.
        changed: Paths whose content differs.
        removed: Paths that are gone.
        renamed: Old and new paths of documents with the same content.
        unchanged: Number of unchanged documents.
    """

    added: list[str]
    changed: list[str]
    removed: list[str]
    renamed: list[tuple[str, str]]
    unchanged: int

    @classmethod
    def of(cls, before: Mapping[str, str], after: Mapping[str, str]) -> Difference:
        """Compare two mappings of paths to fingerprints."""
        gone: dict[tuple[str, str], list[str]] = {}
        for name in before.keys() - after.keys():
            gone.setdefault((before[name], Path(name).suffix), []).append(name)
        added, renamed = [], []
        for name in sorted(after.keys() - before.keys()):
            if same := gone.get((after[name], Path(name).suffix)):
                renamed.append((same.pop(), name))
            else:
                added.append(name)
        both = before.keys() & after.keys()
        changed = sorted(name for name in both if before[name] != after[name])
        removed = sorted(name for names in gone.values() for name in names)
        return cls(added, changed, removed, renamed, len(both) - len(changed))

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.removed or self.renamed)
