"""Metric values for each query of a run.

The conventions are trec_eval's with -c: a judged query that is absent from the run has the value 0, nDCG's gain is the
grade itself, and documents with equal scores (as 32-bit floats) are in descending order of their ids. ir-measures
delegates to several programs, which break ties in different ways; here all of them see the same order.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np

from retrievalkit import registry
from retrievalkit.contracts import Judged, Metric
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.runs import Columns, Hits, Ties, columns_of
from retrievalkit.errors import InputError, shortlist
from retrievalkit.evaluation.evaluate import METRICS, Over
from retrievalkit.evaluation.metric_names import (
    IrMeasure,
    RankedQuery,
    computed_by_ir_measures,
    measure_of,
    metric_names,
    open_metric,
)
from retrievalkit.reporting.terminal import counted

PerQuery = dict[str, dict[str, float]]


Visit = Callable[[str, Columns, dict[str, int]], None]
"""Called with a judged query, its hits, and document -> rank (from 1): the order on which metrics are computed."""

_FIRST = {"RR", "Success"}  # documents after the first relevant document do not count
_BATCH_HITS = 1 << 17


def per_query(
    run: Mapping[str, Hits],
    qrels: Qrels,
    metrics: str | Sequence[str] = METRICS,
    *,
    ties: Ties = "document_id",
    over: Over = "qrels",
    visit: Visit | None = None,
) -> PerQuery:
    """Compute each metric for each query, {metric: {query_id: value}}, by requested name; see `Conventions`.

    Only some queries are in memory at a time; `visit` is called with each judged query of the run and its hits.
    """
    by_name = {name: measure_of(name, qrels) for name in metric_names(metrics)}
    measures = {name: metric for name, metric in by_name.items() if isinstance(metric, IrMeasure)}
    check_overlap(run, qrels)
    values: PerQuery = {name: {} for name in by_name}
    for queries in _batches(run, qrels, ties, visit):
        computed = computed_by_ir_measures(queries, list(measures.values())) if measures else {}
        for query_id, query in queries.items():
            if over == "run" and query.depth is None:
                continue
            for name, metric in by_name.items():
                if not isinstance(metric, IrMeasure):
                    values[name][query_id] = _value(name, metric, query_id, query)
                elif query_id in computed[metric.measure]:
                    values[name][query_id] = computed[metric.measure][query_id]
    return values


def _value(name: str, metric: Metric, query_id: str, query: RankedQuery) -> float:
    """Compute a plugin's metric for a query."""
    depth = min(query.depth or 0, metric.cutoff or query.depth or 0)
    ranked = [query.grades.get(str(rank)) for rank in range(1, depth + 1)]
    value = metric.value(Judged(ranked, list(query.grades.values())))
    if not isinstance(value, int | float) or not math.isfinite(value):
        problem = f"'{name}' is {value!r} for query '{query_id}', but should be a finite number"
        raise registry.wrong_result("metric", metric, problem)
    return float(value)


def _batches(
    run: Mapping[str, Hits], qrels: Qrels, ties: Ties, visit: Visit | None
) -> Iterator[dict[str, RankedQuery]]:
    """Yield batches of judged queries of limited size in memory."""
    batch: dict[str, RankedQuery] = {}
    size = 0
    for query_id, grades in qrels.items():
        if query_id not in run:
            batch[query_id] = RankedQuery(None, grades)
            continue
        if size >= _BATCH_HITS:
            yield batch
            batch, size = {}, 0
        columns = columns_of(run, query_id)
        ranks = _ranked(query_id, columns, ties)
        if len(ranks) < len(columns.documents):
            list(run[query_id])  # raises the error of a file, with the line
            msg = f"the run lists a document twice for query '{query_id}'. Remove one of them."
            raise InputError(msg)
        # Judgements are keyed by their document's rank, or by a negative number if the run lacks the document.
        by_rank = {str(ranks.get(name, -number)): grade for number, (name, grade) in enumerate(grades.items(), 1)}
        batch[query_id] = RankedQuery(len(ranks), by_rank)
        size += len(ranks) + len(grades)
        if visit is not None:
            visit(query_id, columns, ranks)
    yield batch


