"""Hits as people read them: title, and the part of the text that has most to do with the query."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from retrievalkit.data.corpus import Corpus

SNIPPET_WORDS = 30
_WORD = re.compile(r"\w+")
_COMMON = frozenset(
    """a an and are as at be by can did do does for from had has have how i if in is it its of on or that the their
    there these they this to was were what when where which who whom whose why will with you your""".split()  # noqa: SIM905
)


@dataclass(frozen=True)
class DescribedHit:
    """A hit, with what a reader wants to see of it.

    Attributes:
        rank: 1 for the best.
        score: As the search gave it.
        id: Of the document.
        title: "" where it has none, or where the corpus is not at hand.
        snippet: Some words of the text, in a row.
        matches: (start, end) of the snippet's characters that are words of the query.
    """

    rank: int
    score: float
    id: str
    title: str = ""
    snippet: str = ""
    matches: tuple[tuple[int, int], ...] = ()


def describe_hits(hits: Sequence[tuple[str, float]], query: str, corpus: Corpus | None) -> list[DescribedHit]:
    """The hits with title and snippet; without these where there is no corpus, or it lacks a hit."""
    lacking = set() if corpus is None else corpus.missing([document_id for document_id, _ in hits])
    described = []
    for rank, (document_id, score) in enumerate(hits, 1):
        if corpus is None or document_id in lacking:
            described.append(DescribedHit(rank, score, document_id))
            continue
        passage = corpus.get(document_id)
        text = snippet(passage.text, query)
        described.append(DescribedHit(rank, score, document_id, passage.title, text, matches(text, query)))
    return described


def snippet(text: str, query: str, words: int = SNIPPET_WORDS) -> str:
    """The part of a text, so many words long, that has most of the query's words; the first of equals."""
    text = " ".join(text.split())
    spans = [match.span() for match in re.finditer(r"\S+", text)]
    if len(spans) <= words:
        return text
    wanted = _stems(query)
    found = [{stem for stem in _stems(text[start:end]) if stem in wanted} for start, end in spans]
    first = max(range(len(spans) - words + 1), key=lambda start: _weight(found[start : start + words]))
    start, end = spans[first][0], spans[first + words - 1][1]
    return f"{'… ' if start else ''}{text[start:end]}{' …' if end < len(text) else ''}"


def matches(text: str, query: str) -> tuple[tuple[int, int], ...]:
    """Where words of the query stand in a text."""
    wanted = _stems(query)
    return tuple(match.span() for match in _WORD.finditer(text) if _stem(match[0]) in wanted)


def _weight(found: Sequence[set[str]]) -> tuple[int, int]:
    """Different words of the query count before repeated ones."""
    return len(set().union(*found)), sum(map(len, found))


def _stems(text: str) -> set[str]:
    words = {word.casefold() for word in _WORD.findall(text)}
    # A query of common words alone is looked for as it is.
    return {_stem(word) for word in (words - _COMMON or words)}


def _stem(word: str) -> str:
    word = word.casefold()
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
