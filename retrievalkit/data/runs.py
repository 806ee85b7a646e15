"""Runs: for each query, the retrieved documents with their scores, best first."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import gt, itemgetter
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

from retrievalkit.data import files, json_text
from retrievalkit.data.files import uncollected
from retrievalkit.data.json_text import shown
from retrievalkit.data.records import id_problem
from retrievalkit.data.run_forms import KNOWN_FORMS, LARGEST_SCORE, RunForm, form_of, is_run_object
from retrievalkit.errors import DataError, InputError, UnknownNameError

Hits = list[tuple[str, float]]
Run = dict[str, Hits]
Ties = Literal["document_id", "run"]
Form = Literal["trec", "msmarco", "beir"]

_BLOCK = 1 << 15  # bytes; a block's cells fit the processor's cache


class Columns(NamedTuple):
    """The hits of a query as columns of equal length."""

    documents: Sequence[str]
    scores: Sequence[float]


def read_run(path: str | Path, ties: Ties = "document_id") -> Run:
    """Read a run in any form of `run_forms`, or BEIR's: a JSON object query -> document -> score.

    Documents are ordered by score, as in trec_eval, regardless of the ranks.

    Args:
        path: The file, plain or compressed, or a folder with a `run.trec`.
        ties: How documents with equal scores are ordered: by "document_id", descending, as in trec_eval; or as in the
            "run": by its ranks, or by the order of its lines if it has none.

    Raises:
        DataError: A line is damaged, or a document occurs twice for a query.
    """
    if ties not in get_args(Ties):
        raise UnknownNameError("choice of ties", ties, get_args(Ties))
    path = files.inside(files.existing(path), "run.trec", "results")
    if is_run_object(path):
        return {query: _ordered(list(hits), list(hits.values()), "document_id") for query, hits in _json(path).items()}
    form = form_of(path)
    with uncollected():
        return hits_in(files.read_blocks(path, _BLOCK), path, form, ties)


def hits_in(blocks: Iterable[tuple[int, str]], path: Path, form: RunForm, ties: Ties) -> Run:
    """The hits in whole lines of a run: all of its lines, or all those of a query.

    Args:
        blocks: Lines, in blocks of any size, each with the number of its first line.
        path: Their file, for error messages.
        form: Its form.
        ties: See `read_run`.

    Raises:
        DataError: A line is damaged, or a document occurs twice for a query.
    """
    found: dict[str, Any] = columns_in(blocks, path, form, ties)
    for query, (documents, scores) in found.items():
        if len(set(documents)) < len(documents):
            raise _invalid_line(path, form, query)
        # In place of its columns, so that not all of both are in memory.
        found[query] = _ordered(documents, scores, ties)
    return found


def columns_in(blocks: Iterable[tuple[int, str]], path: Path, form: RunForm, ties: Ties) -> dict[str, Columns]:
    """As `hits_in`, as columns: in the order of the lines unless ties are as in the run; documents may occur twice."""
    found: dict[str, Any] = _columns(blocks, path, form, ranks=ties == "run")
    for query, (documents, scores, ranks) in found.items():
        if form.rank is form.score is None:
            scores = [1 / place for place in range(1, len(documents) + 1)]
        found[query] = Columns(documents, scores) if ties == "document_id" else _by_rank(documents, scores, ranks)
    return found


def run_names(paths: Sequence[str | Path]) -> list[str]:
    """The names of runs: their files' names, or their paths if two files share a name.

    Raises:
        InputError: A path is given twice.
    """
    stems = [_stem(Path(path).name) for path in paths]
    shared = {stem for stem, count in Counter(stems).items() if count > 1}
    names = [str(path) if stem in shared else stem for path, stem in zip(paths, stems, strict=True)]
    if len(set(names)) < len(names):
        msg = f"a run is given twice: {', '.join(map(str, paths))}. Give each once."
        raise InputError(msg)
    return names


def _stem(name: str) -> str:
    for ending in (".gz", ".zst", ".trec", ".run", ".txt", ".tsv", ".json"):
        name = name.removesuffix(ending) or name
    return name


def write_run(
    path: str | Path,
    run: Mapping[str, Sequence[tuple[str, float]]] | Iterable[tuple[str, Sequence[tuple[str, float]]]],
    tag: str = "rkit",
    form: Form = "trec",
) -> int:
    """Write a run in the order given, and return the number of results.

    Scores are written as the shortest decimal that gives the same 32-bit float. If an id contains a space, the cells
    of that query's lines are separated by tabs, which `read_run` understands.

    Args:
        path: The file; `.gz` and `.zst` files are compressed.
        run: The run; or its queries with their hits, each of which is written before the next is taken.
        tag: The last column of TREC's form.
        form: "trec", "msmarco" (query, document, rank) or "beir" (JSON).
    """
    if form not in get_args(Form):
        raise UnknownNameError("form of a run", form, get_args(Form))
    count = 0
    with files.write_text(path) as stream:
        stream.write("{" if form == "beir" else "")
        for number, (query, hits) in enumerate(run.items() if isinstance(run, Mapping) else run):
            if form == "beir":
                stream.write((", " if number else "") + _beir(query, hits))
            else:
                stream.writelines(_trec(query, hits, tag) if form == "trec" else _ms_marco(query, hits))
            count += len(hits)
        stream.write("}\n" if form == "beir" else "")
    return count


def _beir(query: str, hits: Sequence[tuple[str, float]]) -> str:
    return f"{json.dumps(query)}: {json.dumps({document: float(s) for document, s in _with_short_scores(hits)})}"


def _trec(query: str, hits: Sequence[tuple[str, float]], tag: str) -> list[str]:
    names = [query, *(document for document, _ in hits)]
    joined = "".join(names)
    spaced = joined.split() != [joined] or not all(names)
    start, gap = ("\t".join((query, "Q0", "")), "\t") if spaced else (f"{query} Q0 ", " ")
    return [
        f"{start}{document}{gap}{rank}{gap}{score}{gap}{tag}\n"
        for rank, (document, score) in enumerate(_with_short_scores(hits), 1)
    ]


def _ms_marco(query: str, hits: Sequence[tuple[str, float]]) -> Iterator[str]:
    for rank, (document, _) in enumerate(hits, 1):
        yield f"{query}\t{document}\t{rank}\n"


def _with_short_scores(hits: Sequence[tuple[str, float]]) -> Iterator[tuple[str, str]]:
    import numpy

    scores = numpy.array([score for _, score in hits], dtype=numpy.float32)
    # Of a float32 in this range, a decimal with four digits is the shortest, and Python writes it faster than NumPy.
    rounded = numpy.rint(scores.astype(numpy.float64) * 1e4) / 1e4
    plain = (rounded.astype(numpy.float32) == scores) & (rounded >= 1e-3) & (rounded < 512)
    short = list(map(repr, rounded.tolist()))
    for place, score in zip((~plain).nonzero()[0].tolist(), scores[~plain].astype(str).tolist(), strict=True):
        short[place] = score
    return zip((document for document, _ in hits), short, strict=True)


def _columns(
    blocks: Iterable[tuple[int, str]], path: Path, form: RunForm, *, ranks: bool
) -> dict[str, tuple[list[str], list[float], list[int]]]:
    """Documents, scores, and ranks if wanted, of each query in the order of the lines."""
    found: dict[str, tuple[list[str], list[float], list[int]]] = {}
    for first, text in blocks:
        rows = form.rows(text, ranks=ranks) or form.rows_one_by_one(text, path, first, ranks=ranks)
        start = 0
        for query, size in _stretches(rows.queries):
            end = start + size
            if query not in found:
                found[query] = ([], [], [])
            documents, scores, places = found[query]
            documents += rows.documents[start:end]
            scores += rows.scores[start:end]
            if ranks:
                places += rows.ranks[start:end]
            start = end
    return found


def _stretches(queries: Sequence[str]) -> Iterable[tuple[str, int]]:
    """Each query with the number of its consecutive lines."""
    if queries and queries.count(queries[0]) == len(queries):
        return [(queries[0], len(queries))]
    return ((query, len(list(group))) for query, group in groupby(queries))


def _ordered(documents: Sequence[str], scores: Sequence[float], ties: Ties) -> Hits:
    """The hits by score, descending; equal scores in the order given, or by the documents' ids, descending."""
    hits = list(zip(documents, scores, strict=True))
    if ties == "run" or _decrease(scores):
        return hits
    return sorted(hits, key=itemgetter(1, 0), reverse=True)


