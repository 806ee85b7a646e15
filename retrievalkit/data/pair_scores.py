"""Re-ranker scores of query-passage pairs, from a file format that cannot execute code (no pickle).

    a table with the header qid, pid, score, or those three columns       571018 <tab> 7349777 <tab> 9.5
    JSON lines, or a JSON array of objects                                {"qid": 571018, "pid": 7349777, "score": 9.5}
    JSON lines with one or more queries                                   {"571018": {"7349777": 9.5, "2": -3.1}}

Scores are kept as sorted arrays: the 160 million pairs of MS MARCO take about 3 GB.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import chain, islice
from pathlib import Path

import numpy as np

from retrievalkit.data import files
from retrievalkit.data.forms import GRADES, JUDGED_DOCUMENTS, JUDGED_QUERIES, number
from retrievalkit.data.json_text import shown
from retrievalkit.data.records import Record, Table, read_records
from retrievalkit.errors import DataError

KNOWN = ("a table qid, pid, score", 'JSON lines {"qid": 1, "pid": 2, "score": 9.5} or {qid: {pid: score}}')

_COLUMNS = (JUDGED_QUERIES, JUDGED_DOCUMENTS, GRADES)
_BATCH = 1 << 20
_PICKLED = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
_PICKLES = (".pkl", ".pickle", ".pkl.gz", ".pickle.gz")


class PairScores:
    """Scores of query-passage pairs: query ids and passage ids, as bytes, and scores, each of shape (pairs,)."""

    def __init__(self, source: str | Path, queries: np.ndarray, passages: np.ndarray, scores: np.ndarray) -> None:
        self.source = str(source)
        self._passages, self._scores = passages, scores
        starts = _starts(queries)
        if len(np.unique(queries[starts])) < len(starts):
            order = np.argsort(queries, kind="stable")
            queries, self._passages, self._scores = queries[order], passages[order], scores[order]
            starts = _starts(queries)
        names = map(bytes.decode, queries[starts].tolist())
        ends = [*starts[1:].tolist(), len(queries)]
        self._places = dict(zip(names, zip(starts.tolist(), ends, strict=True), strict=True))

    @classmethod
    def read(cls, path: str | Path) -> PairScores:
        """Read scores from a file."""
        path = files.existing(path)
        with files.open_bytes(path) as stream:
            first = stream.read(2)
        if first in _PICKLED or path.name.endswith(_PICKLES):
            msg = (
                "it is a pickle, which is refused because it can run any code when it is loaded. If you trust it, load "
                f"it yourself and save it in another format: {'; '.join(KNOWN)}."
            )
            raise DataError(msg, file=path)
        pairs = chain.from_iterable(map(_of_record, read_records(path, _table, "scores", KNOWN)))
        parts = []
        while batch := list(islice(pairs, _BATCH)):
            queries, passages, scores = zip(*batch, strict=True)
            parts.append((np.array(queries), np.array(passages), np.array(scores)))
        if not parts:
            msg = f"it contains no scores. Known formats: {'; '.join(KNOWN)}."
            raise DataError(msg, file=path)
        return cls(path, *(np.concatenate(column) for column in zip(*parts, strict=True)))

    def of(self, query_id: str) -> dict[str, float]:
        """Passage id -> score, for all scored passages of a query."""
        start, end = self._places.get(query_id, (0, 0))
        ids = list(map(bytes.decode, self._passages[start:end].tolist()))
        scores = dict(zip(ids, self._scores[start:end].tolist(), strict=True))
        if len(scores) < len(ids):
            repeated = next(passage for passage in scores if ids.count(passage) > 1)
            msg = f"the passage '{repeated}' has two scores for the query '{query_id}'. Keep one."
            raise DataError(msg, file=self.source)
        return scores


def _starts(queries: np.ndarray) -> np.ndarray:
    """Return the start of each run of equal ids."""
    return np.concatenate([[0], np.flatnonzero(queries[1:] != queries[:-1]) + 1])


def _table(row: list[str]) -> Table | None:
    names = tuple(cell.strip().lower() for cell in row)
    if all(any(name in known for name in names) for known in _COLUMNS):
        return Table(names, header=True)
    return Table(("qid", "pid", "score")) if len(row) == 3 else None


def _of_record(record: Record) -> Iterator[tuple[bytes, bytes, float]]:
    fields = record.fields
    if fields and all(isinstance(value, Mapping) for value in fields.values()):
        pairs = [(query, passage, score) for query, scores in fields.items() for passage, score in scores.items()]
    else:
        names = [next((name for name in known if name in fields), "") for known in _COLUMNS]
        if not all(names):
            raise record.unknown_form("score of a pair", KNOWN)
        pairs = [(record.identifier(names[0]), record.identifier(names[1]), fields[names[2]])]
    for query, passage, value in pairs:
        score = math.nan if isinstance(value, bool) else number(value)
        if not math.isfinite(score):
            msg = f"the score is {shown(value)}, but should be a number."
            raise record.error(msg)
        yield query.encode(), passage.encode(), score
