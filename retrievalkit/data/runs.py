"""Runs: for each query the documents found, best first, with their scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from retrievalkit.data import sources
from retrievalkit.errors import DataError

Run = dict[str, list[tuple[str, float]]]


def read_run(path: str | Path) -> Run:
    """Read a run in TREC form (query Q0 document rank score tag) or MS MARCO's (query, document, rank).

    As trec_eval does, documents are ordered by score and, where scores are equal, by document id descending; the rank
    column of a TREC run is not looked at. MS MARCO's form has no scores: 1 / rank takes their place.

    Raises:
        DataError: A line is damaged, or a document comes twice for a query.
    """
    path = sources.existing(path)
    found: dict[str, dict[str, float]] = {}
    last: str | None = None
    documents: dict[str, float] = {}
    for line, text in sources.read_lines(path):
        try:
            query, _, document, _, score, _ = text.split()
            value = float(score)
        except ValueError:
            cells = _cells(path, line, text)
            if not cells:
                continue
            query, document, value = cells
        if query != last:
            last, documents = query, found.setdefault(query, {})
        if document in documents:
            raise _twice(path, line, query, document)
        documents[document] = value
    if not found:
        msg = "there is no result in it."
        raise DataError(msg, file=path)
    return {query: _ordered(path, list(documents.items())) for query, documents in found.items()}


def write_run(path: str | Path, run: Mapping[str, Sequence[tuple[str, float]]], tag: str = "rkit") -> int:
    """Write a run in TREC form, in the order given, and return how many lines there were.

    Scores are written as the shortest number that gives the same 32-bit float. A line whose ids hold spaces is
    separated by tabs, which `read_run` understands.
    """
    count = 0
    with sources.write_text(path) as stream:
        for query, results in run.items():
            scores = _shortest([score for _, score in results])
            lines = [
                f"{query} Q0 {document} {rank} {score} {tag}\n"
                for rank, ((document, _), score) in enumerate(zip(results, scores, strict=True), 1)
            ]
            if " " in query or any(" " in document for document, _ in results):
                lines = [
                    f"{query}\tQ0\t{document}\t{rank}\t{score}\t{tag}\n"
                    for rank, ((document, _), score) in enumerate(zip(results, scores, strict=True), 1)
                ]
            stream.write("".join(lines))
            count += len(lines)
    return count


def _shortest(scores: Sequence[float]) -> list[str]:
    import numpy

    return [str(one) for one in numpy.asarray(scores, dtype=numpy.float32).astype(str).tolist()]


def _ordered(path: Path, results: list[tuple[str, float]]) -> list[tuple[str, float]]:
    if all(first[1] > second[1] for first, second in pairwise(results)):
        return results
    if any(math.isnan(score) for _, score in results):
        msg = "a score is NaN, which has no place in an order."
        raise DataError(msg, file=path)
    return sorted(results, key=lambda one: (one[1], one[0]), reverse=True)


def _cells(path: Path, line: int, text: str) -> tuple[str, str, float] | None:
    """Query, document and score of a line that is not the usual one; None for an empty line."""
    cells = text.split("\t") if "\t" in text else text.split()
    if not text.strip():
        return None
    try:
        if len(cells) == 6:
            return cells[0], cells[2], float(cells[4])
        if len(cells) == 3:
            return cells[0], cells[1], 1 / float(cells[2])
    except (ValueError, ZeroDivisionError):
        value = cells[4] if len(cells) == 6 else cells[2]
        msg = f"'{value}' is no {'score' if len(cells) == 6 else 'rank (1, 2, ...)'}."
        raise DataError(msg, file=path, line=line) from None
    msg = f"the line has {len(cells)} columns. Known forms: TREC (query Q0 document rank score tag); query, document, rank."
    raise DataError(msg, file=path, line=line)


def _twice(path: Path, line: int, query: str, document: str) -> DataError:
    for first, text in sources.read_lines(path):
        cells = text.split("\t") if "\t" in text else text.split()
        if cells and cells[0] == query and document in cells[1:3]:
            break
    msg = f"document '{document}' is found twice for query '{query}': it stands at line {first} already."
    return DataError(msg, file=path, line=line)