def _ranked(query_id: str, columns: Columns, ties: Ties) -> dict[str, int]:
    """Document -> rank (from 1), in the order on which metrics are computed."""
    ids = columns.documents
    with np.errstate(over="ignore"):
        scores = np.array(columns.scores, dtype=np.float32)
    if np.isnan(scores).any():
        msg = f"the run has a score that is not a number, for query '{query_id}'. Correct the run."
        raise InputError(msg)
    if ties == "document_id" and not (scores[:-1] > scores[1:]).all():
        ids = [document for _, document in sorted(zip(scores.tolist(), ids, strict=True), reverse=True)]
    return dict(zip(ids, range(1, len(ids) + 1), strict=True))


def check_overlap(run: Mapping[str, Hits], qrels: Qrels, name: str = "the run") -> None:
    """Refuse judgements that share no query with the run."""
    if run.keys().isdisjoint(qrels):
        msg = (
            f"no query of {name} is in the qrels: the run has {first_ids(run)}, the qrels {first_ids(qrels)}. "
            "Give the qrels of these queries."
        )
        raise InputError(msg)


class PossibleMistakes:
    """Detection of possible mistakes in a run and in the judgements of its queries."""

    def __init__(self, run: Mapping[str, Hits], qrels: Qrels) -> None:
        self.run = run
        self.qrels = qrels
        self.deepest = 0
        self._shared = self._same_id = self._incomplete = self._without_relevant = 0
        self._judged = False

    def visit(self, query_id: str, _: Columns, ranks: dict[str, int]) -> None:
        """Record the hits of a judged query."""
        if not ranks:
            return
        self._shared += 1
        self._same_id += ranks.get(query_id) == 1
        self.deepest = max(self.deepest, len(ranks))
        grades = self.qrels[query_id]
        judged = [grade for document, grade in grades.items() if document in ranks]
        self._judged = self._judged or bool(judged)
        relevant = sum(grade > 0 for grade in judged)
        self._without_relevant += not relevant
        self._incomplete += relevant < sum(grade > 0 for grade in grades.values())

    def sentences(self, metrics: str | Sequence[str]) -> list[str]:
        """Describe the possible mistakes, after all judged queries were visited."""
        sentences = []
        if self._shared and not self._judged:
            first = next(query_id for query_id in self.run if query_id in self.qrels and self.run[query_id])
            documents = first_ids(document_id for document_id, _ in self.run[first])
            sentences.append(
                f"no document of the run is judged: for query '{first}' the run has {documents}, the qrels "
                f"{first_ids(self.qrels[first])}. Do they belong to the same collection?"
            )
        if 2 * self._same_id > self._shared:
            sentences.append(
                f"the first document of {self._same_id} of {self._shared} queries has the query's own id. If queries "
                "are documents themselves, exclude these hits with --exclude-self, as BEIR does."
            )
        limited = []
        for name in metric_names(metrics):
            metric = open_metric(name)
            only_first = isinstance(metric, IrMeasure) and metric.measure.NAME in _FIRST
            if (
                self._judged
                and (self._without_relevant if only_first else self._incomplete)
                and (metric.cutoff or 0) > self.deepest
            ):
                limited.append(name)
        return [*sentences, *too_deep(limited, self.deepest)]


def too_deep(metrics: Sequence[str], deepest: int) -> list[str]:
    """Return a sentence about metrics whose cutoff is beyond the last document of a run."""
    if not metrics or not deepest:
        return []
    verb = "looks" if len(metrics) == 1 else "look"
    documents = counted(deepest, "documents")
    return [f"the run has at most {documents} per query, so {', '.join(metrics)} {verb} no further."]


class WithoutSameId(Mapping[str, Hits]):
    """A run without documents that have the query's id: in some collections the queries are documents too."""

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


def first_ids(ids: Iterable[str]) -> str:
    """Return the first few ids, for a message."""
    return shortlist([f"'{identifier}'" for identifier in ids], 3)
