"""Evaluates runs by judgements or by answers.

Metrics are those of ir-measures, by its names: "nDCG@10 RR@10 R@1000", "AP(rel=2)", "Success@1000" (the share of
queries with at least one hit, which MS MARCO papers report as recall). The mean is over all queries of the judgements;
those absent from the run count 0. `Conventions` has the choices: `ties="run"` with "RR@10" for the values of MS MARCO's
script, `exclude_self=True` for those of BEIR.

Top-k accuracy is the share of questions with an answer in the text of the first k documents; see `answers`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from retrievalkit.data.corpus import Passage, open_corpus
from retrievalkit.data.qrels import Qrels, read_qrels
from retrievalkit.data.queries import Query, read_queries
from retrievalkit.data.runs import Hits, Run, check_run, open_run
from retrievalkit.errors import InputError, OptionError
from retrievalkit.evaluate.answers import Mode, answer_hits
from retrievalkit.evaluate.measures import IrMeasure, check_metrics, mean, metric_names, open_metric
from retrievalkit.evaluate.metrics import (
    Doubts,
    PerQuery,
    first_ids,
    per_query,
    too_deep,
    without_same_id,
)
from retrievalkit.evaluate.options import METRICS, Conventions
from retrievalkit.report import notebook
from retrievalkit.report.counts import counted
from retrievalkit.report.table import Tabular, text_table
from retrievalkit.report.terminal import printable

if TYPE_CHECKING:
    from pandas import DataFrame

KS = (5, 20, 100)


@dataclass(frozen=True)
class AnswerOptions:
    """How top-k accuracy is computed.

    Attributes:
        ks: Each k.
        mode: How answers are matched, see `answers.AnswerMatcher`.
        processes: How many processes match answers; None = by the size of the run.

    Raises:
        OptionError: There is no k, or one is less than 1.
    """

    ks: Sequence[int] = KS
    mode: Mode = "string"
    processes: int | None = None

    def __post_init__(self) -> None:
        if not self.ks or min(self.ks) < 1:
            msg = f"the k of top-k accuracy are {list(self.ks)}; give one or more whole numbers from 1 on."
            raise OptionError(msg)


@dataclass(frozen=True)
class Evaluation(Mapping[str, float], Tabular):
    """The quality of a run: a mapping from metric, as requested, to its value.

    Attributes:
        metrics: Metric -> mean; also top-k accuracy as "top5".
        per_query: Metric -> query id -> value.
        queries: Metric -> the number of queries in its mean.
        notes: Caveats about the figures, as sentences.
    """

    metrics: dict[str, float]
    per_query: PerQuery
    queries: dict[str, int]
    notes: list[str] = field(default_factory=list)

    def __getitem__(self, metric: str) -> float:
        return self.metrics[metric]

    def __iter__(self) -> Iterator[str]:
        return iter(self.metrics)

    def __len__(self) -> int:
        return len(self.metrics)

    def as_json(self, *, per_query: bool = False) -> dict[str, Any]:
        """The evaluation as JSON values."""
        value: dict[str, Any] = {"metrics": self.metrics, "queries": self.queries, "notes": self.notes}
        return value | {"per_query": self.per_query} if per_query else value

    def to_pandas(self) -> DataFrame:
        """A table with a row for each query, and a column for each metric."""
        import pandas

        table = pandas.DataFrame(self.per_query)
        table.index.name = "query_id"
        return table

    def to_arrow(self) -> Any:
        """The same as an Arrow table, with the queries in the column `query_id`."""
        import pyarrow

        return pyarrow.Table.from_pandas(self.to_pandas().reset_index(), preserve_index=False)

    def __repr__(self) -> str:
        return f"Evaluation({', '.join(f'{name}: {value:.4f}' for name, value in self.items())})"

    def _repr_html_(self) -> str:
        rows = [[name, value, self.queries[name]] for name, value in self.items()]
        columns = ["metric", "mean", "queries"]
        return notebook.table("Evaluation", columns, rows, numeric=columns[1:], texts=self.notes)


class Evaluations(dict[str, Evaluation]):
    """Evaluations of runs, by the names of the runs.

    Args:
        evaluations: The evaluations.
        per_query: Whether text and JSON have the values of each query.
    """

    def __init__(self, evaluations: Mapping[str, Evaluation], *, per_query: bool = False) -> None:
        super().__init__(evaluations)
        self.per_query = per_query

    @property
    def notes(self) -> list[str]:
        """Caveats about the figures, with the name of the run if there are several."""
        return [f"{name}: {note}" if len(self) > 1 else note for name, one in self.items() for note in one.notes]

    @property
    def summary(self) -> str:
        """A line per metric for one run, a line per run for several, or tab-separated a line per query."""
        metrics = list(dict.fromkeys(metric for run in self.values() for metric in run))
        if self.per_query:
            return "\n".join(printable("\t".join(row)) for row in self._per_query_rows(metrics))
        if len(self) == 1:
            (only,) = self.values()
            return text_table([[name, f"{value:.4f}"] for name, value in only.items()], right=[1])
        values = ([name, *(_shown(run[metric]) for metric in metrics)] for name, run in self.items())
        return text_table([["run", *metrics], *values], right=range(1, len(metrics) + 1))

    def _per_query_rows(self, metrics: Sequence[str]) -> Iterator[list[str]]:
        """For each run, a row per query and then one for all."""
        yield ["run", "query", *metrics]
        for name, run in self.items():
            for query_id in dict.fromkeys(query_id for values in run.per_query.values() for query_id in values):
                yield [name, query_id, *(_shown(run.per_query[metric].get(query_id)) for metric in metrics)]
            yield [name, "all", *(_shown(run[metric]) for metric in metrics)]

    def as_json(self) -> dict[str, Any]:
        """The evaluation of one run, or of several by their names, as JSON values."""
        values = {name: one.as_json(per_query=self.per_query) for name, one in self.items()}
        return {"runs": values} if len(values) > 1 else next(iter(values.values()))


def evaluate(
    run: Mapping[str, Hits] | str | Path,
    *,
    qrels: Qrels | str | Path | None = None,
    metrics: str | Sequence[str] = METRICS,
    queries: Sequence[Query] | str | Path | None = None,
    corpus: Iterable[Passage] | str | Path | None = None,
    answers: AnswerOptions = AnswerOptions(),
    conventions: Conventions = Conventions(),  # noqa: B008 - it is frozen
) -> Evaluation:
    """The metrics of a run by judgements, its top-k accuracy by answers, or both.

    Args:
        run: A run, or the path of one.
        qrels: Judgements, or their path, for `metrics`.
        metrics: Names as ir-measures writes them, between spaces or as a list.
        queries: Queries with answers, or their path, for top-k accuracy.
        corpus: The passages that were searched, or their source, for top-k accuracy.
        answers: How top-k accuracy is computed.
        conventions: How metrics are computed where programs differ.

    With judgements, queries that all lack answers are noted, and there is no top-k accuracy.

    Raises:
        InputError: There are neither judgements nor answers, or they share no query with the run.
        UnknownNameError: A metric is unknown.
    """
    if qrels is None and queries is None:
        msg = "nothing to evaluate by. Give judgements (qrels), or answers and their corpus."
        raise InputError(msg)
    if queries is not None and corpus is None:
        msg = "top-k accuracy looks for answers in the passages' texts. Give the corpus that was searched."
        raise InputError(msg)
    if qrels is not None:
        qrels = read_qrels(qrels) if isinstance(qrels, str | Path) else qrels
        check_metrics(metrics, qrels)
    whole: Mapping[str, Hits] = open_run(run, conventions.ties) if isinstance(run, str | Path) else run
    run = without_same_id(whole) if conventions.exclude_self else whole
    values: PerQuery = {}
    notes: list[str] = []
    means: dict[str, float] = {}
    if qrels is not None:
        doubts = Doubts(run, qrels)
        values = per_query(run, qrels, metrics, ties=conventions.ties, over=conventions.over, visit=doubts.visit)
        notes += _notes(run, qrels, metrics, conventions, doubts)
        means = {name: mean(name, by_query) for name, by_query in values.items()}
    if queries is not None and corpus is not None:
        queries = read_queries(queries) if isinstance(queries, str | Path) else queries
        if qrels is not None and not any(query.answers for query in queries):
            notes.append("no query has answers, so there is no top-k accuracy.")
        else:
            corpus = open_corpus(corpus) if isinstance(corpus, str | Path) else corpus
            first = {query.id: run[query.id][: max(answers.ks)] for query in queries if query.id in run}
            notes += _answer_notes(run, first, queries, answers.ks)
            accuracy = _answer_values(first, run, queries, corpus, answers)
            values |= accuracy
            means |= {name: math.fsum(by_query.values()) / len(by_query) for name, by_query in accuracy.items()}
    check_run(whole)
    return Evaluation(means, values, {name: len(by_query) for name, by_query in values.items()}, notes)


def cutoffs(values: str | Sequence[int | str]) -> list[int]:
    """Whole numbers from 1 on, in a list or between spaces or commas.

    Raises:
        OptionError: It is something else.
    """
    text = values if isinstance(values, str) else " ".join(map(str, values))
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        msg = (
            f"'{text}' is not a list of cutoffs for top-k accuracy. Write whole numbers from 1 on, such as '5 20 100'."
        )
        raise OptionError(msg)
    return list(map(int, words))


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def _answer_values(
    first: Run,
    run: Mapping[str, Hits],
    queries: Sequence[Query],
    corpus: Iterable[Passage],
    options: AnswerOptions,
) -> PerQuery:
    """For each k and query 1 if an answer is among the first k documents, else 0: {"top5": {query_id: 1.0}}."""
    answers = {query.id: query.answers for query in queries}
    if not any(answers.values()):
        msg = 'no query has answers. Give a queries file with answers, such as DPR\'s question<TAB>["answer", ...].'
        raise InputError(msg)
    if not first:
        msg = (
            f"no query of the run is among the queries: the run has {first_ids(run)}, the queries {first_ids(answers)}."
        )
        raise InputError(msg)
    hits = answer_hits(first, answers, corpus, depth=max(options.ks), mode=options.mode, processes=options.processes)
    return {f"top{k}": {query_id: float(any(hits.get(query_id, [])[:k])) for query_id in answers} for k in options.ks}


def _notes(
    run: Mapping[str, Hits],
    qrels: Qrels,
    metrics: str | Sequence[str],
    conventions: Conventions,
    doubts: Doubts,
) -> list[str]:
    """Sentences about queries without judgements, hits or relevant documents, and about grades."""
    absent = f"are not in the run and {'count 0' if conventions.over == 'qrels' else 'are left out'}"
    grades = [max(judged.values(), default=0) for judged in qrels.values()]
    without = [query_id for query_id, highest in zip(qrels, grades, strict=True) if highest < 1]
    notes = [
        *_count(run.keys() - qrels.keys(), run, "of the run are not in the qrels and are left out"),
        *_count(qrels.keys() - run.keys(), qrels, f"of the qrels {absent}"),
        *_count(without, qrels, "of the qrels have no relevant document and count 0"),
        *doubts.sentences(metrics),
    ]
    usual = [name for name in metric_names(metrics) if isinstance(open_metric(name), IrMeasure)]
    binary = [name for name in usual if "rel=" not in name and not name.lower().startswith("ndcg")]
    if max(grades, default=0) > 1 and binary:
        notes.append(
            f"the judgements have grades up to {max(grades)}, and {', '.join(binary)} counts every grade from 1 on as "
            f"relevant. TREC Deep Learning counts from 2 on: write {_with_level(binary[0])}."
        )
    return notes


def _answer_notes(run: Mapping[str, Hits], first: Run, queries: Sequence[Query], ks: Sequence[int]) -> list[str]:
    notes = [
        *_count(
            run.keys() - {query.id for query in queries}, run, "of the run are not among the queries and are left out"
        ),
        *_count([query.id for query in queries if query.id not in run], queries, "are not in the run and count 0"),
        *_count([query.id for query in queries if not query.answers], queries, "have no answers and count 0"),
    ]
    deepest = max(map(len, first.values()), default=0)
    return [*notes, *too_deep([f"top{k}" for k in ks if k > deepest], deepest)]


def _count(ids: Collection[str], among: Sized, problem: str) -> list[str]:
    return [f"{len(ids)} of {counted(len(among), 'queries')} {problem}: {first_ids(sorted(ids))}."] if ids else []


def _with_level(name: str) -> str:
    base, at, cutoff = name.partition("@")
    return f"{base}(rel=2){at}{cutoff}" if "(" not in base else f"{base[:-1]},rel=2){at}{cutoff}"
