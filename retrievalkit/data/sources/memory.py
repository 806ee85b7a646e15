"""Rows in memory as a source: what a Python program gives where the command line names a file.

The address carries the rows. Programs hand it on, name it in messages and manifests and open it like any other.
"""

from __future__ import annotations

from collections.abc import Iterable, Sized
from typing import Any

from retrievalkit import storage
from retrievalkit.data.sources.source import PARTS, Part, Row, Source


class InMemory(str):
    """An address with its data: rows that `open_source` opens, or a run that `open_run` opens.

    Attributes:
        parts: Part ("passages", "queries", "judgements", "examples") -> its rows, the same at every iteration.
        run: Query -> hits, if it stands for a run.
    """

    _unit = "row"  # in messages, which count the lines of a file
    parts: dict[Part, Iterable[Row]]
    run: Any

    @classmethod
    def of(cls, name: str, *, run: Any = None, **parts: Iterable[Row]) -> InMemory:
        """The address `name` of these rows, or of this run."""
        made = cls(name)
        made.parts = {part: parts[part] for part in PARTS if part in parts}
        made.run = run
        return made


class Memory(Source):
    """The rows of an `InMemory`."""

    def __init__(self, address: InMemory) -> None:
        super().__init__(address)
        self.address, self._run = address, address.run
        self._held = address.parts

    def parts(self) -> tuple[Part, ...]:
        """The parts that were given."""
        return tuple(self._held)

    def _rows(self, part: Part, split: str) -> Iterable[Row]:  # noqa: ARG002 - there is one split
        """The rows that were given."""
        return self._held[part]

    def fingerprint(self) -> str:
        """A fingerprint of the rows, or of the run."""
        return super().fingerprint() if self._run is None else storage.fingerprint_value(self._run)

    def size(self) -> int | None:
        """The number of passages."""
        held = self._held.get("passages")
        return len(held) if isinstance(held, Sized) else None
