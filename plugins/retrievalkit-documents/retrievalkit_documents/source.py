"""Local documents: `documents:FOLDER` or `documents:FILE`.

Each document is a passage whose id is its path in the folder, so ids do not depend on other documents. In
`documents:FOLDER/./PATH`, as in rsync, ids are relative to FOLDER: the same ids as in the whole folder.
Commands accept a folder of documents without the prefix; `rkit convert --passages` cuts the documents into passages.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import Any

from retrievalkit.data import files
from retrievalkit.data.corpus import Columns, plain_passage
from retrievalkit.data.same_text import PLAIN, plain_fields
from retrievalkit.data.sources import Source
from retrievalkit.errors import DataError, OptionError
from retrievalkit.reporting import notices
from retrievalkit_documents.cutting import Cutter, cutter, outline_of
from retrievalkit_documents.listing import EXCLUDED, documents_below, identifier_of
from retrievalkit_documents.readers import CODE, READERS
from retrievalkit_documents.tables import TABLES, read_table, reason_of
from retrievalkit_documents.text import Document, UnreadableError
from retrievalkit_documents.workers import read_documents

LIMITS = dict.fromkeys(READERS, math.inf) | {
    ending: files.LONGEST_LINE
    for ending, reader in READERS.items()
    if reader.startswith(("plain", "html", "markdown", "mail", "notebook", "rst"))
}
"""File extension -> maximum size of a file in bytes; readers limit the text of the others themselves."""
EVERY = LIMITS | dict.fromkeys(TABLES, math.inf)
"""The limits of documents and tables."""
_OURS = (".jsonl", ".json", ".tsv", ".gz", ".zst")
_ABOUT = ("readme", "license", "licence")


class Documents(Source):
    """Documents as passages: `documents:FOLDER`, `documents:FILE`, `documents:A/./B`.

    A row of a table is a passage, whose id is the path of the table and the id of the row. Files that `.rkitignore`
    excludes, hidden files, packages and caches are skipped, and listed. Notes count and name all other skipped files
    (documents that cannot be read as text, files of other types, links to folders and links out of the folder, which
    are not followed), and count what documents contain besides text.
    """

    content_hashed = True
    root: Path

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.path = files.existing(name)
        self.address = name
        root, mark, _ = name.rpartition("/./")
        self._others: dict[str, list[str]] = {}  # reason -> other files
        self.root = Path(root or "/") if mark else self.path if os.path.isdir(self.path) else self.path.parent

    @classmethod
    def address_of(cls, path: str | Path, root: str | Path | None = None) -> str | None:
        """Return the address of a document, or of a folder of documents without other data; None for other paths."""
        if not _holds_documents(Path(path)):
            return None
        if root is None:
            return f"documents:{path}"
        inside = os.path.relpath(path, root)
        if inside.split(os.sep)[0] == os.pardir:
            msg = f"'{path}' is not in the root '{root}'. Give a folder that contains all documents."
            raise OptionError(msg)
        return f"documents:{root}/./{inside}"

    @staticmethod
    def cutter(model: Any, passages: int | None, stride: int | None) -> tuple[Cutter, dict[str, Any]]:
        """Return a function that cuts texts by tokens of a model, and its settings for a manifest."""
        from retrievalkit.contracts.commands import open_retriever  # imports models

        retriever = open_retriever(model)
        cut = cutter(passages, stride, retriever)
        return cut, cut.settings | {"tokenizer": retriever.fingerprint}

    def passages(self) -> Iterator[dict[str, Any]]:
        """Yield the documents, by path."""
        unread: dict[str, list[str]] = {}
        left: dict[str, list[int]] = {}
        count = 0
        for (identifier, path), document in read_documents(self._documents, _document_of):
            if document is None:
                try:
                    rows, note = read_table(path, Columns())
                except (DataError, UnreadableError) as error:
                    unread.setdefault(reason_of(error, path), []).append(identifier)
                    continue
                if note:
                    unread.setdefault(note, []).append(identifier)
                count += bool(rows)
                for passage in rows:
                    plain = plain_passage(replace(passage, id=f"{identifier}/{passage.id}"))
                    fields = {"metadata": dict(plain.fields)} if plain.fields else {}
                    yield {"id": plain.id, "title": plain.title, "text": plain.text, "text_form": PLAIN, **fields}
                continue
            if not isinstance(document, Document):
                unread.setdefault(str(document), []).append(identifier)
                continue
            count += 1
            for kind, number in document.left.items():
                left.setdefault(kind, []).append(number)
            title = document.title or PurePosixPath(identifier).stem
            metadata = {"metadata": plain_fields(document.fields)} if document.fields else {}
            row = {"id": identifier, "title": title, "text": document.text, "outline": outline_of(document)}
            yield row | {"text_form": PLAIN} | metadata
        if not count:
            msg = f"no document can be read: {files.grouped(unread)}. Give documents with text in them."
            raise DataError(msg, file=self.path)
        excluded = {reason: names for reason, names in self._others.items() if reason in EXCLUDED}
        unread |= {reason: names for reason, names in self._others.items() if reason not in EXCLUDED}
        if excluded:
            notices.note(f"Excluded in '{self.path}': {files.grouped(excluded)}.", harmless=True)
        if unread:
            total = sum(map(len, unread.values()))
            reasons = files.grouped(unread)
            notices.note(f"Not read: {total:,} of the {total + count:,} files of '{self.path}', {reasons}.")
        if left:
            notices.note(f"Not read in the documents of '{self.path}': {counts_of(left)}.")

    def fingerprint(self) -> str:
        """Return a hash of the names and contents of the documents."""
        from retrievalkit.contracts.commands import fingerprint_value  # imports models

        return fingerprint_value([[identifier, files.fingerprint(path)] for identifier, path in self._documents])

    def size(self) -> int | None:
        """Return the number of documents; None if there are tables, which have many passages."""
        paths = [path for _, path in self._documents]
        return None if any(_document_of(("", path)) is None for path in paths) else len(paths)

    @cached_property
    def _documents(self) -> list[tuple[str, Path]]:
        """The documents with their ids."""
        if os.path.isdir(self.path):
            paths = [path for _, path in documents_below(self.path, EVERY, self._others)]
        else:
            paths = [self.path] * (_is_document(self.path) or self.path.suffix.lower() in TABLES)
        if not paths:
            contents = files.listing(self.path) if os.path.isdir(self.path) else self.path.name
            msg = f"it contains no documents ({', '.join(READERS)}), but {contents}. Give a folder of documents."
            raise DataError(msg, file=self.path)
        return sorted((identifier_of(path.relative_to(self.root)), path) for path in paths)


def counts_of(left: Mapping[str, Sequence[int]]) -> str:
    """Format the number of each kind of content, and of the documents with it."""
    kinds = sorted(left.items(), key=lambda item: -sum(item[1]))
    return "; ".join(f"{kind} ({sum(counts):,} in {len(counts):,} files)" for kind, counts in kinds)


def _holds_documents(path: Path) -> bool:
    if os.path.isdir(path):
        visible = [name for name in files.names_in(path) if not name.startswith(".")]
        if any(name == "qrels" or name.lower().endswith(_OURS) for name in visible):
            return False
        tables = any(name.lower().endswith(".csv") for name in visible)
        # A README next to tables describes them; it is not a document.
        return any(
            _is_document(file) and file.suffix.lower() not in CODE and not (tables and file.stem.lower() in _ABOUT)
            for _, file in documents_below(path, LIMITS, {})
        )
    if not _is_document(path) or path.suffix.lower() != ".txt":
        return _is_document(path)
    try:
        first = next(files.filled_lines(path), None)
    except DataError:
        return True  # reading it as a document reports the problem
    # Otherwise it is judgements, a run, a table or JSON.
    if first is None or "\t" in first.text or first.text.lstrip()[0] in "{[":
        return False
    cells = first.text.split()
    return len(cells) not in (3, 4, 6) or not any(cell.replace(".", "", 1).isdecimal() for cell in cells[2:])


def _document_of(item: tuple[str, Path]) -> Path | None:
    """Return the path of a document; None for a table."""
    return None if item[1].suffix.lower() in TABLES else item[1]


def _is_document(path: Path) -> bool:
    return path.suffix.lower() in READERS and os.path.isfile(path)
