"""What a comparison of runs found: its figures, and how they are shown in a terminal.

See `program` for what the figures mean, and `page` for how they are shown in a browser.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from retrievalkit.evaluate.metrics import PerQuery

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

ALL_PAIRS = "all"
HEADER = (
    "metric", "run", "mean", "interval", "against", "difference", "interval of difference", "p", "p (Holm)",
    "p (t-test)", "p (t-test, Holm)", "won/tied/lost",
)  # fmt: skip


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
    """One of the first documents of a ranking.

    Attributes:
        grade: None where it is not judged.
        title: "" where the corpus is not at hand, as `snippet`: the words of the text that are nearest to the query's.
        matches: (start, end) of the snippet's characters that are words of the query.
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
    """What a run found for a query: its first documents, and the ranks of the relevant ones among all of its own."""

    first: list[TopHit]
    relevant_at: list[int]
    relevant: int


@dataclass(frozen=True)
class QueryDifference:
    """A query on which two runs differ: the metric of the run and of the run it is compared with.

    Attributes:
        rankings: Of these two runs, by their names.
    """

    query_id: str
    value: float
    against: float
    text: str | None = None
    rankings: dict[str, Ranking] = field(default_factory=dict)

    @property
    def difference(self) -> float:
        """Positive where the run is better."""
        return self.value - self.against


@dataclass(frozen=True)
class Difference:
    """How much better a run is than another, and whether that may be chance.

    Attributes:
        difference: The mean over the queries of run minus against, in [low, high] by bootstrap.
        p_value: Of the paired randomisation test; `p_corrected` by Holm over the metric's pairs.
        t_test: Of the paired t-test; `t_test_corrected` by Holm.
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
    p_corrected: float = 1.0
    t_test_corrected: float = 1.0
    largest: list[QueryDifference] = field(default_factory=list)


@dataclass(frozen=True)
class Comparison:
    """What `compare` found.

    Attributes:
        means: One a metric and run, in the order asked for.
        differences: One a metric and pair of runs.
        baseline: The run that the others are compared with, or "all" for each with each.
        per_query: {metric: {run: {query_id: value}}}.
        options: How it was computed: seed, permutations, resamples, confidence, ties, over, ignore_same_id.
        notes: What a reader of the numbers should know, as sentences.
        texts: Of the queries, as far as they are known.
    """

    means: list[Mean]
    differences: list[Difference]
    baseline: str
    per_query: dict[str, PerQuery]
    options: dict[str, Any]
    notes: list[str] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)

    @property
    def runs(self) -> list[str]:
        """The names of the runs, in the order given."""
        return list(dict.fromkeys(mean.run for mean in self.means))

    @property
    def metrics(self) -> list[str]:
        """The metrics, in the order asked for."""
        return list(self.per_query)

    def to_json(self, *, per_query: bool = False) -> dict[str, Any]:
        """A value that `json.dumps` takes."""
        value = asdict(replace(self, per_query={}, texts={}))
        del value["per_query"], value["texts"]
        return value | {"per_query": self.per_query} if per_query else value

    def to_table(self) -> list[list[str]]:
        """Rows of text under `HEADER`: one a metric and run, or a pair where a run is compared with several."""
        rows = []
        for mean in self.means:
            start = [mean.metric, mean.run, f"{mean.mean:.4f}", _interval(mean)]
            found = [one for one in self.differences if (one.metric, one.run) == (mean.metric, mean.run)]
            rows += [start + _cells(one) for one in found] or [start + ["-"] * (len(HEADER) - len(start))]
        return rows


def render(comparison: Comparison, console: Console) -> None:
    """Print the comparison as people read it: a table a metric, then the queries that differ most by the first."""
    from rich.text import Text

    for metric in comparison.per_query:
        console.print(_metric_table(comparison, metric, narrow=console.width < 100))
    for one in comparison.differences:
        if one.largest and one.metric == comparison.means[0].metric:
            console.print(_largest_table(one))
    options = comparison.options
    against = "each other" if comparison.baseline == ALL_PAIRS else comparison.baseline
    explanation = (
        f"Differences are against {against}; intervals are of {options['confidence']:.0%}, by bootstrap. p is of the "
        f"paired randomisation test, and of the t-test, by Holm over the pairs of a metric. Seed {options['seed']}."
    )
    for line in [explanation, *(f"Note: {note}" for note in comparison.notes)]:
        console.print(Text(line))


def _metric_table(comparison: Comparison, metric: str, *, narrow: bool) -> Table:
    shown = {"run": "run", "mean": "mean", "interval": "interval", "against": "against", "difference": "difference"}
    shown |= {
        "interval of difference": "interval",
        "p (Holm)": "p",
        "p (t-test, Holm)": "p of t",
        HEADER[-1]: HEADER[-1],
    }
    if narrow:
        del shown["interval"]
        shown[HEADER[-1]] = "w/t/l"
    if comparison.baseline != ALL_PAIRS:
        del shown["against"]
    rows = [dict(zip(HEADER, row, strict=True)) for row in comparison.to_table()]
    cells = [[row[name] for name in shown] for row in rows if row["metric"] == metric]
    return _table(metric, list(shown.values()), cells, left=("run", "against"))


def _largest_table(one: Difference) -> Table:
    title = f"{one.metric}: where {one.run} and {one.against} differ most"
    cells = [
        [query.query_id, f"{query.value:.4f}", f"{query.against:.4f}", "\n".join(_told(query))] for query in one.largest
    ]
    return _table(title, ["query", one.run, one.against, "text"], cells, left=("query", "text"))


def _told(query: QueryDifference) -> Iterator[str]:
    """The query's text, and what each run has first where that is known by more than its id."""
    yield query.text or ""
    for run, ranking in query.rankings.items():
        for hit in ranking.first[:1]:
            if text := hit.title or hit.snippet:
                yield f"{run}: {judgement(hit.grade)}: {text}"


def judgement(grade: int | None) -> str:
    """A grade in words."""
    if grade is None:
        return "not judged"
    return "not relevant" if grade < 1 else "relevant" if grade == 1 else f"relevant ({grade})"


def _table(title: str, columns: list[str], cells: list[list[str]], left: Sequence[str]) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title=Text(title), title_justify="left", box=box.SIMPLE_HEAD)
    for name in columns:
        table.add_column(Text(name), justify="left" if name in left else "right", overflow="fold")
    for row in cells:
        table.add_row(*map(Text, row))  # as Text, since names and queries may hold rich's own marks
    return table


def _cells(one: Difference) -> list[str]:
    p_values = (one.p_value, one.p_corrected, one.t_test, one.t_test_corrected)
    return [
        one.against,
        f"{one.difference:+.4f}",
        _interval(one),
        *(f"{p:.4f}" if p >= 0.0001 else "<0.0001" for p in p_values),
        f"{one.wins}/{one.ties}/{one.losses}",
    ]


def _interval(one: Mean | Difference) -> str:
    return f"[{one.low:.4f}, {one.high:.4f}]"
