"""Query-biased snippets of a text, and the positions of its matching words."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from textwrap import dedent

SNIPPET_WORDS = 30

_SHORTEST_STEM = 4

_WORD, _INDENT = re.compile(r"\w+"), re.compile(r"[ \t]*")
_PIECE = re.compile(r"[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff]{1,6}|\S{1,60}")
"""A word, at most 60 characters of it; in scripts without spaces, a few signs."""

_COMMON = frozenset(
    """a an and are as at be by can did do does for from had has have how i if in is it its of on or that the their
    there these they this to was were what when where which who whom whose why will with you your""".split()  # noqa: SIM905
)


def snippet(text: str, query: str, words: int = SNIPPET_WORDS, terms: Sequence[str] = ()) -> str:
    """Return the window of `words` words with the most words and terms of the query, in the lines of the text.

    Ties go to the middle window, so that the matching words have context on both sides.
    """
    pieces = [match.span() for match in _PIECE.finditer(text)]
    key = _matcher(query, frozenset(terms))
    stems = [{stem for word in _WORD.findall(text[a:b]) if (stem := key(word))} for a, b in pieces]
    weights = _weights(stems, words) or [(0, 0)]
    first = last = weights.index(max(weights))
    while any(weights[first]) and weights[last + 1 : last + 2] == [weights[first]]:
        last += 1
    # Centre the matching words.
    first = (first + last) // 2
    shown = pieces[first : first + words] or [(0, 0)]
    start, end = shown[0][0], shown[-1][1]
    # The first line keeps the indentation of its line, which relates it to the others.
    indent = next(_INDENT.finditer(text, text.rfind("\n", 0, start) + 1))[0]
    window = f"{indent}{'… ' if first else ''}{text[start:end]}"
    lines = window.expandtabs(4).splitlines()
    spaced = (" " * (len(line) - len(line.lstrip())) + " ".join(line.split()) for line in lines if line.strip())
    return dedent("\n".join(spaced)) + (" …" if first + words < len(pieces) else "")


def matches(text: str, query: str, terms: Sequence[str] = ()) -> tuple[tuple[int, int], ...]:
    """Return the positions of the words in a text that match the query or its terms, by stem."""
    key = _matcher(query, frozenset(terms))
    return tuple(match.span() for match in _WORD.finditer(text) if key(match[0]))


@lru_cache(maxsize=64)
def _matcher(query: str, terms: frozenset[str]) -> Callable[[str], str]:
    """Return a function: word -> the stem or term that it matches, or ""; cached for hits with the same terms.

    A word matches if its stem is in the query, or if it begins with an index term, which may be a stem.
    """
    words = {word.casefold() for word in _WORD.findall(query)}
    # A query of only common words keeps them all.
    stems = {_stem(word) for word in (words - _COMMON or words)}
    known = {term.casefold() for term in terms} - _COMMON
    starts = {term[:_SHORTEST_STEM] for term in known}

    @cache
    def key(word: str) -> str:
        word = word.casefold()
        if (stem := _stem(word)) in stems:
            return stem
        if word in known or word[:_SHORTEST_STEM] not in starts:
            return word if word in known else ""
        lengths = range(max(_SHORTEST_STEM, len(word) - 5), len(word))
        return next((word[:end] for end in lengths if word[:end] in known), "")

    return key


def _weights(stems: Sequence[set[str]], words: int) -> list[tuple[int, int]]:
    """Weights of the windows of `words` words: distinct query words first, then their occurrences."""
    weights: list[tuple[int, int]] = []
    counts: Counter[str] = Counter()
    weight = 0, 0
    for place, keys in enumerate(stems):
        leaving = stems[place - words] if place >= words else ()
        if keys or leaving:
            counts.update(keys)
            counts.subtract(leaving)
            counts = +counts  # drop zero counts
            weight = len(counts), counts.total()
        if place >= words - 1:
            weights.append(weight)
    return weights


def _stem(word: str) -> str:
    return word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word
