"""Comparison of runs by a metric, its result, and its display on a terminal; the HTML page is in `page`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrievalkit.evaluation.compare.compare import ALL_PAIRS, PERMUTATIONS, RESAMPLES
from retrievalkit.evaluation.metrics import PerQuery
from retrievalkit.evaluation.significance import bootstrap_intervals, counts, holm, randomisation_test, t_test
from retrievalkit.reporting import notebook
from retrievalkit.reporting.table import Tabular, text_table
from retrievalkit.reporting.terminal import printable

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Console

HEADER = (
    "metric", "run", "mean", "interval", "against", "difference", "interval of difference", "p", "p (Holm)",
    "p (t-test)", "p (t-test, Holm)", "won/tied/lost",
)  # fmt: skip
NUMERIC = [place for place, name in enumerate(HEADER) if name not in ("metric", "run", "against")]
"""The numeric columns of `HEADER`."""
_COLUMNS = ("metric", "run", "mean", "interval", "against", "difference", "interval of difference", "p (Holm)")


@dataclass(frozen=True)
class Mean:
    """A run's mean of a metric over `queries` queries, and its interval."""

    metric: str
    run: str
    mean: float
    low: float
    high: float
    queries: int


@dataclass(frozen=True)
class TopHit:
    """A document at the top of a ranking.

    Attributes:
        grade: None if the document is not judged.
        title: "" without a corpus.
        snippet: The part of the text that contains most words of the query; "" without a corpus.
        matches: (start, end) of the query's words in the snippet's characters.
    """

    rank: int
    document_id: str
    score: float
    grade: int | None
    title: str = ""
    snippet: str = ""
    matches: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Ranking:
    """A run's ranking for a query.

    Attributes:
        first: Its first documents.
        relevant_at: The ranks of its relevant documents.
        relevant: The number of relevant documents, in the run or not.
    """

    first: list[TopHit]
    relevant_at: list[int]
    relevant: int


@dataclass(frozen=True)
class QueryDifference:
    """A query on which two runs differ: the metric of the run, and of the run it is compared with."""

    query_id: str
    value: float
    against: float
    text: str | None = None
    rankings: dict[str, Ranking] = field(default_factory=dict)

    @property
    def difference(self) -> float:
        """Positive if the run is better."""
        return self.value - self.against


@dataclass(frozen=True)
class Difference:
    """The difference between a run and another, and its significance.

    Attributes:
        difference: The mean over the queries of run minus against; its bootstrap interval is [low, high].
        p_value: The p-value of the paired randomisation test.
        t_test: The p-value of the paired t-test.
        wins: Queries that the run wins; similarly `ties` and `losses`.
        p_corrected: `p_value`, Holm-corrected over the metric's pairs; similarly `t_test_corrected`.
        largest: The queries that differ most, best first, wins before losses.
    """

    metric: str
    run: str
    against: str
    difference: float
    low: float
    high: float
    p_value: float
    t_test: float
    wins: int
    ties: int
    losses: int
    p_corrected: float
    t_test_corrected: float
    largest: list[QueryDifference]


def compare_metric(
    metric: str,
    values: PerQuery,
    pairs: Sequence[tuple[str, str]],
    texts: Mapping[str, str],
    *,
    confidence: float,
    seed: int,
    examples: int,
) -> tuple[list[Mean], list[Difference]]:
    """Compute the means of runs and the differences of pairs, by one metric."""
    columns = {name: np.array(list(by_query.values())) for name, by_query in values.items()}
    gaps = [columns[run] - columns[against] for run, against in pairs]
    table = np.stack([*columns.values(), *gaps], axis=1)
    intervals = bootstrap_intervals(table, confidence=confidence, resamples=RESAMPLES, seed=seed)
    means = [
        Mean(metric, name, float(column.mean()), low, high, column.size)
        for (name, column), (low, high) in zip(columns.items(), intervals, strict=False)
    ]
    p_values = [randomisation_test(gap, permutations=PERMUTATIONS, seed=seed) for gap in gaps]
    t_tests = list(map(t_test, gaps))
    tests = zip(p_values, t_tests, holm(p_values), holm(t_tests), strict=True)
    differences = []
    for (run, against), gap, (low, high), (p, t, p_corrected, t_corrected) in zip(
        pairs, gaps, intervals[len(columns) :], tests, strict=True
    ):
        queries = [QueryDifference(id_, values[run][id_], values[against][id_], texts.get(id_)) for id_ in values[run]]
        queries.sort(key=lambda query: (-query.difference, query.query_id))
        wins = [query for query in queries if query.difference > 0][:examples]
        losses = [query for query in queries if query.difference < 0]
        largest = wins + losses[max(0, len(losses) - examples) :]
        figures = (float(gap.mean()), low, high, p, t, *counts(gap), p_corrected, t_corrected)
        differences.append(Difference(metric, run, against, *figures, largest))
    return means, differences


