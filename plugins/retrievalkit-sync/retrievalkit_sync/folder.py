"""Reads a folder of documents: its files, the passages of each, and the changes since the last reading.

A file counts as changed if its size or times differ from the last reading and its content does too. Its passages depend
only on its content and file extension, except for their ids, which begin with its path.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from retrievalkit.contracts.commands import kind_of
from retrievalkit.data.columns import Columns, open_own
from retrievalkit.data.corpus import Passage, open_corpus, passage_of, write_corpus
from retrievalkit.data.passage_parts import parts_of
from retrievalkit.data.records import Record
from retrievalkit.data.sources import READERS, UnreadableError, read_document
from retrievalkit.errors import DataError, RetrievalkitError

TABLES = (".csv", ".jsonl")
_HIDDEN = (".", "~$")  # ~$ begins the locks of Word
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
    """

    stamp: tuple[int, ...]
    digest: str
    passages: int
    problem: str = ""

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
    """

    files: dict[str, File] = field(default_factory=dict)
    passages: Path | None = None
    others: dict[str, list[str]] = field(default_factory=dict)
    read: int = 0

    @property
    def documents(self) -> dict[str, str]:
        """The path of each file with passages -> the fingerprint of its content."""
        return {name: file.digest for name, file in self.files.items() if not file.problem}

    @property
    def skipped(self) -> dict[str, list[str]]:
        """Paths of all files without passages, by reason."""
        reasons: dict[str, list[str]] = {}
        for name, file in self.files.items():
            if file.problem:
                reasons.setdefault(file.problem, []).append(name)
        return reasons | self.others

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

    def passages(self, path: Path, name: str) -> list[Passage]:
        """Return the passages of a file; ids begin with its name.

        Raises:
            UnreadableError: The file has no passages, or its name cannot be an id.
            DataError: The file cannot be read.
        """
        try:
            Record(str(path), 1, {"path": name}).identifier("path")
        except DataError:
            msg = "with a name that cannot be an id"
            raise UnreadableError(msg) from None
        if path.suffix.lower() in TABLES:
            whole = [replace(row, id=f"{name}/{row.id}") for row in self._rows(path)]
        else:
            title, text, fields = read_document(path, "")
            whole = [passage_of(Record(str(path), 1, {"id": name, "title": title, "text": text, "metadata": fields}))]
        parts = [part for passage in whole for part in parts_of(passage, self.cut) if part.text.strip() or part.title]
        if not parts:
            msg = "without text"
            raise UnreadableError(msg)
        return parts

    def _rows(self, path: Path) -> list[Passage]:
        """Return the rows of a table, by the user's fields, or by the default fields if it lacks these."""
        try:
            return _loaded(path, self.columns)
        except DataError:
            if self.columns != Columns():
                with suppress(DataError):
                    return _loaded(path, Columns())
            raise


def _loaded(path: Path, columns: Columns) -> list[Passage]:
    table = open_own(path, columns)
    table.counts_empty = False
    return list(table)


def read(folder: Path, before: State, reader: Reader, output: Path, *, retry: bool = True) -> State:
    """Read new and changed files of a folder, and write the passages of all files.

    Args:
        folder: The folder.
        before: The files and passages of the last reading with the same reader.
        reader: Converts a file to passages.
        output: The file to write the passages to.
        retry: Read unchanged files again if they could not be read last time.

    Raises:
        DataError: The folder, or one inside it, cannot be listed.
    """
    state = State(passages=output)
    files = sorted(_files(folder, state.others))
    same = [name for name, _ in files] == list(before.files)
    if same and all(before.files[name].is_at(path, retry=retry) for name, path in files):
        return replace(before, others=state.others, read=0)
    known = before.groups()

    def unchanged(name: str) -> list[Passage]:
        return next(group for other, group in known if other == name)  # both are in path order

    def passages() -> Iterator[Passage]:
        for name, path in files:
            old = before.files.get(name)
            group: list[Passage] = []
            stamp: tuple[int, ...] = ()
            digest, problem = "", ""
            if old is not None and old.is_at(path, retry=retry):
                state.files[name] = old
                yield from unchanged(name)
                continue
            try:
                stamp = _stamp(path)
                digest = fingerprint(path)
                if old is not None and old.digest == digest and not old.problem:
                    group = unchanged(name)
                else:
                    state.read += 1
                    group = reader.passages(path, name)
            except (UnreadableError, RetrievalkitError, OSError) as error:
                problem = _reason(error, path)
            settled = bool(stamp) and max(stamp[1:]) < time.time_ns() - _UNSETTLED
            state.files[name] = File(stamp if settled else (), digest, len(group), problem)
            yield from group

    write_corpus(output, passages())
    return state


def _files(folder: Path, others: dict[str, list[str]]) -> Iterator[tuple[str, Path]]:
    """Yield relative path and path of each readable file in a folder; other files are listed by reason."""

    def refuse(error: OSError) -> None:
        msg = f"cannot list the folder '{error.filename}': {error.strerror}. Nothing was changed. Make it readable."
        raise DataError(msg) from error

    for parent, folders, names in os.walk(folder, onerror=refuse):
        inside = Path(parent).relative_to(folder)
        visible = sorted(name for name in folders if not name.startswith(_HIDDEN))
        links = {name for name in visible if os.path.islink(os.path.join(parent, name))}
        ours = {name for name in visible if kind_of(os.path.join(parent, name)) is not None}
        for reason, skipped in (("links to folders", links), ("folders that rkit wrote", ours - links)):
            for name in sorted(skipped):
                others.setdefault(reason, []).append((inside / name).as_posix())
        folders[:] = [name for name in visible if name not in links | ours]
        for name in sorted(name for name in names if not name.startswith(_HIDDEN)):
            path, ending = Path(parent, name), os.path.splitext(name)[1].lower()
            if ending not in READERS and ending not in TABLES:
                others.setdefault(ending or "no extension", []).append((inside / name).as_posix())
            elif not path.is_file():
                others.setdefault("not a regular file", []).append((inside / name).as_posix())
            else:
                yield (inside / name).as_posix(), path


def fingerprint(path: Path) -> str:
    """Return a fingerprint of the content of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, lambda: hashlib.blake2b(digest_size=16)).hexdigest()


def _stamp(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _reason(error: Exception, path: Path) -> str:
    """Return the reason why a file is not read; without its name, so that files are grouped by reason."""
    if isinstance(error, OSError):
        return error.strerror or str(error)
    line = getattr(error, "line", None)
    text = str(error).removeprefix(f"{path}:").removeprefix(f"{line}:").strip().replace(f"'{path}'", "the file")
    return text if line is None else f"line {line}: {text}"


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
