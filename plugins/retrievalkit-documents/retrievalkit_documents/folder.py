"""Reads a folder of documents: its files, the passages of each, and the changes since the last reading.

A file counts as changed if its size or times differ from the last reading and its content does too. Its passages depend
only on its content and file extension, except for their ids, which begin with its path.

A reading is written part by part, so that the next one continues where it was killed:

    0000.jsonl               passages of the first files, by path
    0000.json                these files, written after the passages
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Ge

from retrievalkit.contracts.commands import ProgressBar, read_document
from retrievalkit.data.corpus import Columns, Passage, open_corpus, passage_of, plain_passage, write_corpus
from retrievalkit.data.files import fingerprint
from retrievalkit.data.records import Record
from retrievalkit.errors import ArtifactError, DataError, RetrievalkitError
from retrievalkit_documents.cutting import Cutter, outline_of
from retrievalkit_documents.listing import documents_below
from retrievalkit_documents.source import EVERY
from retrievalkit_documents.tables import TABLES, read_table, reason_of
from retrievalkit_documents.text import Document, UnreadableError
from retrievalkit_documents.workers import read_documents

_SECONDS, _PASSAGES = 5.0, 10_000
"""A part of a reading ends after this time, or with this number of passages."""

_UNSETTLED = 2_000_000_000
"""Nanoseconds: a file changed this shortly before it is read may change again with the same timestamp."""

Row = tuple[tuple[int, ...], str, Annotated[int, Ge(0)], str, str, dict[str, int]]
"""The values of a `File`."""

_Read = tuple[str, "File", list[Passage]]
"""A file by its path, and its passages."""


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
        left: Content that is not in its text: kind, such as "images" -> number.
    """

    stamp: tuple[int, ...]
    digest: str
    passages: int
    problem: str = ""
    note: str = ""
    left: Mapping[str, int] = field(default_factory=dict)

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

    def count(self, left: Mapping[str, int]) -> None:
        """Count the content of a file that is not in its text."""
        for kind, number in left.items():
            self.left.setdefault(kind, []).append(number)

    def groups(self) -> Iterator[tuple[str, list[Passage]]]:
        """Yield the path of each file with its passages."""
        if self.passages is None:
            return
        corpus = open_corpus(self.passages)
        corpus.counts_empty = False
        stream, last = iter(corpus), next(reversed(self.files), "")
        for name, file in self.files.items():
            group = list(islice(stream, file.passages))
            if name == last:
                del stream  # closes the file: a killed reading may leave many
            yield name, group


@dataclass(frozen=True)
class Reader:
    """Converts files to passages.

    Attributes:
        open: Opens what cuts texts into passages.
        columns: The fields of tables.
    """

    open: Callable[[], Cutter]
    columns: Columns

    @cached_property
    def cut(self) -> Cutter:
        """Cuts texts into passages."""
        return self.open()

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
            whole = [plain_passage(replace(row, id=f"{name}/{row.id}")) for row in rows]
            if len({row.id for row in whole}) < len(whole):
                msg = "with ids that differ only in the form of their letters"
                raise UnreadableError(msg)
        elif isinstance(document, UnreadableError):
            raise document
        else:
            fields = {"id": name, "title": document.title, "text": document.text, "metadata": document.fields}
            whole = [plain_passage(passage_of(Record(str(path), 1, {**fields, "outline": outline_of(document)})))]
        parts = [part for passage in whole for part in self.cut(passage) if part.text.strip() or part.title]
        if not parts:
            msg = "without text"
            raise UnreadableError(msg)
        return parts, note


def read(
    folder: Path,
    before: State,
    reader: Reader,
    output: Path,
    *,
    parts: Path,
    exclude: Sequence[str] = (),
    retry: bool = True,
) -> State:
    """Read new and changed files of a folder, and write the passages of all files.

    Args:
        folder: The folder.
        before: The files and passages of the last reading with the same reader.
        reader: Converts a file to passages.
        output: The file to write the passages to.
        parts: The folder of the parts of this reading, and of a killed one with the same reader.
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
    killed = _parts_in(parts)
    known = {name: part for part in (before, *killed) for name in part.files}
    groups = {id(part): part.groups() for part in (before, *killed)}

    def unchanged(name: str) -> list[Passage]:
        return next(group for other, group in groups[id(known[name])] if other == name)  # all are in path order

    def checked() -> Iterator[_Check]:
        for name, path in paths:
            check = _Check(name, path, known[name].files[name] if name in known else None)
            check.look(retry=retry)
            yield check

    def files() -> Iterator[tuple[str, File, list[Passage]]]:
        for check, document in read_documents(checked(), lambda check: check.document):
            name, old, group = check.name, check.old, list[Passage]()
            if old is not None and (check.is_same or check.has_same_content) and known[name] is not before:
                state.count(old.left)
            if old is not None and check.is_same:
                yield name, old, unchanged(name)
                continue
            problem, note, left = check.problem, "", dict[str, int]()
            if check.has_same_content and old is not None:
                group, note, left = unchanged(name), old.note, dict(old.left)
            is_read = not (check.has_same_content or problem)
            if is_read:
                _ = reader.cut  # a model that cannot be opened ends the sync, not a file
            try:
                if is_read:
                    state.read += 1
                    group, note = reader.passages(check.path, name, document)
                    left = document.left if isinstance(document, Document) else left
                    state.count(left)
            except Exception as error:  # noqa: BLE001 - a parser may raise anything, and ends its file, not the folder
                problem = _reason(error, check.path)
            stamp = check.stamp
            settled = bool(stamp) and max(stamp[1:]) < time.time_ns() - _UNSETTLED
            yield name, File(stamp if settled else (), check.digest, len(group), problem, note, left), group

    with ProgressBar("read documents", len(paths), unit="files") as progress, output.open("wb") as whole:
        for number, part in enumerate(_in_parts(files()), len(killed)):
            state.files |= {name: file for name, file, _ in part}
            path = parts / f"{number:04d}.jsonl"
            write_corpus(path, (passage for _, _, group in part for passage in group))
            with path.open("rb") as passages:
                shutil.copyfileobj(passages, whole)
            written = path.with_suffix(".new")
            written.write_text(json.dumps(rows_of({name: file for name, file, _ in part})), encoding="ascii")
            os.replace(written, path.with_suffix(".json"))
            progress.update(len(state.files))
    return state


def rows_of(files: Mapping[str, File]) -> dict[str, list[Any]]:
    """Return the values of files, for JSON; `Row` reads them."""
    return {name: list(asdict(file).values()) for name, file in files.items()}


def _parts_in(folder: Path) -> list[State]:
    """Return the complete parts of killed readings."""
    folder.mkdir(parents=True, exist_ok=True)
    parts = list[State]()
    for number in count():
        path = folder / f"{number:04d}.json"
        if not path.exists():
            return parts
        try:
            rows = read_document(path, dict[str, Row], do="")
        except ArtifactError:  # its files are read again
            return parts
        parts.append(State({name: File(*row) for name, row in rows.items()}, path.with_suffix(".jsonl")))
    return parts


def _in_parts(files: Iterable[_Read]) -> Iterator[list[_Read]]:
    """Yield files with their passages in parts, each read within a few seconds."""
    part, start, passages = list[_Read](), time.monotonic(), 0
    for file in files:
        part.append(file)
        passages += len(file[2])
        if time.monotonic() - start > _SECONDS or passages > _PASSAGES:
            yield part
            part, start, passages = [], time.monotonic(), 0
    if part:
        yield part


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
