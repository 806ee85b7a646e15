"""The passage of a text that matches a query best, and the positions of its matching words."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from functools import lru_cache

SNIPPET_WORDS = 30

_SHORTEST_STEM = 4

_WORD = re.compile(r"\w+")

_COMMON = frozenset(
    """a an and are as at be by can did do does for from had has have how i if in is it its of on or that the their
    there these they this to was were what when where which who whom whose why will with you your""".split()  # noqa: SIM905
)


def snippet(text: str, query: str, words: int = SNIPPET_WORDS, terms: Sequence[str] = ()) -> str:
    """The part of a text, of `words` words, with the most words and terms of the query.

    Of equally good parts the middle one, so that the matching words have context on both sides.
    """
    pieces = text.split()
    if len(pieces) <= words:
        return " ".join(pieces)
    wanted = _wanted(query, frozenset(terms))
    found = [wanted.of(piece) for piece in pieces]
    weights = _weights(found, words)
    first = last = weights.index(max(weights))
    while any(weights[first]) and weights[last + 1 : last + 2] == [weights[first]]:
        last += 1
    # Centre the matching words.
    first = (first + last) // 2
    shown = " ".join(pieces[first : first + words])
    return f"{'… ' if first else ''}{shown}{' …' if first + words < len(pieces) else ''}"


def matches(text: str, query: str, terms: Sequence[str] = ()) -> tuple[tuple[int, int], ...]:
    """The positions of words of the query, or words with these stems, in a text."""
    wanted = _wanted(query, frozenset(terms))
    return tuple(match.span() for match in _WORD.finditer(text) if wanted.key(match[0]))


class _Wanted:
    """The words to look for: those of a query, and those that begin with a term of an index, which may be a stem."""

    def __init__(self, query: str, terms: Collection[str]) -> None:
        self._stems = _stems(query)
        self._terms = {term.casefold() for term in terms if term.casefold() not in _COMMON}
        self._starts = {term[:_SHORTEST_STEM] for term in self._terms}
        self._keys: dict[str, str] = {}
        self._found: dict[str, set[str]] = {}

    def of(self, piece: str) -> set[str]:
        """Those that occur between two spaces."""
        if (found := self._found.get(piece)) is None:
            found = self._found[piece] = {key for word in _WORD.findall(piece) if (key := self.key(word))}
        return found

    def key(self, word: str) -> str:
        """What a word is one of; "" if it is none. Texts repeat their words, so each is looked at once."""
        if word not in self._keys:
            self._keys[word] = self._key(word.casefold())
        return self._keys[word]

    def _key(self, word: str) -> str:
        if (stem := _stem(word)) in self._stems:
            return stem
        if word in self._terms:
            return word
        if word[:_SHORTEST_STEM] not in self._starts:
            return ""
        lengths = range(max(_SHORTEST_STEM, len(word) - 5), len(word))
        return next((word[:end] for end in lengths if word[:end] in self._terms), "")


@lru_cache(maxsize=64)
def _wanted(query: str, terms: frozenset[str]) -> _Wanted:
    """The same for all hits of a query that share its terms, whose texts repeat their words."""
    return _Wanted(query, terms)


def _weights(found: Sequence[set[str]], words: int) -> list[tuple[int, int]]:
    """For each run of so many words: distinct words of the query count first, then repeated ones."""
    weights: list[tuple[int, int]] = []
    counts: dict[str, int] = {}
    weight = 0, 0
    for place, keys in enumerate(found):
        gone = found[place - words] if place >= words else ()
        for key in keys:
            counts[key] = counts.get(key, 0) + 1
        for key in gone:
            counts[key] -= 1
            if not counts[key]:
                del counts[key]
        if keys or gone:
            weight = len(counts), sum(counts.values())
        if place >= words - 1:
            weights.append(weight)
    return weights


def _stems(text: str) -> set[str]:
    words = {word.casefold() for word in _WORD.findall(text)}
    # A query of nothing but common words is matched as it is.
    return {_stem(word) for word in (words - _COMMON or words)}


def _stem(word: str) -> str:
    word = word.casefold()
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
