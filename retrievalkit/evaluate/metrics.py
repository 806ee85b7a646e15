"""The value of metrics for each query of a run.

The conventions are those of `trec_eval -c`: a query of the judgements that is absent from the run has the value 0,
nDCG's gain is the grade itself, and documents with equal scores (as 32-bit floats) are in descending order of their
ids. ir-measures delegates to several programs, which break ties in different ways; here all of them see the same order.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, get_args

import ir_measures
import numpy as np

from retrievalkit.contracts import Judged, Metric
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.runs import Columns, Hits, Ties, columns_of
from retrievalkit.errors import InputError, PluginError, check_choice, shortlist
from retrievalkit.evaluate.measures import (
    IrMeasure,
    depth_of,
    measure_of,
    metric_names,
    open_metric,
    reason,
    trec_eval_level,
    with_grade_of_zero,
)
from retrievalkit.evaluate.options import METRICS, Over
from retrievalkit.report.counts import counted

PerQuery = dict[str, dict[str, float]]


class Found(NamedTuple):
    """The hits of a judged query.

    Attributes:
        columns: As they are in the run, in any order.
        ranks: Document -> rank from 1 on, best first: the order on which metrics are computed.
    """

    columns: Columns
    ranks: dict[str, int]


class _Query(NamedTuple):
    """All that metrics depend on, whatever the documents are called.

    Attributes:
        depth: How many documents were found; None if the run lacks the query.
        grades: Name -> grade. The name of a document that was found is its rank.
    """

    depth: int | None
    grades: dict[str, int]


Visit = Callable[[str, Found], None]


_FIRST = {"RR", "Success"}  # what follows the first relevant document does not count
_HITS_AT_ONCE = 1 << 17
_FAILURES = (
    ValueError,
    TypeError,
    KeyError,
    ArithmeticError,
    RuntimeError,
    AssertionError,
    OSError,
    subprocess.SubprocessError,
)


def per_query(
    run: Mapping[str, Hits],
    qrels: Qrels,
    metrics: str | Sequence[str] = METRICS,
    *,
    ties: Ties = "document_id",
    over: Over = "qrels",
    visit: Visit | None = None,
) -> PerQuery:
    """Each metric for each query: {metric: {query_id: value}}, with the metrics named as requested.

    Args:
        run: The run; each of its judged queries is taken once, and only some are in memory at a time.
        qrels: The judgements; judged queries that are not in the run have the value 0.
        metrics: See `evaluate`.
        ties: See `Conventions`.
        over: See `Conventions`.
        visit: Called with each judged query of the run and what was found.

    Raises:
        InputError: No query of the run is in the qrels, or a metric cannot be computed.
        UnknownNameError: A metric is unknown.
    """
    check_choice("choice of ties", ties, get_args(Ties))
    check_choice("choice of queries", over, get_args(Over))
    measures = {name: measure_of(name, qrels) for name in metric_names(metrics)}
    check_overlap(run, qrels)
    values: PerQuery = {name: {} for name in measures}
    for judged in _batches(run, qrels, ties, visit):
        for name, computed in _values_of(judged, measures, over).items():
            values[name] |= computed
    return values


def _values_of(queries: Mapping[str, _Query], metrics: Mapping[str, Metric], over: Over) -> PerQuery:
    """Each metric for some queries; see `per_query`."""
    measures = {name: metric.measure for name, metric in metrics.items() if isinstance(metric, IrMeasure)}
    values = _by_ir_measures(queries, measures, over) if measures else {}
    ids = [query_id for query_id, query in queries.items() if over == "qrels" or query.depth is not None]
    return {
        name: values[name] if name in values else {one: _value(name, metric, one, queries[one]) for one in ids}
        for name, metric in metrics.items()
    }


def _value(name: str, metric: Metric, query_id: str, query: _Query) -> float:
    """A query's value of a plugin's metric."""
    depth = min(query.depth or 0, metric.cutoff or query.depth or 0)
    found = [query.grades.get(str(rank)) for rank in range(1, depth + 1)]
    value = metric.value(Judged(found, list(query.grades.values())))
    if not isinstance(value, int | float) or not math.isfinite(value):
        msg = f"metric '{name}' is {value!r} for query '{query_id}', and should be a finite number. Correct its plugin."
        raise PluginError(msg)
    return float(value)


def _by_ir_measures(queries: Mapping[str, _Query], measures: Mapping[str, Any], over: Over) -> PerQuery:
    # Some of ir-measures' programs accept only numbers as ids.
    numbers = {query_id: str(number) for number, query_id in enumerate(queries)}
    judged = {numbers[query_id]: with_grade_of_zero(query.grades) for query_id, query in queries.items()}
    # Without queries that found nothing, by whose depth some of the programs divide.
    counts = {numbers[query_id]: query.depth for query_id, query in queries.items() if query.depth}
    by_measure = _compute(list(measures.values()), judged, counts)
    ids = [query_id for query_id, query in queries.items() if over == "qrels" or query.depth is not None]
    return {
        name: {one: by_measure[measure][numbers[one]] for one in ids if numbers[one] in by_measure[measure]}
        for name, measure in measures.items()
    }


def _batches(run: Mapping[str, Hits], qrels: Qrels, ties: Ties, visit: Visit | None) -> Iterator[dict[str, _Query]]:
    """The judged queries, as many at a time as memory allows."""
    batch: dict[str, _Query] = {}
    size = 0
    for query_id, grades in qrels.items():
        if query_id not in run:
            batch[query_id] = _Query(None, grades)
            continue
        if size >= _HITS_AT_ONCE:
            yield batch
            batch, size = {}, 0
        found = _found(run, query_id, ties)
        batch[query_id] = _Query(len(found.ranks), _by_rank(grades, found.ranks))
        size += len(found.ranks) + len(grades)
        if visit is not None:
            visit(query_id, found)
    yield batch


def _found(run: Mapping[str, Hits], query_id: str, ties: Ties) -> Found:
    columns = columns_of(run, query_id)
    ranks = ranked(query_id, columns, ties)
    if len(ranks) < len(columns.documents):
        list(run[query_id])  # raises the error of a file, with the line
        msg = f"the run lists a document twice for query '{query_id}'. Remove one of them."
        raise InputError(msg)
    return Found(columns, ranks)


def _by_rank(grades: dict[str, int], ranks: dict[str, int]) -> dict[str, int]:
    """The judgements, each under its document's rank, or under a negative number if it was not found."""
    return {str(ranks.get(document, -number)): grade for number, (document, grade) in enumerate(grades.items(), 1)}


