"""Readable hits: rank, score, title, the part of the passage that matches the query best, and explanations.

Explanations (`Found`) are printed as a line per index: the hit's rank and score, and the terms, document vector,
sentence or token pairs nearest to the query.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import chain, repeat
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

from retrievalkit.data.corpus import Corpus
from retrievalkit.data.fields import Value
from retrievalkit.data.runs import write_run
from retrievalkit.data.same_text import FORMS
from retrievalkit.data.snippets import _COMMON, matches, snippet
from retrievalkit.reporting.page import PAGES, write_page
from retrievalkit.reporting.page import render as render_page
from retrievalkit.reporting.terminal import counted, printable
from retrievalkit.storage import write_json

if TYPE_CHECKING:
    from rich.console import Console

INDENT = 6

SHOWN_TERMS, SHOWN_TOKENS, SHOWN_CHARACTERS = 6, 5, 160
SHOWN_PASSAGES = 3
"""Number of a document's passages that are printed and explained."""


@dataclass(frozen=True)
class TokenPair:
    """A token of the query, the document's most similar token, and their inner product."""

    query: str
    document: str
    score: float


@dataclass(frozen=True)
class Found:
    """The explanation of a hit by one index.

    Attributes:
        index: The name of the index.
        rank: Rank from 1; None if the index did not retrieve the document.
        score: The hit's score; None if the index has none.
        dense: The vectors' part of the score, if there are vocabulary weights too.
        lexical: The vocabulary weights' part of the score.
        view: The pooler's name for the document's nearest vector.
        view_number: The position of this vector, from 0.
        views: Number of document vectors.
        sentence: The text's sentence nearest to the query, if a text has a single vector.
        sentence_score: The sentence's score by the same model.
        terms: Shared term -> its contribution to the score, largest first.
        tokens: The query's tokens with their nearest document tokens, most similar first.
    """

    index: str
    rank: int | None = None
    score: float | None = None
    dense: float | None = None
    lexical: float | None = None
    view: str | None = None
    view_number: int | None = None
    views: int | None = None
    sentence: str | None = None
    sentence_score: float | None = None
    terms: Mapping[str, float] = field(default_factory=dict)
    tokens: tuple[TokenPair, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON values; unknown values are left out, except rank and score."""
        known = {name: _short(value) for name, value in asdict(self).items() if value not in (None, {}, ())}
        return {"index": self.index, "rank": self.rank, "score": _short(self.score), **known}


@dataclass(frozen=True)
class DescribedHit:
    """A hit with its text and explanations; for a document, of its best passage.

    Attributes:
        rank: 1 for the best.
        score: The score in the search.
        id: The document's id.
        title: "" if the document has none, or without a corpus.
        snippet: Consecutive words of the text.
        matches: (start, end) of the query's words, or terms of the score, in the snippet's characters.
        found: The explanation by each index.
        text: The whole text.
        fields: The metadata fields of its passage.
        heading: The headings above its passage: "Guide > Install"; "" if there are none.
        page: Number of the page, slide or sheet of its passage, from 1.
        passages: The document's matching passages, best first; empty if the hit is a passage.
    """

    rank: int
    score: float
    id: str
    title: str = ""
    snippet: str = ""
    matches: tuple[tuple[int, int], ...] = ()
    found: tuple[Found, ...] = ()
    text: str = ""
    fields: Mapping[str, Value] = field(default_factory=dict)
    heading: str = ""
    page: int | None = None
    passages: tuple[DescribedHit, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return the hit as JSON values."""
        named = {name: _short(getattr(self, name)) for name in ("rank", "score", "id", "title", "snippet")}
        matched = [self.snippet[start:end] for start, end in self.matches]
        reasons = [reason.to_json() for reason in self.found]
        optional = {"fields": dict(self.fields), "heading": self.heading, "page": self.page}
        passages = {"passages": [passage.to_json() for passage in self.passages]} if self.passages else {}
        known = {name: value for name, value in optional.items() if value}
        return {**named, **known, "matches": matched, "found": reasons, **passages}

    @property
    def place(self) -> str:
        """Heading and page as a text; "" if unknown."""
        return ", ".join(filter(None, (self.heading, "" if self.page is None else f"page {self.page}")))


def _short(value: Any) -> Any:
    """Round a float to the digits of a 32-bit float."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def describe_hits(
    hits: Sequence[tuple[str, float]], query: str, corpus: Corpus | None, found: Iterable[Sequence[Found]] = ()
) -> Iterator[DescribedHit]:
    """Yield hits with title and snippet, if their texts are in the corpus."""
    passages = {} if corpus is None else corpus.find(document_id for document_id, _ in hits)
    for rank, ((document_id, score), reasons) in enumerate(zip(hits, chain(found, repeat(())), strict=False), 1):
        if (passage := passages.get(document_id)) is None:
            yield DescribedHit(rank, score, document_id, found=tuple(reasons))
            continue
        terms = [term for reason in reasons for term in list(reason.terms)[:SHOWN_TERMS]]
        formed = FORMS[passage.text_form](query)
        text = snippet(passage.text, formed, terms=terms)
        marked = matches(text, formed, terms)
        if not marked and (nearest := next((reason.sentence for reason in reasons if reason.sentence), None)):
            text = snippet(passage.text, nearest)
        place = () if passage.cut is None else (passage.cut.heading, passage.cut.page)
        details = (passage.title, text, marked, tuple(reasons), passage.text, passage.fields)
        yield DescribedHit(rank, score, document_id, *details, *place)


def write_hits(path: str | Path, query: str, hits: Sequence[DescribedHit], indexes: Sequence[str]) -> None:
    """Write hits as a page (.html), as JSON for programs (.json), or else as a TREC run."""
    suffix = Path(path).suffix
    if suffix == ".json":
        write_json(path, {"query": query, "hits": [hit.to_json() for hit in hits]})
    elif suffix in PAGES:
        subtitle = f"{counted(len(hits), 'hits')} of {', '.join(indexes)}"
        why = {text.id: reasons_of(text) for hit in hits for text in hit.passages or [hit]}
        values = {"title": query, "subtitle": subtitle, "hits": hits, "why": why, "most": SHOWN_PASSAGES}
        write_page(path, render_page("hits.html.j2", **values))
    else:
        write_run(path, {"query": [(hit.id, hit.score) for hit in hits]})


def render(hits: Iterable[DescribedHit], console: Console) -> list[DescribedHit]:
    """Print hits as they come, and return them: wrapped on a terminal, else in the lines of the text."""
    from rich.padding import Padding
    from rich.text import Text

    printed = []
    for hit in hits:
        head = Text(f"{hit.rank:>3}  ")
        head.append(printable(hit.title or hit.id), style="bold")
        # In package documentation, a name is both id and title.
        if hit.title and hit.title != hit.id:
            head.append(f"  {printable(hit.id)}", style="dim")
        head.append(f"  {hit.score:.4f}", style="cyan")
        lines = []
        if hit.fields:
            lines.append(Text(printable(_fields_line(hit.fields)), style="dim"))
        for text in hit.passages[:SHOWN_PASSAGES] or [hit]:
            shown, last = Text(), 0
            part = text.id.removeprefix(hit.id).replace("#", "passage ") if hit.passages else ""
            if place := printable("  ".join(filter(None, (part, text.place)))):
                shown.append(place + ("\n" if "\n" in text.snippet else "  "), style="cyan")
            for start, end in text.matches:
                shown.append(printable(text.snippet[last:start], lines=True))
                shown.append(printable(text.snippet[start:end], lines=True), style="bold yellow")
                last = end
            shown.append(printable(text.snippet[last:], lines=True))
            lines += [shown] if shown else []
            for parts in _reasons(text):
                styled = zip(parts, ("green", "default", "dim"), strict=True)
                lines.append(Text.assemble(*((part, style) for part, style in styled if part)))
        if more := len(hit.passages[SHOWN_PASSAGES:]):
            lines.append(Text(f"and {counted(more, 'passages')} more", style="dim"))
        if console.is_terminal:
            console.print(head)
            for line in lines:
                console.print(Padding(line, (0, 0, 0, INDENT - 1), expand=False))
        else:
            for row in [
                head,
                *(Text(" " * (INDENT - 1)).append_text(row) for line in lines for row in line.split("\n")),
            ]:
                console.print(row, soft_wrap=True)
        console.file.flush()
        printed.append(hit)
    if not printed:
        console.print("nothing found")
    return printed


def _fields_line(fields: Mapping[str, Value]) -> str:
    values = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}
    shown = {
        name: [str(item).lower() if isinstance(item, bool) else str(item) for item in values[name]] for name in values
    }
    return "  ".join(f"{name}={', '.join(items):.80}" for name, items in shown.items())


def reasons_of(hit: DescribedHit) -> list[str]:
    """Format explanations as text, one line per index that has any."""
    return ["".join(parts) for parts in _reasons(hit)]


def _reasons(hit: DescribedHit) -> list[tuple[str, str, str]]:
    """Return (name, rank and score, reason) of each index with an explanation; of a single index only the reason."""
    lines = []
    for reason in hit.found:
        parts = []
        if reason.dense is not None and reason.lexical is not None:
            parts.append(f"dense {reason.dense:.4g} + lexical {reason.lexical:.4g}")
        if reason.view is not None:
            parts.append(f"nearest of {reason.views} vectors: {reason.view}")
        if reason.sentence is not None:
            shown = shorten(reason.sentence, SHOWN_CHARACTERS, placeholder=" …")
            parts.append(f"nearest sentence: {shown} {reason.sentence_score:.2f}")
        # Common words come last.
        pairs = sorted(reason.tokens, key=lambda pair: pair.query.casefold() in _COMMON)[:SHOWN_TOKENS]
        named = ((pair, f" ~ {pair.document}" if pair.query != pair.document else "") for pair in pairs)
        parts.append(", ".join(f"{pair.query}{other} {pair.score:.2f}" for pair, other in named))
        parts.append(", ".join(f"{term} {value:.3g}" for term, value in list(reason.terms.items())[:SHOWN_TERMS]))
        why = printable("; ".join(filter(None, parts)))
        if len(hit.found) > 1:
            rank = f"#{reason.rank}" if reason.rank is not None else "not found"
            score = "" if reason.score is None else f" {reason.score:.4f}"
            lines.append((f"{printable(reason.index)} ", f"{rank}{score}", f"  {why}" if why else ""))
        elif why:
            lines.append(("", "", why))
    return lines
