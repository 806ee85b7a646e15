"""Scores of requested documents, many queries per call.

Callers may request documents in any order, repeated or missing; Lucene scores distinct documents in ascending order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from retrievalkit_pyserini.bulk import best, ints
from retrievalkit_pyserini.handles import (
    array_constructor,
    as_interface,
    bind,
    constructor,
    gather,
    method,
    returning,
    static_method,
    then,
)
from retrievalkit_pyserini.java import java_class

TOTAL = "org.apache.lucene.search.TotalHits"
TOP = "org.apache.lucene.search.TopDocs"


def scores_in_calls(
    numbers: Sequence[np.ndarray], score: Callable[[int, int, list[np.ndarray]], list[np.ndarray]], *, most: int
) -> list[np.ndarray]:
    """Score documents requested in any order, in calls of bounded size.

    Args:
        numbers: For each query, Lucene's document numbers; -1 for a document that is not in the index.
        score: Function of a range of queries (from, to) and, for each, distinct ascending numbers; returns scores.
        most: Maximum number of documents per call.

    Returns:
        For each query, float32 scores in the order of its numbers, NaN for -1.
    """
    scores: list[np.ndarray] = []
    for start, end in _cuts(list(map(len, numbers)), most):
        inside = [np.unique(rows[rows >= 0]) for rows in numbers[start:end]]
        scores += map(_placed, numbers[start:end], inside, score(start, end, inside))
    return scores


def _cuts(counts: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    """Split a list into ranges whose counts sum to at most `most`, with at least one entry each."""
    start = total = 0
    for position, count in enumerate(counts):
        if position > start and total + count > most:
            yield start, position
            start, total = position, 0
        total += count
    if start < len(counts):
        yield start, len(counts)


def _placed(numbers: np.ndarray, inside: np.ndarray, scores: np.ndarray) -> np.ndarray:
    placed = np.full(len(numbers), np.nan, dtype=np.float32)
    known = numbers >= 0
    placed[known] = scores[np.searchsorted(inside, numbers[known])]
    return placed


def rescored(searcher: Any, queries: Any, numbers: Sequence[np.ndarray], *, threads: int) -> list[np.ndarray]:
    """Score documents for queries in float32; 0 if a document does not match.

    Args:
        searcher: Lucene's IndexSearcher.
        queries: The handle (position -> Lucene query).
        numbers: For each query, distinct document numbers of Lucene, ascending.
        threads: Number of scoring threads.
    """
    most = max(map(len, numbers), default=0)
    lucene = "org.apache.lucene.search"
    types = (f"{lucene}.IndexSearcher", TOP, f"{lucene}.Query", "double", int)
    rescore = static_method(f"{lucene}.QueryRescorer", "rescore", TOP, *types)
    # The rescorer adds weight * score to the previous score, here 1 * score to 0.
    rescore = bind(bind(rescore, 3, java_class("java.lang.Double")(1.0), max(most, 1)), 0, searcher)
    results = best(gather(rescore, documents(numbers), queries), len(numbers), threads)
    return [hits[np.argsort(hits[:, 0]), 1].astype(np.float32) for hits in results]


def documents(numbers: Sequence[np.ndarray]) -> Any:
    """Return a handle (position -> Lucene's TopDocs) of lists of document numbers, each with the score 0."""
    ends = np.cumsum(list(map(len, numbers)), dtype=np.int64)
    stream, function = "java.util.stream.IntStream", "java.util.function.IntFunction"
    scored, array = "org.apache.lucene.search.ScoreDoc", "[Lorg.apache.lucene.search.ScoreDoc;"
    # position -> positions in the joined lists -> document numbers -> ScoreDoc of each -> array of them -> TopDocs
    places = gather(static_method(stream, "range", stream, int, int), ints(np.append(0, ends[:-1])), ints(ends))
    number_at = as_interface("java.util.function.IntUnaryOperator", ints(np.concatenate([*numbers, np.empty(0)])))
    hits = then(places, bind(method(stream, "map", stream, "java.util.function.IntUnaryOperator"), 1, number_at))
    hit = as_interface(function, bind(constructor(scored, int, float), 1, 0.0))
    hits = then(hits, bind(method(stream, "mapToObj", "java.util.stream.Stream", function), 1, hit))
    room = as_interface(function, array_constructor(array))
    hits = then(hits, bind(method("java.util.stream.Stream", "toArray", "[Ljava.lang.Object;", function), 1, room))
    total = java_class("org.apache.lucene.search.TotalHits")(0, java_class(f"{TOTAL}$Relation").EQUAL_TO)
    return then(returning(array, hits), bind(constructor(TOP, TOTAL, array), 0, total))
