"""Signs that nothing in a collection matches a query well, for people who cannot judge scores.

The scores of nearest neighbours have no scale: an index of vectors returns hits for any query. So each index is
searched for made-up words when it is opened. A search is doubtful if the best score of each index of vectors is not
above the scores of most made-up queries, and no hit of an index of words has enough of the query's words.
"""

from __future__ import annotations

import math
import random
import re
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from retrievalkit.contracts.commands import counted
from retrievalkit.data.queries import Query
from retrievalkit.data.snippets import matches
from retrievalkit.search.public import DescribedHit, Searcher

_QUERIES, _SHARE = 32, 0.9
_JUDGED, _PASSAGES = 10, 3
"""Number of hits, and of passages of each, whose words are compared with the query's."""

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u9fff\uf900-\ufaff"
_WORD = re.compile(rf"(?=([{_UNSPACED}]{{2}}))|(?<![{_UNSPACED}])([{_UNSPACED}])(?![{_UNSPACED}])|([^\W{_UNSPACED}]+)")
"""Words; in scripts without spaces, each pair of signs, or a single sign."""


def made_up_queries() -> list[str]:
    """Return queries of one to eight words that no language has, the same at each call."""
    rng = random.Random(0)
    syllables = [a + b for a in "bcdfghjklmnpqrstvwxz" for b in "aeiou"]

    def word() -> str:
        if rng.random() < 0.5:  # random keys
            return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(3, 9)))
        return "".join(rng.choices(syllables, k=rng.randint(2, 4)))

    return [" ".join(word() for _ in range(2 ** (number % 4))) for number in range(_QUERIES)]


def scores_of_nonsense(searcher: Searcher) -> dict[str, float]:
    """Return, for each index with a vector per query, the score that nine of ten made-up queries do not exceed.

    Scores of several vectors, or of term weights, grow with the query's length, so they are not comparable.
    """
    limits: dict[str, float] = {}
    for index in searcher.indexes:
        if not index.needs_encoding:
            continue
        queries = searcher.ask([Query(str(number), text) for number, text in enumerate(made_up_queries())])
        encoded = queries.encoded_for(index)
        if isinstance(encoded, list) or encoded.weights is not None or encoded.vectors is None:
            continue
        if encoded.vectors.shape[1] == 1:
            best = [float(scores[0]) for _, scores in index.rankings(queries, 1, None) if len(scores)]
            limits |= {index.label: float(np.quantile(best, _SHARE))} if best else {}
    return limits


def doubt(
    query: str, scores: Mapping[str, float], by_words: bool, limits: Mapping[str, float], hits: Sequence[DescribedHit]
) -> str | None:
    """Return the reasons why probably no hit answers a query; None if there are none, or they are unknown.

    Args:
        query: Text of the query.
        scores: The best score of each index that a model encodes the query for.
        by_words: True if an index of words was searched.
        limits: `scores_of_nonsense`.
        hits: The hits, with their texts.
    """
    if not hits or any(score > limits.get(label, -math.inf) for label, score in scores.items()):
        return None
    reasons = [
        f"By meaning ({label}), the nearest text scores {score:.2f}, no better than made-up words do here "
        f"(up to {limits[label]:.2f})."
        for label, score in scores.items()
    ]
    if by_words:
        # `matches` leaves out common words. A query of punctuation has none.
        known = (query[start:end].casefold() for start, end in matches(query, query))
        words = {part for word in known for pair in _WORD.findall(word) for part in pair if part}
        shown = [text for hit in hits[:_JUDGED] for text in hit.passages[:_PASSAGES] or [hit]]
        if not any(text.text for text in shown):
            return None
        most = max(_shared(words, f"{text.title} {text.text} {dict(text.fields)}") for text in shown)
        # Vectors are evidence of their own; without them, a good text may still phrase a long question differently.
        if not words:
            return " ".join(reasons) or None
        if most > len(words) / (2 if reasons else 4):
            return None
        share = f"{most} of the {counted(len(words), 'words')}" if most else "none of the words"
        reasons.append(f"By words, the best text has {share} of your query, common words not counted.")
    return " ".join(reasons)


def _shared(words: Iterable[str], text: str) -> int:
    """Count the words that occur in a text, in any form that shares their beginning."""
    text = re.sub(r"\W+", " ", f" {text.casefold()}")
    starts = (word if re.match(f"[{_UNSPACED}]", word) else f" {word[: max(4, len(word) - 3)]}" for word in words)
    return sum(start in text for start in starts)
