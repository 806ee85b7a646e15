"""Compares runs on the same queries.

For each metric: the mean of each run with its bootstrap interval; for each pair the difference with its interval, the
paired randomisation test and t-test, both corrected by Holm over the pairs of the metric, the queries won, tied and
lost, and those that differ most, with the top hits of both runs. Equal inputs and seed give equal numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit import artifacts, oddities
from retrievalkit.data import sources
from retrievalkit.data.corpus import Passage
from retrievalkit.data.qrels import Qrels, read_qrels
from retrievalkit.data.queries import Query, read_queries
from retrievalkit.data.runs import Run, check_run, open_run, run_names
from retrievalkit.errors import InputError, OptionError, UnknownNameError, shortlist
from retrievalkit.evaluate.compare.contender import Contender, measured, with_rankings
from retrievalkit.evaluate.compare.output import Output
from retrievalkit.evaluate.compare.result import ALL_PAIRS, Comparison, Difference, Mean, QueryDifference
from retrievalkit.evaluate.measures import check_metrics
from retrievalkit.evaluate.metrics import PerQuery, first_ids, without_same_id
from retrievalkit.evaluate.options import Conventions, Over
from retrievalkit.evaluate.significance import bootstrap_intervals, counts, holm, randomisation_test, t_test
from retrievalkit.report.counts import counted


@dataclass(frozen=True)
class Sampling:
    """The sampling of tests and intervals.

    Attributes:
        permutations: How many permutations the randomisation test samples if more than 20 queries differ.
        resamples: Resampled sets of queries for the intervals.
        confidence: Level of the intervals; a difference is shown if its corrected p-value is at most 1 - confidence.
        seed: Seed of all sampling.

    Raises:
        OptionError: A value is out of range.
    """

    permutations: int = 10_000
    resamples: int = 10_000
    confidence: float = 0.95
    seed: int = 0

    def __post_init__(self) -> None:
        if self.permutations < 1 or self.resamples < 1 or not 0 < self.confidence < 1:
            msg = (
                f"permutations={self.permutations}, resamples={self.resamples}, confidence={self.confidence}: "
                "the first two must be 1 or more, the third between 0 and 1."
            )
            raise OptionError(msg)


def compare(
    runs: Sequence[str | Path] | Mapping[str, Run],
    *,
    qrels: Qrels | str | Path,
    metrics: str | Sequence[str] = "nDCG@10",
    baseline: str | None = None,
    queries: Iterable[Query] | str | Path | None = None,
    corpus: Iterable[Passage] | str | Path | None = None,
    examples: int = 5,
    conventions: Conventions = Conventions(),  # noqa: B008 - it is frozen
    sampling: Sampling = Sampling(),
    output: Output | None = None,
) -> Comparison:
    """Compare runs on the same judgements; runs are read one at a time.

    Args:
        runs: Paths of two or more runs, or runs by name.
        qrels: Judgements, or their path.
        metrics: Names as ir-measures writes them, see `evaluate`.
        baseline: The run that the others are compared with, by name or path: the first if None; "all" compares each
            with each.
        queries: Queries or their path, to show the texts of those that differ most.
        corpus: Passages or their source, to show what each run ranks first for the queries that differ most.
        examples: How many of the greatest wins and losses to list for each pair.
        conventions: How metrics are computed; over="run" takes the queries that all runs have.
        sampling: The sampling of tests and intervals.
        output: What to write; None writes nothing.

    Raises:
        InputError: There are fewer than two runs, or a run, the queries or the corpus do not belong to the qrels.
        UnknownNameError: A metric or the baseline is unknown.
        MissingDependencyError: Plots are requested but matplotlib is not installed.
    """
    _check(runs, examples)
    if output is not None:
        output.check()
    sources_of = dict(runs) if isinstance(runs, Mapping) else dict(zip(run_names(runs), runs, strict=True))
    pairs = _pairs({name: name if isinstance(one, Mapping) else str(one) for name, one in sources_of.items()}, baseline)
    judged = read_qrels(qrels) if isinstance(qrels, str | Path) else qrels
    check_metrics(metrics, judged)
    texts = _texts(queries, judged)
    contenders = {name: _contender(name, one, judged, metrics, conventions) for name, one in sources_of.items()}
    by_metric = _values(contenders, judged)
    means: list[Mean] = []
    differences: list[Difference] = []
    for metric, values in by_metric.items():
        metric_means, found = _compare_metric(metric, values, pairs, sampling)
        means += metric_means
        differences += _corrected(
            [replace(one, largest=_largest(values[one.run], values[one.against], texts, examples)) for one in found]
        )
    comparison = Comparison(
        means,
        with_rankings(differences, contenders, texts, corpus),
        ALL_PAIRS if baseline == ALL_PAIRS else pairs[0][1],
        by_metric,
        asdict(sampling)
        | {"ties": conventions.ties, "over": conventions.over, "ignore_same_id": conventions.exclude_self},
        _notes(contenders, judged, conventions.over, texts),
        texts,
    )
    oddities.check(*comparison.notes)
    if output is not None:
        output.write(comparison, lambda: _inputs(sources_of, qrels, queries))
    return comparison


def _check(runs: Sequence[Any] | Mapping[str, Any], examples: int) -> None:
    if len(runs) < 2:
        msg = f"{len(runs)} run given, and a comparison needs two or more."
        raise InputError(msg)
    if examples < 0:
        msg = f"examples={examples}: the number of wins and losses to list must be 0 or more."
        raise OptionError(msg)


def _contender(name: str, run: Any, qrels: Qrels, metrics: str | Sequence[str], conventions: Conventions) -> Contender:
    """Compute the metrics of a run; about 2 KB for each query of the qrels stay in memory, whatever the run's size."""
    whole = run if isinstance(run, Mapping) else open_run(run, conventions.ties)
    opened = without_same_id(whole) if conventions.exclude_self else whole
    contender = measured(name, opened, qrels, metrics, ties=conventions.ties, over=conventions.over)
    check_run(whole)
    return contender


