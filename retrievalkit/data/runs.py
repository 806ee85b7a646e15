"""Runs: for each query the documents found, best first, with their scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from retrievalkit.data import files
from retrievalkit.data.qrels import columns
from retrievalkit.data.records import shown
from retrievalkit.errors import DataError

Run = dict[str, list[tuple[str, float]]]

FORMS = ("TREC (query Q0 document rank score tag)", "MS MARCO (query, document, rank)")
_TREC, _MS_MARCO = 6, 3


def read_run(path: str | Path) -> Run:
    """Read a run in TREC form (query Q0 document rank score tag) or MS MARCO's (query, document, rank).

    As trec_eval does, documents are ordered by score and, where scores are equal, by document id descending; the rank
    column of a TREC run is not looked at. MS MARCO's form has no scores: 1 / rank takes their place.

    Raises:
        DataError: A line is damaged, or a document comes twice for a query.
    """
    path = files.inside(files.existing(path), "run.trec", "results")
    found: dict[str, dict[str, float]] = {}
    last, documents = "", dict[str, float]()
    for line, _, _, text in files.read_lines(path):
        try:
            query, _, document, _, cell, _ = text.split("\t") if "\t" in text else text.split()
            score = float(cell)
        except ValueError:
            if not text.strip():
                continue
            query, document, score = _unusual(path, line, text)
        if query != last:
            last, documents = query, found.setdefault(query, {})
        if document in documents or score != score:  # which only NaN does
            raise _bad(path, line, query, document, score)
        documents[document] = score
    if not found:
        msg = "there is no result in it."
        raise DataError(msg, file=path)
    return {query: _ordered(list(documents.items())) for query, documents in found.items()}


def write_run(path: str | Path, run: Mapping[str, Sequence[tuple[str, float]]], tag: str = "rkit") -> int:
    """Write a run in TREC form, in the order given, and return how many lines there were.

    Scores are written as the shortest number that gives the same 32-bit float. Where an id holds a space, a query's
    lines are separated by tabs, which `read_run` understands.
    """
    count = 0
    with files.write_text(path) as stream:
        for query, results in run.items():
            spaced = any(one.split() != [one] for one in (query, *(document for document, _ in results)))
            start, gap = ("\t".join((query, "Q0", "")), "\t") if spaced else (f"{query} Q0 ", " ")
            stream.writelines(
                f"{start}{document}{gap}{rank}{gap}{score}{gap}{tag}\n"
                for rank, ((document, _), score) in enumerate(zip(results, _shortest(results), strict=True), 1)
            )
            count += len(results)
    return count


def _shortest(results: Sequence[tuple[str, float]]) -> list[str]:
    import numpy

    scores = numpy.array([score for _, score in results], dtype=numpy.float32)
    return list(map(str, scores.astype(str).tolist()))


def _ordered(results: list[tuple[str, float]]) -> list[tuple[str, float]]:
    if all(first[1] > second[1] for first, second in pairwise(results)):
        return results
    return sorted(results, key=lambda one: (one[1], one[0]), reverse=True)


def _unusual(path: Path, line: int, text: str) -> tuple[str, str, float]:
    """Query, document and score of a line that is not the usual one."""
    cells = columns(text, (_TREC, _MS_MARCO))
    if len(cells) not in (_TREC, _MS_MARCO):
        msg = f"the line has {len(cells)} columns. Known forms: {'; '.join(FORMS)}."
        raise DataError(msg, file=path, line=line)
    try:
        if len(cells) == _TREC:
            return cells[0], cells[2], float(cells[4])
        return cells[0], cells[1], 1 / int(cells[2])
    except (ValueError, ZeroDivisionError):
        what, cell = ("score", cells[4]) if len(cells) == _TREC else ("rank (1, 2, 3 ...)", cells[2])
        msg = f"{shown(cell)} is no {what}. Known forms: {'; '.join(FORMS)}."
        raise DataError(msg, file=path, line=line) from None


def _bad(path: Path, line: int, query: str, document: str, score: float) -> DataError:
    if score != score:
        return DataError(f"the score of '{document}' is NaN, which has no place in an order.", file=path, line=line)
    for first in files.filled_lines(path):
        cells = columns(first.text, (_TREC, _MS_MARCO))
        if cells[0] == query and document in cells[1:3]:
            break
    msg = f"document '{document}' stands already at line {first.number} for query '{query}'. A result comes once."
    return DataError(msg, file=path, line=line)
