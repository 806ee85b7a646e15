"""Evaluation of a run: its metrics by judgements and its top-k accuracy, with caveats, as text, JSON and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Sized
from typing import TYPE_CHECKING, Any

from retrievalkit.data.answers import Mode, answer_hits
from retrievalkit.data.corpus import Passage
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import Hits
from retrievalkit.errors import InputError
from retrievalkit.evaluation.evaluate import Conventions
from retrievalkit.evaluation.metric_names import IrMeasure, mean, metric_names, open_metric
from retrievalkit.evaluation.metrics import PerQuery, PossibleMistakes, first_ids, per_query, too_deep
from retrievalkit.reporting import notebook
from retrievalkit.reporting.table import Tabular, text_table
from retrievalkit.reporting.terminal import counted, printable

if TYPE_CHECKING:
    from pandas import DataFrame


class Evaluation(dict[str, float], Tabular):
    """Metrics of a run: a dict from metric, as requested, to its mean; top-k accuracy is named "top5".

    Attributes:
        per_query: Metric -> query id -> value.
        queries: Metric -> the number of queries in its mean.
        notes: Caveats about the figures, as sentences.
    """

    def __init__(self) -> None:
        super().__init__()
        self.per_query: PerQuery = {}
        self.queries: dict[str, int] = {}
        self.notes: list[str] = []

    def add_judged(
        self, run: Mapping[str, Hits], qrels: Qrels, metrics: str | Sequence[str], conventions: Conventions
    ) -> None:
        """Add metrics from judgements, with notes about queries without judgements, hits or relevant documents."""
        mistakes = PossibleMistakes(run, qrels)
        values = per_query(run, qrels, metrics, ties=conventions.ties, over=conventions.over, visit=mistakes.visit)
        for name, by_query in values.items():
            self._add(name, by_query, mean(name, by_query))
        absent = f"are not in the run and {'count 0' if conventions.over == 'qrels' else 'are left out'}"
        grades = [max(judged.values(), default=0) for judged in qrels.values()]
        unsolvable = [query_id for query_id, highest in zip(qrels, grades, strict=True) if highest < 1]
        self._note(run.keys() - qrels.keys(), run, "of the run are not in the qrels and are left out")
        self._note(qrels.keys() - run.keys(), qrels, f"of the qrels {absent}")
        self._note(unsolvable, qrels, "of the qrels have no relevant document and count 0")
        self.notes.extend(mistakes.sentences(metrics))
        standard = [name for name in metric_names(metrics) if isinstance(open_metric(name), IrMeasure)]
        binary = [name for name in standard if "rel=" not in name and not name.lower().startswith("ndcg")]
        if max(grades, default=0) > 1 and binary:
            base, at, cutoff = binary[0].partition("@")
            level = f"{base}(rel=2){at}{cutoff}" if "(" not in base else f"{base[:-1]},rel=2){at}{cutoff}"
            self.notes.append(
                f"the judgements have grades up to {max(grades)}, and {', '.join(binary)} counts grades of 1 or more "
                f"as relevant. TREC Deep Learning counts 2 or more: write {level}."
            )

    def add_accuracy(
        self,
        run: Mapping[str, Hits],
        queries: Sequence[Query],
        corpus: Iterable[Passage],
        ks: Sequence[int],
        mode: Mode = "string",
    ) -> None:
        """Add top-k accuracy ("top5"): 1 if a query's first k documents contain an answer, else 0."""
        answers = {query.id: query.answers for query in queries}
        if not any(answers.values()):
            msg = 'no query has answers. Give a queries file with answers, such as DPR\'s question<TAB>["answer", ...].'
            raise InputError(msg)
        first = {query_id: run[query_id][: max(ks)] for query_id in answers if query_id in run}
        if not first:
            known = f"the run has {first_ids(run)}, the queries {first_ids(answers)}"
            msg = f"no query of the run is among the queries: {known}."
            raise InputError(msg)
        hits = answer_hits(first, answers, corpus, depth=max(ks), mode=mode)
        for k in ks:
            by_query = {query_id: float(any(hits.get(query_id, [])[:k])) for query_id in answers}
            self._add(f"top{k}", by_query, sum(by_query.values()) / len(by_query))
        self._note(run.keys() - answers.keys(), run, "of the run are not among the queries and are left out")
        self._note([query_id for query_id in answers if query_id not in run], queries, "are not in the run and count 0")
        self._note([query_id for query_id in answers if not answers[query_id]], queries, "have no answers and count 0")
        deepest = max(map(len, first.values()), default=0)
        self.notes.extend(too_deep([f"top{k}" for k in ks if k > deepest], deepest))

    def _add(self, name: str, by_query: dict[str, float], mean: float) -> None:
        self[name], self.per_query[name], self.queries[name] = mean, by_query, len(by_query)

    def _note(self, ids: Collection[str], among: Sized, problem: str) -> None:
        if ids:
            self.notes.append(f"{len(ids)} of {counted(len(among), 'queries')} {problem}: {first_ids(sorted(ids))}.")

    def as_json(self, *, per_query: bool = False) -> dict[str, Any]:
        """Return the evaluation as JSON values."""
        value: dict[str, Any] = {"metrics": dict(self), "queries": self.queries, "notes": self.notes}
        return value | {"per_query": self.per_query} if per_query else value

    def to_pandas(self) -> DataFrame:
        """Return a DataFrame with a row per query and a column per metric."""
        import pandas

        table = pandas.DataFrame(self.per_query)
        table.index.name = "query_id"
        return table

    def __repr__(self) -> str:
        return f"Evaluation({', '.join(f'{name}: {value:.4f}' for name, value in self.items())})"

    def _repr_html_(self) -> str:
        rows = [[name, value, self.queries[name]] for name, value in self.items()]
        columns = ["metric", "mean", "queries"]
        return notebook.table("Evaluation", columns, rows, numeric=columns[1:], texts=self.notes)


class Evaluations(dict[str, Evaluation]):
    """Evaluations of runs, by run name."""

    def __init__(self, *, per_query: bool = False) -> None:
        super().__init__()
        self.per_query = per_query

    @property
    def notes(self) -> list[str]:
        """Caveats about the figures, with the name of the run if there are several."""
        return [f"{name}: {note}" if len(self) > 1 else note for name, run in self.items() for note in run.notes]

    @property
    def summary(self) -> str:
        """A line per metric for one run, a line per run for several, or a tab-separated line per query."""
        metrics = list(dict.fromkeys(metric for run in self.values() for metric in run))
        rows = [["run", *(["query"] if self.per_query else []), *metrics]]
        for name, run in self.items():
            if self.per_query:
                for query_id in dict.fromkeys(query_id for values in run.per_query.values() for query_id in values):
                    values = (run.per_query[metric].get(query_id) for metric in metrics)
                    rows.append([name, query_id, *("-" if value is None else f"{value:.4f}" for value in values)])
            start = [name, "all"] if self.per_query else [name]
            rows.append([*start, *(f"{run[metric]:.4f}" for metric in metrics)])
        if self.per_query:
            return "\n".join(printable("\t".join(row)) for row in rows)
        if len(self) == 1:
            return text_table(list(zip(metrics, rows[1][1:], strict=True)), right=[1])
        return text_table(rows, right=range(1, len(metrics) + 1))

    def as_json(self) -> dict[str, Any]:
        """Return the evaluation of a single run, or of several runs by name, as JSON values."""
        values = {name: evaluation.as_json(per_query=self.per_query) for name, evaluation in self.items()}
        return {"runs": values} if len(values) > 1 else next(iter(values.values()))
