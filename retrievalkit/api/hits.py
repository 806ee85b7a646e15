"""The hits of a query as they are read: with their texts, and with reasons."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, SupportsIndex, overload

from retrievalkit.report import notebook
from retrievalkit.report.table import Tabular
from retrievalkit.search.hits import DescribedHit, Found, reasons_of

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True)
class Hit:
    """A document that was found.

    Attributes:
        id: The document's id.
        score: Its score.
        title: Its title; "" if it has none.
        text: Its text; "" if the index does not know where its texts are.
        why: The reasons for the score as sentences, one for each index that has something to report.
        rank: 1 for the best.
        snippet: The part of the text that fits the query best.
        matches: (start, end) of the snippet's characters that are words of the query, or terms of the score.
        found: The reasons as values: rank, score, terms, nearest vector, pairs of tokens of each index.
    """

    id: str
    score: float
    title: str
    text: str
    why: tuple[str, ...]
    rank: int
    snippet: str
    matches: tuple[tuple[int, int], ...]
    found: tuple[Found, ...]

    @classmethod
    def of(cls, hit: DescribedHit) -> Hit:
        """A hit of the program."""
        why = tuple(reasons_of(hit))
        return cls(hit.id, hit.score, hit.title, hit.text, why, hit.rank, hit.snippet, hit.matches, hit.found)

    def __repr__(self) -> str:
        shown = {"title": self.title, "text": self.snippet, "why": "; ".join(self.why)}
        fields = "".join(f", {name}={value!r}" for name, value in shown.items() if value)
        return f"Hit(id={self.id!r}, score={self.score:.4f}{fields})"


class Hits(Sequence[Hit], Tabular):
    """The hits of one query, best first.

    Attributes:
        query: The text of the query; "" if it was a vector.
    """

    def __init__(self, query: str, hits: Iterable[Hit]) -> None:
        self.query = query
        self._hits = tuple(hits)

    def __len__(self) -> int:
        return len(self._hits)

    @overload
    def __getitem__(self, place: SupportsIndex) -> Hit: ...
    @overload
    def __getitem__(self, place: slice) -> Hits: ...
    def __getitem__(self, place: SupportsIndex | slice) -> Hit | Hits:
        return Hits(self.query, self._hits[place]) if isinstance(place, slice) else self._hits[place]

    def to_pandas(self) -> DataFrame:
        """A table with the columns rank, id, score, title, text and why."""
        import pandas

        rows = [(hit.rank, hit.id, hit.score, hit.title, hit.text, "; ".join(hit.why)) for hit in self]
        return pandas.DataFrame(rows, columns=["rank", "id", "score", "title", "text", "why"])

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Hits) and (self.query, self._hits) == (other.query, other._hits)

    def __hash__(self) -> int:
        return hash((self.query, tuple(hit.id for hit in self)))

    def __repr__(self) -> str:
        return "\n".join([f"Hits({self._title!r}):", *(f"  {hit!r}" for hit in self)])

    def _repr_html_(self) -> str:
        return notebook.hits(self._title, self)

    @property
    def _title(self) -> str:
        return self.query or "(a vector)"
