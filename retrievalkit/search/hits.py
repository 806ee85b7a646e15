"""Hits as people read them: rank, score, title, the part of the text that has most to do with the query, and why.

What is known of the why (`Found`) is one line for each index that was searched: the rank and score that it gave, and
which terms, which of a document's vectors or which pairs of tokens made the score.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

from retrievalkit.data.corpus import Corpus
from retrievalkit.data.snippets import _COMMON, matches, snippet

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

INDENT = 6

SHOWN_TERMS, SHOWN_TOKENS = 6, 5


@dataclass(frozen=True)
class TokenPair:
    """A token of the query, the document's token that it is most like, and their inner product."""

    query: str
    document: str
    score: float


@dataclass(frozen=True)
class Found:
    """What one index has to say of a hit.

    Attributes:
        index: What the index is called.
        rank: 1 for its best; None where it did not find the document.
        score: That it gave; None where it gave none.
        dense: The part of the score that comes of vectors, where there are weights over a vocabulary too.
        lexical: The part that comes of these weights.
        view: Which of the document's several vectors is the nearest, as its pooler calls it.
        view_number: Its place among them, from 0.
        views: How many the document has.
        terms: What the terms that query and document share add to the score, the most first.
        tokens: The tokens of the query that found their like, the likest first.
    """

    index: str
    rank: int | None = None
    score: float | None = None
    dense: float | None = None
    lexical: float | None = None
    view: str | None = None
    view_number: int | None = None
    views: int | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    tokens: tuple[TokenPair, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A value that `json.dumps` takes; what is not known is left out, but for rank and score."""
        values = asdict(self)
        kept = {name: _short(value) for name, value in values.items() if value not in (None, {}, ())}
        return {"index": self.index, "rank": self.rank, "score": _short(self.score), **kept}


@dataclass(frozen=True)
class DescribedHit:
    """A hit, with what a reader wants to see of it.

    Attributes:
        rank: 1 for the best.
        score: As the search gave it.
        id: Of the document.
        title: "" where it has none, or where the corpus is not at hand.
        snippet: Some words of the text, in a row.
        matches: (start, end) of the snippet's characters that are words of the query, or made the score.
        found: What each index has to say of it.
    """

    rank: int
    score: float
    id: str
    title: str = ""
    snippet: str = ""
    matches: tuple[tuple[int, int], ...] = ()
    found: tuple[Found, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A value that `json.dumps` takes."""
        fields = {name: _short(getattr(self, name)) for name in ("rank", "score", "id", "title", "snippet")}
        matched = [self.snippet[start:end] for start, end in self.matches]
        return {**fields, "matches": matched, "found": [one.to_json() for one in self.found]}


def _short(value: Any) -> Any:
    """A number with the digits that a 32-bit number has."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def describe_hits(
    hits: Sequence[tuple[str, float]],
    query: str,
    corpus: Corpus | None,
    found: Sequence[Sequence[Found]] = (),
) -> list[DescribedHit]:
    """The hits with title and snippet; without these where there is no corpus, or it lacks a hit."""
    lacking = set() if corpus is None else corpus.missing([document_id for document_id, _ in hits])
    described = []
    for rank, (document_id, score) in enumerate(hits, 1):
        own = tuple(found[rank - 1]) if found else ()
        if corpus is None or document_id in lacking:
            described.append(DescribedHit(rank, score, document_id, found=own))
            continue
        passage = corpus.get(document_id)
        terms = [term for one in own for term in list(one.terms)[:SHOWN_TERMS]]
        text = snippet(passage.text, query, terms=terms)
        described.append(DescribedHit(rank, score, document_id, passage.title, text, matches(text, query, terms), own))
    return described


def render(hits: Sequence[DescribedHit], console: Console) -> None:
    """Print hits: on a terminal in its width; elsewhere each part on a line of its own, however long."""
    from rich.padding import Padding
    from rich.text import Text

    if not hits:
        console.print("nothing found")
    for hit in hits:
        head = Text(f"{hit.rank:>3}  ")
        head.append(hit.title or hit.id, style="bold")
        # The documentation of packages has the name as both.
        if hit.title and hit.title != hit.id:
            head.append(f"  {hit.id}", style="dim")
        head.append(f"  {hit.score:.4f}", style="cyan")
        lines = [_marked(hit)] if hit.snippet else []
        lines += [line for one in hit.found if (line := _why(one, alone=len(hit.found) == 1))]
        if console.is_terminal:
            console.print(head)
            for line in lines:
                console.print(Padding(line, (0, 0, 0, INDENT - 1), expand=False))
        else:
            for line in [head, *(Text(" " * (INDENT - 1)).append_text(line) for line in lines)]:
                console.print(line, soft_wrap=True)


def _marked(hit: DescribedHit) -> Text:
    from rich.text import Text

    text = Text(hit.snippet)
    for start, end in hit.matches:
        text.stylize("bold yellow", start, end)
    return text


def _why(found: Found, *, alone: bool) -> Text | None:
    """One line: of an index among several its name, rank and score too."""
    from rich.text import Text

    parts = []
    if found.dense is not None and found.lexical is not None:
        parts.append(f"dense {found.dense:.4g} + lexical {found.lexical:.4g}")
    if found.view is not None:
        parts.append(f"nearest of {found.views} vectors: {found.view}")
    if found.tokens:
        telling = sorted(found.tokens, key=lambda pair: pair.query.casefold() in _COMMON)
        parts.append(", ".join(map(_pair, telling[:SHOWN_TOKENS])))
    if found.terms:
        shown = list(found.terms.items())[:SHOWN_TERMS]
        parts.append(", ".join(f"{term} {value:.3g}" for term, value in shown))
    why = "; ".join(parts)
    if alone:
        return Text(why, style="dim") if why else None
    rank = f"#{found.rank}" if found.rank is not None else "not found"
    score = "" if found.score is None else f" {found.score:.4f}"
    text = Text(f"{found.index} ", style="green")
    text.append(f"{rank}{score}", style="default")
    text.append(f"  {why}" if why else "", style="dim")
    return text


def _pair(pair: TokenPair) -> str:
    tokens = pair.query if pair.query == pair.document else f"{pair.query} ~ {pair.document}"
    return f"{tokens} {pair.score:.2f}"
