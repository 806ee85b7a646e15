"""Query-biased snippets of a text, and the positions of its matching words."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from textwrap import dedent

SNIPPET_WORDS = 30

_SHORTEST_STEM = 4

# Signs of Chinese and Japanese; of the alphabets of Thai, Lao, Burmese and Khmer.
_SIGNS = "\u2e80-\u2fff\u3005-\u3007\u3041-\u9fff\uf900-\ufaff", "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_WORD = re.compile(rf"[^\W{''.join(_SIGNS)}]+")
_INDENT, _PLURAL = re.compile(r"[ \t]*"), re.compile(r"(?<=..[^s])s$")
_GRAM = re.compile(  # two hiragana are often an ending
    r"(?=((?![\u3041-\u309f]{{2}})[{0}]{{2}}|[{1}]{{4}}))|(?<![{0}])([{0}])(?![{0}])|(?<![{1}])([{1}]{{1,3}})(?![{1}])"
    .format(*_SIGNS)
)  # fmt: skip
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
    stems: list[set[str]] = [set() for _ in pieces]
    for start, _, stem in _matcher(query, frozenset(terms))(text):
        stems[bisect(pieces, (start, len(text) + 1)) - 1].add(stem)
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
    """Return the positions in a text of the query's words, by stem, and its terms; without spaces, of common signs."""
    spans: list[tuple[int, int]] = []
    for start, end, _ in _matcher(query, frozenset(terms))(text):
        start, end = (spans[-1][0], max(end, spans.pop()[1])) if spans and start <= spans[-1][1] else (start, end)
        spans.append((start, end))
    return tuple(spans)


@lru_cache(maxsize=64)
def _matcher(query: str, terms: frozenset[str]) -> Callable[[str], list[tuple[int, int, str]]]:
    """Return a function: text -> the positions of its matches, with the stem, term or signs; cached for hits.

    A word matches by its stem, or if it begins with a term, which may be a stem; signs, if two do (of alphabets, four).
    """
    words = {word.casefold() for word in _WORD.findall(query)}
    grams = {gram for found in _GRAM.findall(query) for gram in found if gram} | set(filter(_GRAM.search, terms))
    signs = re.compile(f"(?=({'|'.join(map(re.escape, sorted(grams, key=len, reverse=True))) or '(?!)'}))")
    # A query of only common words keeps them all.
    stems = {_PLURAL.sub("", word) for word in (words - _COMMON or words)}
    known = {term.casefold() for term in terms} - _COMMON

    @cache
    def key(word: str) -> str:
        word = word.casefold()
        if (stem := _PLURAL.sub("", word)) in stems:
            return stem
        ends = len(word), *range(max(_SHORTEST_STEM, len(word) - 5), len(word))
        return next((word[:end] for end in ends if word[:end] in known), "")

    return lambda text: sorted(
        [(*word.span(), stem) for word in _WORD.finditer(text) if (stem := key(word[0]))]
        + [(*gram.span(1), gram[1]) for gram in signs.finditer(text)]
    )


def _weights(stems: Sequence[set[str]], words: int) -> list[tuple[int, int]]:
    """Weights of the windows of `words` words: distinct query words first, then their occurrences."""
    weights, counts = list[tuple[int, int]](), Counter[str]()
    for place, keys in enumerate(stems):
        leaving = stems[place - words] if place >= words else ()
        if keys or leaving:
            counts += Counter(keys)
            counts -= Counter(leaving)
        weights += [(len(counts), counts.total())] * (place >= words - 1)
    return weights
