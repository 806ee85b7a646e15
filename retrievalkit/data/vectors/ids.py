"""The ids of a folder's texts, read from ids.txt on demand."""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, overload

import numpy as np

from retrievalkit.data.vectors.arrays import reading
from retrievalkit.storage import MappedFile

_CHUNK_BYTES = 1 << 24
_BATCH_BYTES = 1 << 20
_ASCII = 127
_SHORTEST = 2  # bytes of an id with its line break


class Ids(Sequence[str]):
    """The lines of a file as a sequence, with 8 bytes per line in memory instead of the lines.

    Raises:
        ArtifactError: The file cannot be read, is not UTF-8, or contains an invalid id.
    """

    def __init__(self, path: Path) -> None:
        with reading(path), path.open("rb") as stream:
            self._ends = _line_ends(stream)
            self._letters = np.frombuffer(MappedFile(stream).buffer, dtype=np.uint8)
        self._hashes: np.ndarray | None = None
        self._order = np.empty(0, dtype=np.int64)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        return self.take(np.array([range(len(self))[index]]))[0]

    def __iter__(self) -> Iterator[str]:
        for start in range(0, len(self), 65_536):
            yield from self[start : start + 65_536]

    def __len__(self) -> int:
        return len(self._ends)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(other) == len(self) and all(map(str.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def take(self, rows: np.ndarray) -> list[str]:
        """Return the ids at these rows."""
        rows = np.asarray(rows, dtype=np.int64)
        ends = self._ends[rows]
        starts = np.where(rows > 0, self._ends[rows - 1] + 1, 0)
        size = max(1, _BATCH_BYTES // int((ends - starts).max(initial=1)))
        parts = (slice(first, first + size) for first in range(0, len(rows), size))
        return [text for part in parts for text in self._decode(starts[part], ends[part])]

    def _decode(self, starts: np.ndarray, ends: np.ndarray) -> list[str]:
        """Decode the ids at these byte ranges; ASCII ids in one batch, ten times as fast as one by one."""
        positions = starts[:, None] + np.arange((ends - starts).max(initial=1))
        outside = positions >= ends[:, None]
        letters = self._letters[np.minimum(positions, len(self._letters) - 1)]
        letters[outside] = 0
        # numpy strings drop trailing NULs, and only in ASCII is each byte a character.
        if letters.max(initial=0) > _ASCII or ((letters == 0) & ~outside).any():
            ranges = zip(starts.tolist(), ends.tolist(), strict=True)
            return [self._letters[start:end].tobytes().decode() for start, end in ranges]
        texts: list[str] = letters.astype(np.uint32).view(f"U{letters.shape[1]}")[:, 0].tolist()
        return texts

    def rows(self, ids: Sequence[str]) -> np.ndarray:
        """(ids,) int64: the row of each id, or -1 if it is unknown.

        The first call reads all ids and keeps 16 bytes for each.
        """
        if self._hashes is None:
            hashes = np.fromiter((hash(identifier) for identifier in self), dtype=np.int64, count=len(self))
            self._order = np.argsort(hashes, kind="stable")
            self._hashes = hashes[self._order]
        wanted = np.fromiter((hash(identifier) for identifier in ids), dtype=np.int64, count=len(ids))
        result = np.full(len(ids), -1, dtype=np.int64)
        places, pending = np.searchsorted(self._hashes, wanted), np.arange(len(ids))
        # Different ids can share a hash, so each match is verified.
        while len(pending):
            pending = pending[places[pending] < len(self)]
            pending = pending[self._hashes[places[pending]] == wanted[pending]]
            rows = self._order[places[pending]]
            same = np.array(
                [ids[place] == id_ for place, id_ in zip(pending, self.take(rows), strict=True)], dtype=bool
            )
            result[pending[same]] = rows[same]
            pending = pending[~same]
            places[pending] += 1
        return result


def _line_ends(stream: IO[bytes]) -> np.ndarray:
    parts, base, last = [np.full(1, -1, dtype=np.int64)], 0, b"\n"
    decoder = codecs.getincrementaldecoder("utf-8")()
    while chunk := stream.read(_CHUNK_BYTES):
        decoder.decode(chunk)
        if b"\t" in chunk or b"\r" in chunk:
            msg = "an id contains a tab or a carriage return"
            raise ValueError(msg)
        parts.append(np.flatnonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")) + base)
        base, last = base + len(chunk), chunk[-1:]
    decoder.decode(b"", final=True)
    ends = np.concatenate(parts)
    if last != b"\n" or (np.diff(ends) < _SHORTEST).any():
        msg = "an id is empty, or the last line is cut off"
        raise ValueError(msg)
    return ends[1:]
