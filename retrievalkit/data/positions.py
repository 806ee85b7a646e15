"""Memory-efficient detection of duplicate ids, and lookup of a record's file position by its id.

Ids are kept as 64-bit hashes, 8 bytes each. Equal hashes are verified in the file, so a collision costs time but never
gives a wrong result.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from retrievalkit.data.files import LONGEST_LINE, reading, stamp
from retrievalkit.data.records import Record, Table, parse_record
from retrievalkit.errors import DataError

_PLAIN_ID = re.compile(r"[\w.:/@#+-]+", re.ASCII)  # written in JSON without escapes

Identified = Callable[[], Iterator[tuple[Record, str]]]


class Duplicates:
    """Detection of duplicate ids; `identified` creates a new iterator over (record, id), to locate them."""

    def __init__(self, identified: Identified) -> None:
        self._identified = identified
        self.hashes = array("q")
        self._next = 1024

    def add(self, identifier: str) -> None:
        """Add the next id."""
        self.hashes.append(hash(identifier))
        if len(self.hashes) == self._next:
            self.check()
            self._next *= 2

    def check(self) -> None:
        """Check the ids added so far."""
        import numpy

        ordered = numpy.sort(_int64(self.hashes))
        repeated = set(ordered[1:][ordered[1:] == ordered[:-1]].tolist())
        first: dict[str, Record] = {}
        for record, identifier in self._identified() if repeated else ():
            if hash(identifier) in repeated:
                if identifier in first:
                    raise record.duplicated(identifier, first[identifier])
                first[identifier] = record


class Places:
    """Plain files whose records are read by their position in the concatenated files.

    `stamps` are the stamps of the files when they were opened; by default, the current ones.
    """

    def __init__(
        self, files: tuple[Path, ...], tables: list[Table | None], stamps: Sequence[tuple[int, int]] | None = None
    ) -> None:
        import numpy

        self._files = files
        self._tables = tables
        self._stamps = list(map(stamp, files)) if stamps is None else stamps
        self._bases = numpy.cumsum([0, *(size for size, _ in self._stamps)])
        self._base_of = dict(zip(map(str, files), self._bases.tolist(), strict=False))

    def start(self, record: Record) -> int:
        """Return the start of a record."""
        return int(self._base_of[record.file]) + record.start

    def read(self, start: int, size: int) -> Record:
        """Read the record of `size` bytes at `start`."""
        number = int(self._bases.searchsorted(start, side="right")) - 1
        file = self._files[number]
        with reading(file), file.open("rb") as stream:
            stream.seek(start - int(self._bases[number]))
            raw = stream.read(size)
            # After the read, so that a change during it is seen too.
            check_stamp(file, stream.fileno(), self._stamps[number])
        return parse_record(raw, str(file), self._tables[number])


def check_stamp(file: Path, descriptor: int, expected: tuple[int, int]) -> None:
    """Refuse a file that was modified after it was opened."""
    if stamp(descriptor) != expected:
        msg = "the file changed while it was being read. Start again."
        raise DataError(msg, file=file)


class Positions:
    """The position of each record in plain files, by its id: 24 bytes per record."""

    def __init__(self, places: Places, identified: Identified) -> None:
        import numpy

        self._places = places
        duplicates, starts, sizes = Duplicates(identified), array("q"), array("q")
        for record, identifier in identified():
            duplicates.add(identifier)
            starts.append(self._places.start(record))
            sizes.append(record.end - record.start)
        duplicates.check()
        order = numpy.argsort(_int64(duplicates.hashes), kind="stable")
        self._hashes = _int64(duplicates.hashes)[order]
        self._starts = _int64(starts)[order]
        self._sizes = _int64(sizes)[order]

    def __len__(self) -> int:
        return len(self._hashes)

    def missing(self, identifiers: Iterable[str]) -> set[str]:
        """Return the ids that have no record."""
        import numpy

        wanted = list(identifiers)
        hashes = numpy.array([hash(identifier) for identifier in wanted], dtype=numpy.int64)
        places = numpy.minimum(numpy.searchsorted(self._hashes, hashes), len(self) - 1)
        return {wanted[place] for place in numpy.flatnonzero(self._hashes[places] != hashes).tolist()}

    def candidates(self, identifier: str) -> Iterator[Record]:
        """Yield the records whose id has the same hash: almost always one record or none."""
        place = int(self._hashes.searchsorted(hash(identifier)))
        while place < len(self) and self._hashes[place] == hash(identifier):
            yield self._places.read(int(self._starts[place]), int(self._sizes[place]))
            place += 1


def lines_with(
    file: Path, names: Sequence[str], identifiers: Iterable[str], expected: tuple[int, int]
) -> Iterator[Record]:
    """Scan a JSON lines file for records that seem to have one of the ids, without parsing other lines.

    The result is approximate: ids written with escapes are missed, and extra records are possible.
    """
    plain = [re.escape(identifier) for identifier in identifiers if _PLAIN_ID.fullmatch(identifier)]
    field = rf'"(?:{"|".join(names)})"[ \t]*:[ \t]*"?(?:{"|".join(plain)})"?[ \t]*[,}}]'
    search = re.compile(field.encode()).search
    with reading(file), file.open("rb") as stream:
        for line in iter(partial(stream.readline, LONGEST_LINE), b"") if plain else ():
            if search(line):
                yield parse_record(line, str(file), None)
        check_stamp(file, stream.fileno(), expected)


def _int64(values: array[int]) -> Any:
    import numpy

    return numpy.frombuffer(values, dtype=numpy.int64) if values else numpy.empty(0, dtype=numpy.int64)
