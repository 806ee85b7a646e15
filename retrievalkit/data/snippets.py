"""Query-biased snippets of a text, and the positions of its matching words."""

from __future__ import annotations

import re
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from operator import itemgetter
from textwrap import dedent

SNIPPET_WORDS = 30

_SHORTEST_STEM = 4

_INDENT = re.compile(r"[ \t]*")
_PAIRED = "\u2e80-\u2fff\u3005-\u3007\u30a1-\u30fa\u30fc-\u30ff\u3400-\u9fff\uf900-\ufaff\U00020000-\U0003ffff"
_HIRAGANA, _ALPHABETIC = "\u3041-\u309f", "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff"
_UNSPACED = f"{_PAIRED}{_HIRAGANA}{_ALPHABETIC}"  # Chinese, katakana, hiragana; Thai, Lao, Burmese, Khmer
_WORD, _SIGN = re.compile(rf"[^\W{_UNSPACED}]+"), re.compile(f"[{_UNSPACED}]")
_RUN = re.compile(rf"([{_PAIRED}]+)|([{_HIRAGANA}]{{1,3}})(?![{_HIRAGANA}])|[{_HIRAGANA}]+|[{_ALPHABETIC}]+")
_PIECE = re.compile(rf"[{_UNSPACED}\u3000-\u303f]{{1,6}}|\S{{1,60}}")
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
    for start, _, stem in _marks(text, query, terms):
        stems[bisect(pieces, start, key=itemgetter(0)) - 1].add(stem)
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
    """Return the positions of the words in a text that match the query or its terms, by stem.

    In scripts without spaces, the positions of the signs that the query has in the same order.
    """
    spans: list[tuple[int, int]] = []
    for start, end, _ in _marks(text, query, terms):
        start, end = (spans[-1][0], max(end, spans.pop()[1])) if spans and start <= spans[-1][1] else (start, end)
        spans.append((start, end))
    return tuple(spans)


def _marks(text: str, query: str, terms: Sequence[str]) -> list[tuple[int, int, str]]:
    """Return the positions of the matching words and signs, with what they match."""
    key, grams = _matcher(query, frozenset(terms))
    words = [(*word.span(), stem) for word in _WORD.finditer(text) if (stem := key(word[0]))]
    return sorted(words + [(*gram.span(1), gram[1]) for gram in grams.finditer(text)]) if grams else words


@lru_cache(maxsize=64)
def _matcher(query: str, terms: frozenset[str]) -> tuple[Callable[[str], str], re.Pattern[str] | None]:
    """Return a function: word -> the stem or term that it matches, or ""; and a pattern of signs. Cached for hits.

    A word matches if its stem is in the query, or if it begins with an index term, which may be a stem. In scripts
    without spaces, two signs of the query match (of alphabets four), or an index term.
    """
    words = {word.casefold() for word in _WORD.findall(query)}
    grams, runs = set(filter(_SIGN.search, terms)), list(_RUN.finditer(query))
    # Short hiragana are particles and endings.
    for run in [run for run in runs if not run[2]] or runs:
        size = 2 if run[1] else 4
        grams |= {run[0][start : start + size] for start in range(max(1, len(run[0]) - size + 1))}
    signs = re.compile(f"(?=({'|'.join(map(re.escape, sorted(grams, key=len, reverse=True)))}))") if grams else None
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

    return key, signs


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
