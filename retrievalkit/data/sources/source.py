"""The contract of a source: a named provider of passages, queries, judgements or training examples.

A source is one class. The hook `register_sources` registers it under a prefix, and every command then accepts
`prefix:NAME` wherever it accepts a file:

    class Films(Source):
        '''Films of our database: `films:1990s`.'''

        def passages(self):
            for film in database.films(self.name):
                yield {"id": film.id, "title": film.title, "text": film.plot}

    @hookimpl
    def register_sources(register):
        register("films", "my_package.films:Films")

Rows have the keys of any known file format (`data.forms`); the reader checks ids, texts and duplicates.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import Any, ClassVar, Literal, get_args

from retrievalkit.data.json_text import shown
from retrievalkit.data.records import Record
from retrievalkit.errors import DataError
from retrievalkit.storage import fingerprint_value, json_problem

Part = Literal["passages", "queries", "judgements", "examples"]
PARTS: tuple[Part, ...] = get_args(Part)

Row = Record | Mapping[str, Any]
"""A row of a source: a mapping, or a `Record` if file and line are known for error messages."""


class Source:
    """A provider of data. A subclass overrides the methods for the parts that it has.

    Attributes:
        name: The address after the prefix, such as "1990s" in `films:1990s`; the path, for a file format.
        address: The whole address as the user wrote it. Set by `open_source`, for error messages.
        anonymous: True if a file named the source, not the user, so no credentials may be sent; set like `address`.
        reads_files: True if the registered name is also a file extension: a class registered as "films" reads
            `old.films` without a prefix.
        content_hashed: True if `fingerprint` covers the content and opening the source has no side effects. Otherwise
            the user must name the source: an index manifest, which may be untrusted, cannot.
        root: The folder in which ids are paths of files, if they are.
    """

    reads_files: ClassVar[bool] = False
    content_hashed: ClassVar[bool] = False
    address: str = ""
    anonymous: bool = False
    root: Path | None = None

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @classmethod
    def address_of(cls, path: str | Path, root: str | Path | None = None) -> str | None:  # noqa: ARG003
        """Return the address of a path that this source reads without its prefix, with ids relative to `root`.

        Only the source named `documents` is tried; None for paths of other sources.
        """
        return None

    def passages(self) -> Iterable[Row]:
        """Return the corpus: rows such as {"id": ..., "title": ..., "text": ...}, always in the same order."""
        raise NotImplementedError

    def queries(self) -> Iterable[Row]:
        """Return the queries: rows such as {"query_id": ..., "text": ...}, with "answers" (texts) if known."""
        raise NotImplementedError

    def judgements(self, split: str) -> Iterable[Row]:
        """Return the relevance judgements of a split: rows such as {"query_id": ..., "doc_id": ..., "score": 1}."""
        raise NotImplementedError

    def examples(self, split: str) -> Iterable[Row]:
        """Return the examples: rows such as {"query_id": ..., "query": ..., "positives": [ids], "negatives": [ids]}.

        A source without examples, but with queries and judgements, has an example for each query with a positive grade.
        """
        raise NotImplementedError

    def _rows(self, part: Part, split: str) -> Iterable[Row]:
        """Return the rows of a part, from the method of that name; overridden if all parts are read the same way."""
        rows: Iterable[Row] = getattr(self, part)(*(() if part in ("passages", "queries") else (split,)))
        return rows

    def parts(self) -> tuple[Part, ...] | None:
        """Return the parts that the source has; None if they depend on its rows, as with a file.

        By default, the parts whose methods the class overrides.
        """
        return tuple(part for part in PARTS if getattr(type(self), part) is not getattr(Source, part))

    def splits(self) -> list[str]:
        """Return the splits with judgements."""
        return ["test"]

    def holds(self, part: Part, split: str = "test") -> bool:  # noqa: ARG002 - for sources with parts by split
        """True if the source may contain a part."""
        parts = self.parts()
        return parts is None or part in parts

    def fingerprint(self) -> str:
        """Return a text that changes whenever the content changes.

        By default, a hash of all rows; override it if a version number or date identifies the content.
        """
        digest = hashlib.blake2b(digest_size=16)
        for part in self.parts() or PARTS:
            for split in ("train", *self.splits()) if part == "examples" else self.splits():
                for record in self.records(part, split):
                    try:
                        row = json.dumps([part, split, record.fields], default=str, skipkeys=True)
                    except (ValueError, RecursionError) as error:
                        msg = f"a value cannot be read: {json_problem(error)}. Remove it."
                        raise record.error(msg) from None
                    digest.update(row.encode())
                if part in ("passages", "queries"):
                    break  # the same for all splits
        return digest.hexdigest()

    def corpus_fingerprint(self) -> str:
        """Return the fingerprint of the passages alone, if they are stored separately."""
        return self.fingerprint()

    def size(self) -> int | None:
        """Return the number of passages, for progress bars; None if unknown without reading them."""
        return None

    def plain_files(self) -> tuple[Path, ...]:
        """Files in which the byte positions of a record locate its passage; () if there are none."""
        return ()

    def example_files(self, split: str) -> tuple[Path, ...]:  # noqa: ARG002 - for sources with files
        """Files in which the byte positions of a record locate its training example; () if there are none."""
        return ()

    def records(self, part: Part, split: str = "test") -> Iterator[Record]:
        """Yield the rows of a part with their locations.

        Raises:
            DataError: The source lacks the part, or yields something other than a row.
        """
        if not self.holds(part, split):
            parts = ", ".join(self.parts() or ()) or "nothing"
            msg = f"'{self.address}' has no {part}; it has {parts}."
            raise DataError(msg)
        for number, row in enumerate(self._rows(part, split), 1):
            if isinstance(row, Record):
                yield row
            elif isinstance(row, Mapping):
                yield Record(self.address, number, dict(row))
            else:
                msg = f"row {number} of the {part} is {shown(row)}, but should be a mapping of field names to values."
                raise DataError(msg, file=self.address)


class InMemory(str):
    """An address that carries in-memory data: the Python counterpart of a file on the command line.

    It is passed on, named in messages and manifests, and opened like any other address.

    Attributes:
        parts: Part ("passages", "queries", "judgements", "examples") -> its rows, the same at every iteration.
        run: Query -> hits, if the address is a run.
    """

    _unit = "row"  # in messages, which count the lines of a file
    parts: dict[Part, Iterable[Row]]
    run: Any

    @classmethod
    def of(cls, name: str, *, run: Any = None, **parts: Iterable[Row]) -> InMemory:
        """Create the address `name` for these rows or this run."""
        address = cls(name)
        address.parts = {part: parts[part] for part in PARTS if part in parts}
        address.run = run
        return address


class Memory(Source):
    """The source of an `InMemory` address."""

    def __init__(self, address: InMemory) -> None:
        super().__init__(address)
        self.address, self._run, self._parts = address, address.run, address.parts

    def parts(self) -> tuple[Part, ...]:
        """Return the parts with rows."""
        return tuple(self._parts)

    def _rows(self, part: Part, split: str) -> Iterable[Row]:  # noqa: ARG002 - there is one split
        return self._parts[part]

    def fingerprint(self) -> str:
        """Return a fingerprint of the rows, or of the run."""
        return super().fingerprint() if self._run is None else fingerprint_value(self._run)

    def size(self) -> int | None:
        """Return the number of passages."""
        passages = self._parts.get("passages")
        return len(passages) if isinstance(passages, Sized) else None