@dataclass(frozen=True)
class Comparison(Tabular):
    """The result of `compare`: means, differences with intervals and tests, wins and losses.

    Attributes:
        means: A mean per metric and run, in the requested order.
        differences: A difference per metric and pair of runs.
        baseline: The run that the others are compared with, or "all" for all pairs.
        per_query: {metric: {run: {query_id: value}}}.
        options: Settings: seed, permutations, resamples, confidence, ties, over, ignore_same_id.
        notes: Caveats about the figures, as sentences.
        texts: Query id -> text, as far as known.
        output: The output path, if any.
    """

    means: list[Mean]
    differences: list[Difference]
    baseline: str
    per_query: dict[str, PerQuery]
    options: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    output: Path | None = None

    @property
    def runs(self) -> list[str]:
        """The names of the runs, in input order."""
        return list(dict.fromkeys(mean.run for mean in self.means))

    @property
    def metrics(self) -> list[str]:
        """The metrics, in the requested order."""
        return list(self.per_query)

    def shows(self, difference: Difference) -> bool:
        """True if a difference is significant: by its corrected p-value, at the confidence level of the intervals."""
        # 1 - 0.95 is slightly more than 0.05 in floating point.
        return bool(difference.p_corrected <= 1 - self.options["confidence"] + 1e-12)

    @property
    def summary(self) -> str:
        """Terminal output: the tables of `render`, and where the rest is."""
        from rich.console import Console

        console = Console()
        with console.capture() as capture:
            render(self, console)
        text = capture.get().rstrip("\n")
        if self.output is not None:
            from retrievalkit.evaluation.compare.page import page_of

            page = f"; open {page_of(self.output)} in a browser" if page_of(self.output) else ""
            return f"{text}\n{printable(f'{self.output}: written{page}')}"
        more = "\nThe queries that differ most, and all figures: --output compare.html"
        return text + more * (len(self.runs) > 2)

    def as_json(self, *, per_query: bool = False) -> dict[str, Any]:
        """Return the result as JSON values."""
        value = asdict(replace(self, per_query={}, texts={}, output=None))
        del value["per_query"], value["texts"], value["output"]
        return value | {"per_query": self.per_query} if per_query else value

    def to_table(self) -> list[list[str]]:
        """Return rows of text under `HEADER`: one per metric and run, or per pair if a run is compared with several."""
        rows = []
        for mean in self.means:
            start = [mean.metric, mean.run, f"{mean.mean:.4f}", _interval(mean)]
            pairs = [pair for pair in self.differences if (pair.metric, pair.run) == (mean.metric, mean.run)]
            rows += [] if pairs else [start + ["-"] * (len(HEADER) - len(start))]
            for pair in pairs:
                p_values = (pair.p_value, pair.p_corrected, pair.t_test, pair.t_test_corrected)
                shown = [f"{p:.4f}" if p >= 0.0001 else "<0.0001" for p in p_values]
                won = f"{pair.wins}/{pair.ties}/{pair.losses}"
                rows.append([*start, pair.against, f"{pair.difference:+.4f}", _interval(pair), *shown, won])
        return rows

    def to_pandas(self) -> DataFrame:
        """Return a DataFrame with a row per metric and run, or per pair of runs."""
        import pandas

        return pandas.DataFrame(self.to_table(), columns=list(HEADER))

    def __repr__(self) -> str:
        means = ", ".join(f"{mean.run} {mean.metric} {mean.mean:.4f}" for mean in self.means)
        return f"Comparison({means})"

    def _repr_html_(self) -> str:
        rows = [dict(zip(HEADER, row, strict=True)) for row in self.to_table()]
        cells = [[row[name] for name in _COLUMNS] for row in rows]
        numeric = [name for name in _COLUMNS if name not in ("metric", "run", "against")]
        title = f"{', '.join(self.metrics)} of {', '.join(self.runs)}"
        pictures = []
        if find_spec("matplotlib") is not None:
            from retrievalkit.evaluation.compare.plot import draw_differences, draw_means

            pictures = [draw_means(self), draw_differences(self, self.metrics[0])]
        return notebook.table(title, _COLUMNS, cells, numeric=numeric, texts=self.notes, pictures=pictures)