def _pairs(runs: Mapping[str, str], baseline: str | None) -> list[tuple[str, str]]:
    """The pairs of runs to compare: (run, against).

    Args:
        runs: Name -> path.
        baseline: See `compare`.
    """
    names = list(runs)
    if baseline == ALL_PAIRS:
        return [(later, earlier) for earlier, later in combinations(names, 2)]
    by_path = {path: name for name, path in runs.items()}
    against = names[0] if baseline is None else by_path.get(baseline, baseline)
    if against not in names:
        raise UnknownNameError("baseline", against, names, hint=f"Give one of the runs, or '{ALL_PAIRS}'.")
    return [(name, against) for name in names if name != against]


def _values(contenders: Mapping[str, Contender], qrels: Qrels) -> dict[str, PerQuery]:
    """{metric: {run: {query_id: value}}} over the queries that all runs have a value for."""
    by_metric: dict[str, PerQuery] = {}
    for name, contender in contenders.items():
        for metric, values in contender.values.items():
            by_metric.setdefault(metric, {})[name] = values
    for metric, by_run in by_metric.items():
        shared = [query_id for query_id in qrels if all(query_id in values for values in by_run.values())]
        if not shared:
            msg = f"the runs have no query in common that {metric} has a value for. Compare runs of the same queries."
            raise InputError(msg)
        by_metric[metric] = {name: {one: values[one] for one in shared} for name, values in by_run.items()}
    return by_metric


def _compare_metric(
    metric: str, values: PerQuery, pairs: list[tuple[str, str]], sampling: Sampling
) -> tuple[list[Mean], list[Difference]]:
    columns = {name: np.array(list(by_query.values())) for name, by_query in values.items()}
    gaps = [columns[run] - columns[against] for run, against in pairs]
    intervals = bootstrap_intervals(
        np.stack([*columns.values(), *gaps], axis=1),
        confidence=sampling.confidence,
        resamples=sampling.resamples,
        seed=sampling.seed,
    )
    means = [
        Mean(metric, name, float(column.mean()), low, high, column.size)
        for (name, column), (low, high) in zip(columns.items(), intervals, strict=False)
    ]
    differences = []
    for (run, against), gap, (low, high) in zip(pairs, gaps, intervals[len(columns) :], strict=True):
        p_value = randomisation_test(gap, permutations=sampling.permutations, seed=sampling.seed)
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
    queries = [QueryDifference(one, values[one], against[one], texts.get(one)) for one in values]
    queries.sort(key=lambda one: (-one.difference, one.query_id))
    wins = [one for one in queries if one.difference > 0][:examples]
    losses = [one for one in queries if one.difference < 0]
    return wins + losses[max(0, len(losses) - examples) :]


def _texts(queries: Iterable[Query] | str | Path | None, qrels: Qrels) -> dict[str, str]:
    """The texts of the judged queries."""
    if queries is None:
        return {}
    read = read_queries(queries) if isinstance(queries, str | Path) else list(queries)
    texts = {query.id: query.text for query in read if query.id in qrels}
    if not texts:
        known = first_ids(query.id for query in read)
        msg = f"none of the queries is in the qrels: the queries have {known}, the qrels {first_ids(qrels)}. "
        msg += "Give the queries of these qrels."
        raise InputError(msg)
    return texts


def _inputs(runs: Mapping[str, Any], qrels: Any, queries: Any) -> dict[str, Any]:
    given = {f"run {name}": path for name, path in runs.items()} | {"qrels": qrels, "queries": queries}
    return {
        name: artifacts.describe_input(source, sources.fingerprint(source))
        for name, source in given.items()
        if isinstance(source, str | Path)
    }


def _notes(contenders: Mapping[str, Contender], qrels: Qrels, over: Over, texts: Mapping[str, str]) -> list[str]:
    consequence = "count 0" if over == "qrels" else "are left out for all runs"
    # What holds of several runs is said once: the words around their names -> the names.
    said: dict[tuple[str, str], list[str]] = {}
    for name, one in contenders.items():
        if one.absent:
            start = f"{len(one.absent)} of {len(qrels)} queries of the qrels are not in run"
            said.setdefault((start, f" and {consequence}: {first_ids(one.absent)}."), []).append(f"'{name}'")
    for name, one in contenders.items():
        if one.unjudged:
            end = f" are not in the qrels and are left out: {first_ids(one.unjudged)}."
            said.setdefault((f"{counted(len(one.unjudged), 'queries')} of run", end), []).append(f"'{name}'")
    for name, one in contenders.items():
        for doubt in one.doubts:
            said.setdefault(("run", f": {doubt}"), []).append(f"'{name}'")
    notes = [f"{start}{'s' * (len(names) > 1)} {shortlist(names, 3)}{end}" for (start, end), names in said.items()]
    if texts and (lacking := [query_id for query_id in qrels if query_id not in texts]):
        notes.append(
            f"{len(lacking)} of {len(qrels)} queries of the qrels have no text in the queries: {first_ids(lacking)}."
        )
    return notes
