"""Measures runs against judgements or against answers: `rkit evaluate RUN [RUN...] --qrels QRELS`.

Metrics are ir-measures' by the names it gives them: "nDCG@10 RR@10 R@1000", "AP(rel=2)", "Success@1000" (the share of
queries with at least one hit, which MS MARCO papers report as recall). The mean is over all queries of the judgements,
those absent from the run count 0. `metrics` tells the other conventions. For the values of MS MARCO's script take
"RR@10" and `ties="run"`, for BEIR's `ignore_same_id=True`.

Top-k accuracy is the share of questions with an answer in the text of the first k documents (see `data.answers`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrievalkit.data.corpus import Passage, open_corpus
from retrievalkit.data.qrels import Qrels, read_qrels
from retrievalkit.data.queries import Query, read_queries
from retrievalkit.data.runs import Run, Ties, read_run, run_names
from retrievalkit.errors import InputError, OptionError
from retrievalkit.evaluate.answers import Mode, answer_hits
from retrievalkit.evaluate.metrics import (
    METRICS,
    Over,
    PerQuery,
    check_metrics,
    doubts,
    mean,
    metric_names,
    per_query,
    some,
    without_same_id,
)

KS = (5, 20, 100)


@dataclass(frozen=True)
class Evaluation(Mapping[str, float]):
    """What a run is worth: a mapping from metric, as it was asked for, to its value.

    Attributes:
        metrics: Metric to mean value; also top-k accuracy as "top5".
        per_query: Metric to query id to value.
        queries: How many queries the means are over, by metric.
        notes: What a reader of the numbers should know, as sentences.
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

    def to_json(self, *, per_query: bool = False) -> dict[str, Any]:
        """A value that `json.dumps` takes."""
        value: dict[str, Any] = {"metrics": self.metrics, "queries": self.queries, "notes": self.notes}
        return value | {"per_query": self.per_query} if per_query else value


def evaluate(
    run: Run | str | Path,
    *,
    qrels: Qrels | str | Path | None = None,
    metrics: str | Sequence[str] = METRICS,
    queries: Sequence[Query] | str | Path | None = None,
    corpus: Iterable[Passage] | str | Path | None = None,
    ks: Sequence[int] = KS,
    mode: Mode = "string",
    ties: Ties = "document_id",
    over: Over = "qrels",
    ignore_same_id: bool = False,
    processes: int | None = None,
) -> Evaluation:
    """The metrics of a run by judgements, its top-k accuracy by answers, or both.

    Args:
        run: A run, or the path of one.
        qrels: Judgements, or their path, for `metrics`.
        metrics: Names as ir-measures writes them, between spaces or as a list.
        queries: Queries with answers, or their path, for top-k accuracy.
        corpus: The passages that were searched, or their source, for top-k accuracy.
        ks: Each k of top-k accuracy.
        mode: How answers are matched, see `data.answers.has_answer`.
        ties: How documents of equal score stand: "document_id", descending, as in trec_eval; or "run", in the order
            of the run, as in MS MARCO's script.
        over: The queries that means are over: all of the "qrels", or only those in the "run" too.
        ignore_same_id: Leave out documents that have the query's own id, as in BEIR's ArguAna and Quora.
        processes: How many processes match answers; chosen by the size of the run where None.

    Raises:
        InputError: There is nothing to evaluate by, or nothing of the run is in the qrels or queries.
        UnknownNameError: A metric is unknown.
    """
    if qrels is None and queries is None:
        msg = "nothing to evaluate by. Give judgements (--qrels), or answers and their corpus (--answers, --corpus)."
        raise InputError(msg)
    if queries is not None and corpus is None:
        msg = "top-k accuracy looks for answers in the passages' texts. Give the corpus that was searched (--corpus)."
        raise InputError(msg)
    if qrels is not None:
        qrels = read_qrels(qrels) if isinstance(qrels, str | Path) else qrels
        check_metrics(metrics, qrels)
    run = read_run(run, ties) if isinstance(run, str | Path) else run
    if ignore_same_id:
        run = without_same_id(run)
    values: PerQuery = {}
    notes: list[str] = []
    means: dict[str, float] = {}
    if qrels is not None:
        notes += _notes(run, qrels, metrics, over)
        values = per_query(run, qrels, metrics, ties=ties, over=over)
        means = {name: mean(name, by_query) for name, by_query in values.items()}
    if queries is not None and corpus is not None:
        queries = read_queries(queries) if isinstance(queries, str | Path) else queries
        corpus = open_corpus(corpus) if isinstance(corpus, str | Path) else corpus
        notes += _answer_notes(run, queries, ks)
        accuracy = answer_values(run, queries, corpus, ks, mode=mode, processes=processes)
        values |= accuracy
        means |= {name: _average(by_query.values()) for name, by_query in accuracy.items()}
    return Evaluation(means, values, {name: len(by_query) for name, by_query in values.items()}, notes)


