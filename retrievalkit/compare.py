"""Compares runs on the same queries: `rkit compare RUN RUN... --qrels QRELS`.

For each metric: the mean of each run with its bootstrap interval; for each pair the difference with its interval, the
paired randomisation test and t-test, both corrected by Holm over the pairs of the metric, the queries won, tied and
lost, and those that differ most. Equal inputs and seed give equal numbers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrievalkit.data.qrels import Qrels, read_qrels
from retrievalkit.data.queries import Query, read_queries
from retrievalkit.data.runs import Run, Ties, read_run
from retrievalkit.errors import InputError, OptionError, UnknownNameError
from retrievalkit.metrics import Over, PerQuery, check_overlap, per_query, some
from retrievalkit.significance import bootstrap_intervals, counts, holm, randomisation_test, t_test

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
class QueryDifference:
    """A query on which two runs differ: the metric of the run and of the run it is compared with."""

    query_id: str
    value: float
    against: float
    text: str | None = None

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
        options: Seed, permutations, resamples and confidence.
        notes: What a reader of the numbers should know, as sentences.
    """

    means: list[Mean]
    differences: list[Difference]
    baseline: str
    per_query: dict[str, PerQuery]
    options: dict[str, float]
    notes: list[str] = field(default_factory=list)

    def to_json(self, *, per_query: bool = False) -> dict[str, Any]:
        """A value that `json.dumps` takes."""
        value = asdict(replace(self, per_query={}))
        del value["per_query"]
        return value | {"per_query": self.per_query} if per_query else value

    def to_table(self) -> list[list[str]]:
        """Rows of text under `HEADER`: one a metric and run, or a pair where a run is compared with several."""
        rows = []
        for mean in self.means:
            start = [mean.metric, mean.run, f"{mean.mean:.4f}", _interval(mean)]
            found = [one for one in self.differences if (one.metric, one.run) == (mean.metric, mean.run)]
            rows += [start + _cells(one) for one in found] or [start + ["-"] * (len(HEADER) - len(start))]
        return rows


def compare(
    runs: Sequence[str | Path] | Mapping[str, Run],
    *,
    qrels: Qrels | str | Path,
    metrics: str | Sequence[str] = "nDCG@10",
    baseline: str | None = None,
    queries: Iterable[Query] | str | Path | None = None,
    ties: Ties = "document_id",
    over: Over = "qrels",
    permutations: int = 10_000,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
    examples: int = 5,
) -> Comparison:
    """Compare runs on the same judgements.

    Args:
        runs: Paths of two or more runs, or runs by name.
        qrels: Judgements, or their path.
        metrics: Names as ir-measures writes them, see `evaluate`.
        baseline: The run that the others are compared with, by name or path: the first where None; "all" compares
            each with each.
        queries: Queries or their path, to show the texts of those that differ most.
        ties: See `evaluate`.
        over: See `evaluate`; "run" takes the queries that all runs have.
        permutations: Exchanges drawn by the randomisation test where more than 20 queries differ.
        resamples: Resampled sets of queries for the intervals.
        confidence: Of the intervals.
        seed: Of what is drawn.
        examples: How many of the greatest wins and losses to list for each pair.

    Raises:
        InputError: There are fewer than two runs, or a run has no query of the qrels.
        UnknownNameError: A metric or the baseline is unknown.
    """
    _check(runs, permutations, resamples, confidence)
    named, paths = _named(runs, ties)
    pairs = _pairs(list(named), paths, baseline)
    qrels = read_qrels(qrels) if isinstance(qrels, str | Path) else qrels
    queries = read_queries(queries) if isinstance(queries, str | Path) else queries
    texts = {query.id: query.text for query in queries or ()}
    by_metric = _values(named, qrels, metrics, ties, over)
    drawn = {"resamples": resamples, "confidence": confidence, "seed": seed}
    means: list[Mean] = []
    differences: list[Difference] = []
    for metric, values in by_metric.items():
        found_means, found = _compare_metric(metric, values, pairs, permutations, drawn)
        means += found_means
        differences += _corrected(
            [replace(one, largest=_largest(values[one.run], values[one.against], texts, examples)) for one in found]
        )
    options = {"permutations": permutations} | drawn
    against = ALL_PAIRS if baseline == ALL_PAIRS else pairs[0][1]
    return Comparison(means, differences, against, by_metric, options, _notes(named, qrels, over))


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
    if comparison.baseline != ALL_PAIRS:
        del shown["against"]
    rows = [dict(zip(HEADER, row, strict=True)) for row in comparison.to_table()]
    cells = [[row[name] for name in shown] for row in rows if row["metric"] == metric]
    return _table(metric, list(shown.values()), cells, left=("run", "against"))


def _largest_table(one: Difference) -> Table:
    title = f"{one.metric}: where {one.run} and {one.against} differ most"
    cells = [[query.query_id, f"{query.value:.4f}", f"{query.against:.4f}", query.text or ""] for query in one.largest]
    return _table(title, ["query", one.run, one.against, "text"], cells, left=("query", "text"))


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