def _by_rank(documents: Sequence[str], scores: Sequence[float], ranks: Sequence[int]) -> Columns:
    """By score, descending; equal scores by rank."""
    if _decrease(scores):
        return Columns(documents, scores)
    order = sorted(range(len(documents)), key=lambda place: (-scores[place], ranks[place]))
    return Columns([documents[place] for place in order], [scores[place] for place in order])


def _decrease(scores: Sequence[float]) -> bool:
    return all(map(gt, scores, islice(scores, 1, None)))


def _invalid_line(path: Path, form: RunForm, query: str) -> DataError:
    """The error for the first document that occurs twice for a query."""
    seen: dict[str, int] = {}
    for line in files.filled_lines(path):
        of, document, _, _ = form.row(line.text, path, line.number, ranks=False)
        if of != query:
            continue
        if document in seen:
            msg = f"document '{document}' is already at line {seen[document]} for query '{query}'. "
            msg += "List each document once."
            break
        seen[document] = line.number
    return DataError(msg, file=path, line=line.number)


def _json(path: Path) -> dict[str, dict[str, float]]:
    run = {str(query): _scored(path, line, str(query), scores) for line, query, scores in json_text.members(path)}
    if not any(run.values()):
        msg = "the file contains no results."
        raise DataError(msg, file=path)
    return run


def _scored(path: Path, line: int, query: str, scores: Any) -> dict[str, float]:
    """The hits of a query in a JSON run."""
    if not isinstance(scores, dict):
        scores = {query: scores}
    hits = {}
    for document, value in scores.items():
        if problem := id_problem(query) or id_problem(document):
            msg = f"query {shown(query)} with document {shown(document)}: {problem}"
            raise DataError(msg, file=path, line=line)
        if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_SCORE:
            msg = f"query '{query}' has {shown(value)} where a document with its score should be. {KNOWN_FORMS}"
            raise DataError(msg, file=path, line=line)
        hits[document] = float(value)
    return hits