def evaluate_runs(
    runs: Sequence[str | Path],
    *,
    qrels: Qrels | str | Path | None = None,
    queries: Sequence[Query] | str | Path | None = None,
    corpus: Iterable[Passage] | str | Path | None = None,
    **options: Any,
) -> dict[str, Evaluation]:
    """Several runs by the same judgements or answers, by the names of their files; else as `evaluate`."""
    names = run_names(runs)
    read: dict[str, Any] = {"qrels": qrels, "queries": queries, "corpus": corpus}
    if qrels is not None and not isinstance(qrels, Mapping):
        read["qrels"] = read_qrels(qrels)
    if isinstance(queries, str | Path):
        read["queries"] = read_queries(queries)
    if isinstance(corpus, str | Path):
        read["corpus"] = open_corpus(corpus)
    return {name: evaluate(run, **read, **options) for name, run in zip(names, runs, strict=True)}


def as_text(found: Mapping[str, Evaluation], *, per_query: bool = False) -> str:
    """For a terminal: a line a metric for one run, a line a run for several, or tab-separated a line a query."""
    metrics = list(dict.fromkeys(metric for one in found.values() for metric in one))
    if per_query:
        rows = [["run", "query", *metrics]]
        for name, one in found.items():
            ids = dict.fromkeys(query_id for values in one.per_query.values() for query_id in values)
            rows += [
                [name, query_id, *(_shown(one.per_query[metric].get(query_id)) for metric in metrics)]
                for query_id in ids
            ]
            rows.append([name, "all", *(_shown(one[metric]) for metric in metrics)])
        return "\n".join("\t".join(row) for row in rows)
    if len(found) == 1:
        ((_, only),) = found.items()
        rows = [[name, f"{value:.4f}"] for name, value in only.items()]
    else:
        rows = [
            ["run", *metrics],
            *([name, *(_shown(one[metric]) for metric in metrics)] for name, one in found.items()),
        ]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(
        "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows
    )


def cutoffs(text: str) -> list[int]:
    """Whole numbers from 1 on, between spaces or commas.

    Raises:
        OptionError: It is something else.
    """
    words = text.replace(",", " ").split()
    if not words or not all(word.isdecimal() and int(word) > 0 for word in words):
        msg = f"'{text}' are no cutoffs of top-k accuracy. Write whole numbers from 1 on, such as '5 20 100'."
        raise OptionError(msg)
    return list(map(int, words))


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.4f}"


def top_k_accuracy(
    run: Run,
    queries: Iterable[Query],
    corpus: Iterable[Passage],
    ks: Sequence[int] = KS,
    *,
    mode: Mode = "string",
    processes: int | None = None,
) -> dict[str, float]:
    """The share of all queries that have an answer in their first k documents: {"top5": ..., "top20": ...}.

    Args:
        run: The run, best first; a query that is not in it counts 0.
        queries: The queries with their answers.
        corpus: The passages that were searched.
        ks: Each k.
        mode: See `data.answers.has_answer`.
        processes: See `data.answers.answer_hits`.

    Raises:
        InputError: No query has an answer, or none of them is in the run.
        DataError: A retrieved document is not in the corpus.
    """
    values = answer_values(run, queries, corpus, ks, mode=mode, processes=processes)
    return {name: _average(by_query.values()) for name, by_query in values.items()}


