"""Counts the empty texts of a source."""

from __future__ import annotations

from retrievalkit import oddities

_SHOWN = 3


class Blanks:
    """The empty texts among those of a source.

    Args:
        kind: What the texts are, in the plural.
        source: Where they come from.
    """

    def __init__(self, kind: str, source: str) -> None:
        self.kind = kind
        self.source = source
        self._seen = self._empty = 0
        self._first: list[str] = []

    def see(self, identifier: str, *parts: str) -> None:
        """Count a text, which may have several parts, such as a title."""
        self._seen += 1
        if any(part and not part.isspace() for part in parts):
            return
        self._empty += 1
        if len(self._first) < _SHOWN:
            self._first.append(identifier)

    def tell(self) -> None:
        """Tell `oddities` how many were empty, once all are seen.

        Raises:
            InputError: There are some, and the command is strict.
        """
        oddities.empty(self.kind, self.source, self._seen, self._empty, self._first)
