"""Local documents: `documents:FOLDER` or `documents:FILE`, with .txt, .md, .html, .pdf and .docx files.

Each document is a passage whose id is its path in the folder, so ids do not depend on other documents. In
`documents:FOLDER/./PATH`, as in rsync, ids are relative to FOLDER: the same ids as in the whole folder.
`rkit convert FOLDER OUT` accepts a folder without the prefix; `--passages` cuts the documents into passages.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

from retrievalkit.data import files
from retrievalkit.data.records import id_problem
from retrievalkit.data.sources.document_text import READERS, UnreadableError, read_document
from retrievalkit.data.sources.local import ABOUT
from retrievalkit.data.sources.source import Source
from retrievalkit.errors import DataError, OptionError
from retrievalkit.reporting import notices
from retrievalkit.storage import fingerprint_value

_OURS = (".jsonl", ".json", ".tsv", ".gz", ".zst")


class Documents(Source):
    """Text, Markdown, HTML, PDF and Word files as passages: `documents:FOLDER`, `documents:FILE`, `documents:A/./B`.

    Hidden files and folders are skipped. A note counts and names all other skipped files: documents that cannot be
    read as text, files of other types, and links to folders, which are not followed.

    Attributes:
        root: The base folder of the ids.
    """

    content_hashed = True

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.path = files.existing(name)
        self.address = name
        root, mark, _ = name.rpartition("/./")
        self.root = Path(root or "/") if mark else self.path if os.path.isdir(self.path) else self.path.parent

    def passages(self) -> Iterator[dict[str, Any]]:
        """Yield the documents, by path."""
        unread: dict[str, list[str]] = {}
        count = 0
        for identifier, path in self._documents:
            try:
                title, text, fields = read_document(path, identifier)
            except UnreadableError as error:
                unread.setdefault(str(error), []).append(identifier)
                continue
            count += 1
            yield {"id": identifier, "title": title, "text": text, **({"metadata": fields} if fields else {})}
        if not count:
            msg = f"no document can be read: {files.grouped(unread)}. Give documents with text in them."
            raise DataError(msg, file=self.path)
        for path in self._files:
            if not _is_document(path):
                kind = "links to folders" if os.path.isdir(path) else path.suffix.lower() or "no extension"
                unread.setdefault(kind, []).append(path.relative_to(self.root).as_posix())
        if unread:
            total = sum(map(len, unread.values()))
            reasons = files.grouped(unread)
            notices.note(f"Not read: {total:,} of the {total + count:,} files of '{self.path}', {reasons}.")

    def fingerprint(self) -> str:
        """Return a hash of the names and contents of the documents."""
        return fingerprint_value([[identifier, files.fingerprint(path)] for identifier, path in self._documents])

    def size(self) -> int:
        """Return the number of documents."""
        return len(self._documents)

    @cached_property
    def _files(self) -> list[Path]:
        return list(_below(self.path)) if os.path.isdir(self.path) else [self.path]

    @cached_property
    def _documents(self) -> list[tuple[str, Path]]:
        """The documents with their ids."""
        documents = sorted((path.relative_to(self.root).as_posix(), path) for path in self._files if _is_document(path))
        if not documents:
            contents = files.listing(self.path) if os.path.isdir(self.path) else self.path.name
            msg = f"it contains no documents ({', '.join(READERS)}), but {contents}. Give a folder of documents."
            raise DataError(msg, file=self.path)
        for identifier, path in documents:
            if problem := id_problem(identifier):
                msg = f"the path is the id of the document, and {problem} Rename the file."
                raise DataError(msg, file=ascii(str(path)))
        return documents


def as_documents(source: str | Path, root: str | Path | None = None) -> str | Path:
    """Return the address of a source: `documents:PATH` for a document or a folder of documents without other data.

    Args:
        source: A file, a folder or an address.
        root: The base folder of the document ids; None = the folder itself.
    """
    if not _holds_documents(Path(source)):
        if root is not None:
            msg = f"root sets the base folder of document ids, but '{source}' has ids of its own. Leave it out."
            raise OptionError(msg)
        return source
    if root is None:
        return f"documents:{source}"
    inside = os.path.relpath(source, root)
    if inside.split(os.sep)[0] == os.pardir:
        msg = f"'{source}' is not in the root '{root}'. Give a folder that contains all documents."
        raise OptionError(msg)
    return f"documents:{root}/./{inside}"


def _holds_documents(path: Path) -> bool:
    if os.path.isdir(path):
        visible = [name for name in files.names_in(path) if not name.startswith(".")]
        if any(name == "qrels" or name.lower().endswith(_OURS) for name in visible):
            return False
        tables = any(name.lower().endswith(".csv") for name in visible)
        # A README next to tables describes them; it is not a document.
        return any(_is_document(file) and not (tables and file.stem.lower() in ABOUT) for file in _below(path))
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


def _is_document(path: Path) -> bool:
    return path.suffix.lower() in READERS and os.path.isfile(path)


def _below(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder and its subfolders, and links to folders, except hidden ones."""

    def refuse(error: OSError) -> None:
        msg = f"cannot read the folder '{error.filename}': {error.strerror}. Check its permissions."
        raise DataError(msg)

    for parent, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        links = [name for name in folders if os.path.islink(os.path.join(parent, name))]
        yield from (Path(parent, name) for name in sorted([*names, *links]) if not name.startswith("."))