def render(comparison: Comparison, console: Console) -> None:
    """Print a table per metric; for two runs, also the queries that differ most by the first metric."""
    from rich.text import Text

    def show(title: str, table: str, colours: Mapping[int, tuple[str, str]] | None = None) -> None:
        """Print a table; `colours` maps lines to a cell and its style. Unlike in rich's tables, no cell is wrapped."""
        lines = [Text(line) for line in table.split("\n")]
        lines[0].stylize("bold")
        for number, (cell, style) in (colours or {}).items():
            start = lines[number].plain.index(f"  {cell}")
            lines[number].stylize(style, start, start + len(cell) + 2)
        for line in (Text(printable(title), "italic"), *lines, Text()):
            console.print(line, no_wrap=True, overflow="ignore", crop=False)

    names = {name: name for name in ("run", "mean", "interval", "against", "difference")}
    names |= {"interval of difference": "interval", "p (Holm)": "p", "p (t-test, Holm)": "p of t", HEADER[-1]: "w/t/l"}
    if comparison.baseline != ALL_PAIRS:
        del names["against"]
    for metric in comparison.metrics:
        significant = {
            (pair.run, pair.against)
            for pair in comparison.differences
            if pair.metric == metric and comparison.shows(pair)
        }
        measured = [dict(zip(HEADER, row, strict=True)) for row in comparison.to_table() if row[0] == metric]
        shown = dict(names)
        for dropped in ("", "interval", "p (t-test, Holm)", "interval of difference", HEADER[-1]):
            shown.pop(dropped, None)
            right = [place for place, name in enumerate(shown) if name not in ("run", "against")]
            cells = [[row[name] for name in shown] for row in measured]
            table = text_table([list(shown.values()), *cells], right=right)
            if max(map(len, table.split("\n"))) <= console.width:
                break
        styles = {
            number: (row["difference"], "bold red" if row["difference"].startswith("-") else "bold green")
            for number, row in enumerate(measured, 1)
            if (row["run"], row["against"]) in significant
        }
        show(metric, table, styles)
    for pair in comparison.differences:
        if len(comparison.runs) > 2 or pair.metric != comparison.metrics[0] or not pair.largest:
            continue
        rows = [["query", "left", "right", "text"]]
        for query in pair.largest:
            # The query's text, and each run's first document if it has a title or a snippet.
            hits = ((run, hit) for run, ranking in query.rankings.items() for hit in ranking.first[:1])
            named = ((run, hit, hit.title or hit.snippet) for run, hit in hits)
            rows.append([query.query_id, f"{query.value:.4f}", f"{query.against:.4f}", query.text or ""])
            rows += [["", "", "", f"{run}: {judgement(hit.grade)}: {text}"] for run, hit, text in named if text]
        lines = [Text(line) for line in text_table(rows, right=(1, 2)).split("\n")]
        for line in lines:
            line.truncate(console.width, overflow="ellipsis")
        title = f"{pair.metric}: where {pair.run} (left) and {pair.against} (right) differ most"
        show(title, "\n".join(line.plain for line in lines))
    options = comparison.options
    against = "each other" if comparison.baseline == ALL_PAIRS else comparison.baseline
    explanation = (
        f"Differences are against {against}; bold differences are significant. Intervals are "
        f"{options['confidence']:.0%} bootstrap intervals. p: paired randomisation test; p of t: paired t-test; both "
        f"Holm-corrected over a metric's pairs; w/t/l: queries won, tied, lost. Seed {options['seed']}."
    )
    # Wrapped here, as rich breaks a name that is longer than the line.
    wrapped = textwrap.wrap(printable(explanation), console.width, break_long_words=False, break_on_hyphens=False)
    console.print(Text("\n".join(wrapped)), overflow="ignore", crop=False)


def judgement(grade: int | None) -> str:
    """Return a grade in words."""
    if grade is None:
        return "not judged"
    return "not relevant" if grade < 1 else "relevant" if grade == 1 else f"relevant ({grade})"


def _interval(figure: Mean | Difference) -> str:
    return f"[{figure.low:.4f}, {figure.high:.4f}]"