def check_overlap(run: Mapping[str, Hits], qrels: Qrels, name: str = "the run") -> None:
    """Refuse judgements that belong to other queries.

    Raises:
        InputError: No query of the run is in the qrels.
    """
    if run.keys().isdisjoint(qrels):
        msg = (
            f"no query of {name} is in the qrels: the run has {first_ids(run)}, the qrels {first_ids(qrels)}. "
            "Give the qrels of these queries."
        )
        raise InputError(msg)


class Doubts:
    """Finds possible mistakes in a run and the judgements of its queries.

    Args:
        run: The run.
        qrels: The judgements.
    """

    def __init__(self, run: Mapping[str, Hits], qrels: Qrels) -> None:
        self.run = run
        self.qrels = qrels
        self.deepest = 0
        self._shared = self._own = self._incomplete = self._without = 0
        self._judged = False

    def visit(self, query_id: str, found: Found) -> None:
        """See the hits of a judged query."""
        if not (ranks := found.ranks):
            return
        self._shared += 1
        self._own += ranks.get(query_id) == 1
        self.deepest = max(self.deepest, len(ranks))
        grades = self.qrels[query_id]
        judged = [grade for document, grade in grades.items() if document in ranks]
        self._judged = self._judged or bool(judged)
        relevant = sum(grade > 0 for grade in judged)
        self._without += not relevant
        self._incomplete += relevant < sum(grade > 0 for grade in grades.values())

    def sentences(self, metrics: str | Sequence[str]) -> list[str]:
        """What may be wrong, after all judged queries were seen."""
        sentences = []
        if self._shared and not self._judged:
            first = next(query_id for query_id in self.run if query_id in self.qrels and self.run[query_id])
            documents = first_ids(document_id for document_id, _ in self.run[first])
            sentences.append(
                f"no document of the run is judged: for query '{first}' the run has {documents}, the qrels "
                f"{first_ids(self.qrels[first])}. Do they belong to the same collection?"
            )
        if 2 * self._own > self._shared:
            sentences.append(
                f"the first document of {self._own} of {self._shared} queries has the query's own id. Where queries "
                "are documents themselves, leave these out with --exclude-self, as BEIR does."
            )
        return [*sentences, *too_deep([name for name in metric_names(metrics) if self._too_deep(name)], self.deepest)]

    def _too_deep(self, name: str) -> bool:
        """Whether a longer run might have another value."""
        metric = open_metric(name)
        first = isinstance(metric, IrMeasure) and metric.measure.NAME in _FIRST
        return (
            self._judged and (self._without if first else self._incomplete) > 0 and (metric.cutoff or 0) > self.deepest
        )