def answer_values(
    run: Run,
    queries: Iterable[Query],
    corpus: Iterable[Passage],
    ks: Sequence[int] = KS,
    *,
    mode: Mode = "string",
    processes: int | None = None,
) -> PerQuery:
    """For each k and query 1 where an answer is among the first k documents, else 0: {"top5": {query_id: 1.0}}.

    The arguments and errors are those of `top_k_accuracy`.
    """
    answers = {query.id: query.answers for query in queries}
    if not any(answers.values()):
        msg = 'no query has answers. Give a queries file with answers, such as DPR\'s question<TAB>["answer", ...].'
        raise InputError(msg)
    if run.keys().isdisjoint(answers):
        msg = f"no query of the run is among the queries: the run has {some(run)}, the queries {some(answers)}."
        raise InputError(msg)
    if not ks or min(ks) < 1:
        msg = f"the k of top-k accuracy are {list(ks)}; give one or more whole numbers from 1 on."
        raise OptionError(msg)
    hits = answer_hits(run, answers, corpus, depth=max(ks), mode=mode, processes=processes)
    return {f"top{k}": {query_id: float(any(hits.get(query_id, [])[:k])) for query_id in answers} for k in ks}


def _average(values: Iterable[float]) -> float:
    values = list(values)
    return math.fsum(values) / len(values)


def _notes(run: Run, qrels: Qrels, metrics: str | Sequence[str], over: Over) -> list[str]:
    """What the judgements leave in doubt."""
    absent = "are not in the run and count 0" if over == "qrels" else "are not in the run and are left out"
    grades = [max(judged.values(), default=0) for judged in qrels.values()]
    barren = [query_id for query_id, highest in zip(qrels, grades, strict=True) if highest < 1]
    notes = [
        *_count(run.keys() - qrels.keys(), run, "of the run are not in the qrels and are left out"),
        *_count(qrels.keys() - run.keys(), qrels, f"of the qrels {absent}"),
        *_count(barren, qrels, "of the qrels have no relevant document and count 0"),
        *doubts(run, qrels),
    ]
    binary = [name for name in metric_names(metrics) if "rel=" not in name and not name.lower().startswith("ndcg")]
    if max(grades, default=0) > 1 and binary:
        notes.append(
            f"the judgements are graded up to {max(grades)}, and every grade from 1 on is relevant to "
            f"{', '.join(binary)}. TREC Deep Learning counts from 2 on: write {_with_level(binary[0])}."
        )
    return notes


def _answer_notes(run: Run, queries: Sequence[Query], ks: Sequence[int]) -> list[str]:
    notes = [
        *_count(
            run.keys() - {query.id for query in queries}, run, "of the run are not among the queries and are left out"
        ),
        *_count([query.id for query in queries if query.id not in run], queries, "are not in the run and count 0"),
        *_count([query.id for query in queries if not query.answers], queries, "have no answers and count 0"),
    ]
    deepest = max(map(len, run.values()), default=0)
    if short := [f"top{k}" for k in ks if k > deepest]:
        notes.append(f"the run has at most {deepest} documents a query, so {', '.join(short)} look no further.")
    return notes


def _count(ids: Collection[str], among: Sized, what: str) -> list[str]:
    return [f"{len(ids)} of {len(among)} queries {what}: {some(sorted(ids))}."] if ids else []


def _with_level(name: str) -> str:
    base, at, cutoff = name.partition("@")
    return f"{base}(rel=2){at}{cutoff}" if "(" not in base else f"{base[:-1]},rel=2){at}{cutoff}"