def _check(runs: Sequence[Any] | Mapping[str, Any], permutations: int, resamples: int, confidence: float) -> None:
    if len(runs) < 2:
        msg = f"{len(runs)} run given, and a comparison needs two or more."
        raise InputError(msg)
    if permutations < 1 or resamples < 1 or not 0 < confidence < 1:
        msg = (
            f"permutations={permutations}, resamples={resamples}, confidence={confidence}: "
            "the first two must be 1 or more, the last between 0 and 1."
        )
        raise OptionError(msg)


def _named(runs: Sequence[str | Path] | Mapping[str, Run], ties: Ties) -> tuple[dict[str, Run], list[str]]:
    """The runs by name, and the same names as paths: a run is named after its file, by its path if two files agree."""
    if isinstance(runs, Mapping):
        return dict(runs), list(runs)
    paths = [str(run) for run in runs]
    stems = [_stem(path) for path in paths]
    shared = {stem for stem, count in Counter(stems).items() if count > 1}
    names = [path if stem in shared else stem for path, stem in zip(paths, stems, strict=True)]
    if len(set(names)) < len(names):
        msg = f"a run is given twice: {', '.join(paths)}. Give each once."
        raise InputError(msg)
    return {name: read_run(path, ties) for name, path in zip(names, paths, strict=True)}, paths


def _stem(path: str) -> str:
    name = Path(path).name
    for ending in (".gz", ".zst", ".trec", ".run", ".txt", ".tsv"):
        name = name.removesuffix(ending) or name
    return name


def _pairs(names: list[str], paths: list[str], baseline: str | None) -> list[tuple[str, str]]:
    """Which run is compared against which."""
    if baseline == ALL_PAIRS:
        return [(later, earlier) for earlier, later in combinations(names, 2)]
    against = names[0] if baseline is None else dict(zip(paths, names, strict=True)).get(baseline, baseline)
    if against not in names:
        raise UnknownNameError("baseline", against, names, hint=f"Give one of the runs, or '{ALL_PAIRS}'.")
    return [(name, against) for name in names if name != against]


def _values(
    runs: Mapping[str, Run], qrels: Qrels, metrics: str | Sequence[str], ties: Ties, over: Over
) -> dict[str, PerQuery]:
    """{metric: {run: {query_id: value}}} over the queries that all runs have a value for."""
    found: dict[str, PerQuery] = {}
    for name, run in runs.items():
        check_overlap(run, qrels, f"run '{name}'")
        for metric, values in per_query(run, qrels, metrics, ties=ties, over=over).items():
            found.setdefault(metric, {})[name] = values
    for metric, by_run in found.items():
        shared = [query_id for query_id in qrels if all(query_id in values for values in by_run.values())]
        if not shared:
            msg = f"the runs have no query in common that {metric} has a value for. Compare runs of the same queries."
            raise InputError(msg)
        found[metric] = {name: {query_id: values[query_id] for query_id in shared} for name, values in by_run.items()}
    return found


def _compare_metric(
    metric: str, values: PerQuery, pairs: list[tuple[str, str]], permutations: int, drawn: dict[str, Any]
) -> tuple[list[Mean], list[Difference]]:
    columns = {name: np.array(list(by_query.values())) for name, by_query in values.items()}
    gaps = [columns[run] - columns[against] for run, against in pairs]
    intervals = bootstrap_intervals(np.stack([*columns.values(), *gaps], axis=1), **drawn)
    means = [
        Mean(metric, name, float(column.mean()), low, high, column.size)
        for (name, column), (low, high) in zip(columns.items(), intervals, strict=False)
    ]
    differences = []
    for (run, against), gap, (low, high) in zip(pairs, gaps, intervals[len(columns) :], strict=True):
        p_value = randomisation_test(gap, permutations=permutations, seed=drawn["seed"])
        differences.append(
            Difference(metric, run, against, float(gap.mean()), low, high, p_value, t_test(gap), *counts(gap))
        )
    return means, differences


def _corrected(differences: list[Difference]) -> list[Difference]:
    p_values = holm([one.p_value for one in differences])
    t_tests = holm([one.t_test for one in differences])
    return [
        replace(one, p_corrected=p_value, t_test_corrected=t_value)
        for one, p_value, t_value in zip(differences, p_values, t_tests, strict=True)
    ]


def _largest(
    values: Mapping[str, float], against: Mapping[str, float], texts: Mapping[str, str], examples: int
) -> list[QueryDifference]:
    """The greatest wins, then the greatest losses, greatest last."""
    found = [QueryDifference(one, values[one], against[one], texts.get(one)) for one in values]
    found.sort(key=lambda one: (-one.difference, one.query_id))
    wins = [one for one in found if one.difference > 0][:examples]
    losses = [one for one in found if one.difference < 0]
    return wins + losses[max(0, len(losses) - examples) :]


def _notes(runs: Mapping[str, Run], qrels: Qrels, over: Over) -> list[str]:
    consequence = "count 0" if over == "qrels" else "are left out for all runs"
    absent = {name: [query_id for query_id in qrels if query_id not in run] for name, run in runs.items()}
    return [
        f"{len(ids)} of {len(qrels)} queries of the qrels are not in run '{name}' and {consequence}: {some(ids)}."
        for name, ids in absent.items()
        if ids
    ]


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