def too_deep(metrics: Sequence[str], deepest: int) -> list[str]:
    """A sentence about metrics whose cutoff is beyond the last document of a run."""
    if not metrics or not deepest:
        return []
    verb = "looks" if len(metrics) == 1 else "look"
    documents = counted(deepest, "documents")
    return [f"the run has at most {documents} per query, so {', '.join(metrics)} {verb} no further."]


def without_same_id(run: Mapping[str, Hits]) -> Mapping[str, Hits]:
    """The run without documents that have the query's id: in some collections the queries are documents too."""
    return _WithoutSameId(run)


class _WithoutSameId(Mapping[str, Hits]):
    def __init__(self, run: Mapping[str, Hits]) -> None:
        self._run = run

    def __getitem__(self, query_id: str) -> Hits:
        return [hit for hit in self._run[query_id] if hit[0] != query_id]

    def __contains__(self, query_id: object) -> bool:
        return query_id in self._run

    def __iter__(self) -> Iterator[str]:
        return iter(self._run)

    def __len__(self) -> int:
        return len(self._run)


def ranked(query_id: str, columns: Columns, ties: Ties) -> dict[str, int]:
    """Document -> rank from 1 on, in the order on which metrics are computed.

    Raises:
        InputError: A score is not a number.
    """
    ids = columns.documents
    with np.errstate(over="ignore"):
        scores = np.array(columns.scores, dtype=np.float32)
    if np.isnan(scores).any():
        msg = f"the run has a score that is not a number, for query '{query_id}'. Correct the run."
        raise InputError(msg)
    if ties == "document_id" and not (scores[:-1] > scores[1:]).all():
        ids = [document for _, document in sorted(zip(scores.tolist(), ids, strict=True), reverse=True)]
    return dict(zip(ids, range(1, len(ids) + 1), strict=True))


def _compute(measures: list[Any], qrels: Qrels, counts: Mapping[str, int]) -> dict[Any, dict[str, float]]:
    """Each measure's values; rankings are truncated to the depth that a measure needs, to save time.

    Args:
        measures: The measures.
        qrels: The judgements by rank; see `_Query`.
        counts: The number of documents found for each query.
    """
    values: dict[Any, dict[str, float]] = {measure: {} for measure in measures}
    for depth, same_depth in _by_depth(measures, max(counts.values(), default=0)).items():
        try:
            for value in ir_measures.iter_calc(same_depth, qrels, _by_scores(counts, depth)):
                values[value.measure][value.query_id] = float(value.value)
        except _FAILURES as error:
            names = ", ".join(map(str, same_depth))
            msg = f"ir-measures cannot compute {names}: {reason(error)}. Leave out the metric named there."
            raise InputError(msg) from error
    return values


def _by_depth(measures: Iterable[Any], deepest: int) -> dict[int, list[Any]]:
    """The measures that are computed together, by the depth to which they need the rankings."""
    needed = {measure: min(depth_of(measure) or deepest, deepest) for measure in measures}
    levels = {trec_eval_level(measure) for measure, depth in needed.items() if depth == deepest} - {None}
    by_depth: dict[int, list[Any]] = {}
    for measure, depth in needed.items():
        # trec_eval has all rankings for other measures: it would take as long again for the part of them.
        together = deepest if trec_eval_level(measure) in levels else depth
        by_depth.setdefault(together, []).append(measure)
    return by_depth


def _by_scores(counts: Mapping[str, int], depth: int) -> dict[str, dict[str, float]]:
    """A run whose documents are called by their ranks; queries with as many documents share their scores.

    Scores decrease by one per rank, so that all programs see one order.
    """
    names = [str(rank) for rank in range(1, depth + 1)]
    scores = {
        count: dict(zip(names, map(float, range(count, 0, -1)), strict=False))
        for count in {min(count, depth) for count in counts.values()}
    }
    return {query_id: scores[min(count, depth)] for query_id, count in counts.items()}


def first_ids(ids: Iterable[str]) -> str:
    """The first few ids, for a message."""
    return shortlist([f"'{identifier}'" for identifier in ids], 3)
