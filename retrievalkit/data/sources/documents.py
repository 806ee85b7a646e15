"""Documents on this machine: `documents:FOLDER`, every .txt, .md, .html and .pdf below a folder, or one such file.

Each is a passage: its path inside the folder is the id, so that ids stay when other documents come and go.
`rkit convert FOLDER OUT` takes such a folder without the prefix; `--passages` cuts the documents.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from retrievalkit import oddities
from retrievalkit.artifacts import fingerprint_value
from retrievalkit.data import files
from retrievalkit.data.records import id_problem
from retrievalkit.data.sources.document_text import READERS, UnreadableError, read_document
from retrievalkit.data.sources.source import Source
from retrievalkit.errors import DataError, shortlist

_OURS = (".jsonl", ".json", ".tsv", ".gz", ".zst")
_SHOWN = 3


class Documents(Source):
    """Text, Markdown, HTML and PDF files as passages: `documents:FOLDER` or `documents:FILE`.

    Hidden files and folders, and links to folders, are not followed. A document that cannot be read as text is left
    out, and the user is told.

    Raises:
        DataError: The path does not exist.
    """

    content_hashed = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.path = files.existing(name)
        self.address = name

    def passages(self) -> Iterator[dict[str, Any]]:
        """The documents, by path.

        Raises:
            DataError: None of them can be read.
        """
        left_out: dict[str, list[str]] = {}
        count = 0
        for identifier, path in self._documents:
            try:
                title, text = read_document(path, identifier)
            except UnreadableError as error:
                left_out.setdefault(str(error), []).append(identifier)
                continue
            count += 1
            yield {"id": identifier, "title": title, "text": text}
        if left_out:
            self._tell(left_out, count)

    def fingerprint(self) -> str:
        """A hash of the names and contents of the documents."""
        return fingerprint_value([[identifier, files.fingerprint(path)] for identifier, path in self._documents])

    def size(self) -> int:
        """The number of documents."""
        return len(self._documents)

    @cached_property
    def _documents(self) -> list[tuple[str, Path]]:
        """The documents with their ids."""
        if not os.path.isdir(self.path):
            return [(self.path.name, self.path)]
        found = sorted((path.relative_to(self.path).as_posix(), path) for path in _below(self.path))
        if not found:
            msg = f"the folder holds no document ({', '.join(READERS)}), but {files.listing(self.path)}."
            raise DataError(msg, file=self.path)
        for identifier, path in found:
            if problem := id_problem(identifier):
                msg = f"the path is the id of the document, and {problem} Rename the file."
                raise DataError(msg, file=ascii(str(path)))
        return found

    def _tell(self, left_out: dict[str, list[str]], count: int) -> None:
        """Tell which documents were left out, and why."""
        total = sum(map(len, left_out.values()))
        reasons = "; ".join(f"{why} ({len(names):,}): {shortlist(names, _SHOWN)}" for why, names in left_out.items())
        if not count:
            msg = f"no document can be read: {reasons}. Give documents with text in them."
            raise DataError(msg, file=self.path)
        oddities.note(f"{total:,} of the {total + count:,} documents of '{self.path}' are left out: {reasons}.")


def as_documents(source: str | Path) -> str | Path:
    """The address of a source: `documents:PATH` for a document or a folder of documents without other data."""
    path = Path(source)
    if os.path.isfile(path) and (path.suffix.lower() in READERS and not _is_table(path)):
        return f"documents:{source}"
    if not os.path.isdir(path) or any(name == "qrels" or name.endswith(_OURS) for name in files.names_in(path)):
        return source
    return f"documents:{source}" if next(_below(path), None) is not None else source


def _below(folder: Path) -> Iterator[Path]:
    """The documents in a folder and the folders in it."""

    def refuse(error: OSError) -> None:
        msg = f"cannot read the folder '{error.filename}': {error.strerror}. Check its permissions."
        raise DataError(msg)

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.suffix.lower() in READERS and os.path.isfile(path):
                yield path


def _is_table(path: Path) -> bool:
    """Whether a text file holds data rather than prose: judgements, a run, a table or JSON."""
    if path.suffix.lower() != ".txt":
        return False
    try:
        first = next(files.filled_lines(path), None)
    except DataError:
        return False  # reading it as a document says what is wrong
    if first is None or "\t" in first.text or first.text.lstrip()[0] in "{[":
        return True
    cells = first.text.split()
    return len(cells) in (3, 4, 6) and any(cell.replace(".", "", 1).isdecimal() for cell in cells[2:])
