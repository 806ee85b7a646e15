"""Compares runs on the same queries: `rkit compare RUN RUN... --qrels QRELS [--output PAGE.html|FIGURES.json|FOLDER]`.

For each metric: the mean of each run with its bootstrap interval; for each pair the difference with its interval, the
paired randomisation test and t-test, both corrected by Holm over the pairs of the metric, the queries won, tied and
lost, and those that differ most, with what either run has first. Equal inputs and seed give equal numbers.

A page is one file for a browser, with everything in it. A folder holds the page (compare.html), its plots as PNG
(means.png, differences-METRIC.png), all figures (comparison.json), and per_query.tsv: metric, query, a column a run.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit import artifacts
from retrievalkit.data import sources
from retrievalkit.data.corpus import Passage
from retrievalkit.data.qrels import Qrels, read_qrels
from retrievalkit.data.queries import Query, read_queries
from retrievalkit.data.runs import Run, Ties, read_run, run_names
from retrievalkit.errors import ArtifactError, InputError, MissingDependencyError, OptionError, UnknownNameError
from retrievalkit.evaluate.compare.contender import Contender, measured, with_rankings
from retrievalkit.evaluate.compare.page import Picture, comparison_page
from retrievalkit.evaluate.compare.plot import draw_differences, draw_means
from retrievalkit.evaluate.compare.result import ALL_PAIRS, Comparison, Difference, Mean, QueryDifference
from retrievalkit.evaluate.metrics import Over, PerQuery, check_metrics, some, without_same_id
from retrievalkit.evaluate.significance import bootstrap_intervals, counts, holm, randomisation_test, t_test

PAGE, RESULT, PER_QUERY, MEANS = "compare.html", "comparison.json", "per_query.tsv", "means.png"
DIFFERENCES = "differences-{}.png"
_PAGES = (".html", ".htm")
_NOT_IN_NAMES = re.compile(r"[^\w@.-]+")


def compare(
    runs: Sequence[str | Path] | Mapping[str, Run],
    *,
    qrels: Qrels | str | Path,
    metrics: str | Sequence[str] = "nDCG@10",
    baseline: str | None = None,
    queries: Iterable[Query] | str | Path | None = None,
    corpus: Iterable[Passage] | str | Path | None = None,
    ties: Ties = "document_id",
    over: Over = "qrels",
    ignore_same_id: bool = False,
    permutations: int = 10_000,
    resamples: int = 10_000,
    confidence: float = 0.95,
    seed: int = 0,
    examples: int = 5,
    output: str | Path | None = None,
    plot: bool = True,
    overwrite: bool = False,
) -> Comparison:
    """Compare runs on the same judgements, which are read one after another.

    Args:
        runs: Paths of two or more runs, or runs by name.
        qrels: Judgements, or their path.
        metrics: Names as ir-measures writes them, see `evaluate`.
        baseline: The run that the others are compared with, by name or path: the first where None; "all" compares
            each with each.
        queries: Queries or their path, to show the texts of those that differ most.
        corpus: Passages or their source, to show what each run has first for the queries that differ most.
        ties: See `evaluate`.
        over: See `evaluate`; "run" takes the queries that all runs have.
        ignore_same_id: See `evaluate`.
        permutations: Exchanges drawn by the randomisation test where more than 20 queries differ.
        resamples: Resampled sets of queries for the intervals.
        confidence: Of the intervals.
        seed: Of what is drawn.
        examples: How many of the greatest wins and losses to list for each pair.
        output: What to write: a page (.html), the figures (.json), or else a folder with all; None writes nothing.
        plot: Whether page and folder have plots, which need matplotlib.
        overwrite: Replace an output folder that is there already.

    Raises:
        InputError: There are fewer than two runs, or a run, the queries or the corpus do not belong to the qrels.
        UnknownNameError: A metric or the baseline is unknown.
        MissingDependencyError: matplotlib is not installed.
    """
    _check(runs, permutations, resamples, confidence, examples)
    if output is not None:
        _check_output(Path(output), plot=plot, overwrite=overwrite)
    sources_of = dict(runs) if isinstance(runs, Mapping) else dict(zip(run_names(runs), runs, strict=True))
    pairs = _pairs({name: name if isinstance(one, Mapping) else str(one) for name, one in sources_of.items()}, baseline)
    judged = read_qrels(qrels) if isinstance(qrels, str | Path) else qrels
    check_metrics(metrics, judged)
    texts = _texts(queries, judged)
    contenders = {}
    for name, one in sources_of.items():
        run = one if isinstance(one, Mapping) else read_run(one, ties)
        run = without_same_id(run) if ignore_same_id else dict(run)
        contenders[name] = measured(name, run, judged, metrics, ties=ties, over=over)
        del run
    by_metric = _values(contenders, judged)
    drawn = {"resamples": resamples, "confidence": confidence, "seed": seed}
    means: list[Mean] = []
    differences: list[Difference] = []
    for metric, values in by_metric.items():
        found_means, found = _compare_metric(metric, values, pairs, permutations, drawn)
        means += found_means
        differences += _corrected(
            [replace(one, largest=_largest(values[one.run], values[one.against], texts, examples)) for one in found]
        )
    differences = with_rankings(differences, contenders, texts, corpus)
    options = {"permutations": permutations} | drawn | {"ties": ties, "over": over, "ignore_same_id": ignore_same_id}
    against = ALL_PAIRS if baseline == ALL_PAIRS else pairs[0][1]
    notes = _notes(contenders, judged, over, texts)
    comparison = Comparison(means, differences, against, by_metric, options, notes, texts)
    if output is not None:
        _write(comparison, Path(output), lambda: _inputs(sources_of, qrels, queries), plot=plot, overwrite=overwrite)
    return comparison


def _check(
    runs: Sequence[Any] | Mapping[str, Any], permutations: int, resamples: int, confidence: float, examples: int
) -> None:
    if len(runs) < 2:
        msg = f"{len(runs)} run given, and a comparison needs two or more."
        raise InputError(msg)
    if permutations < 1 or resamples < 1 or examples < 0 or not 0 < confidence < 1:
        msg = (
            f"permutations={permutations}, resamples={resamples}, confidence={confidence}, examples={examples}: "
            "the first two must be 1 or more, the third between 0 and 1, the last 0 or more."
        )
        raise OptionError(msg)


def _pairs(runs: Mapping[str, str], baseline: str | None) -> list[tuple[str, str]]:
    """Which run is compared against which; `runs` maps names to paths."""
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
    found: dict[str, PerQuery] = {}
    for name, one in contenders.items():
        for metric, values in one.values.items():
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


def _texts(queries: Iterable[Query] | str | Path | None, qrels: Qrels) -> dict[str, str]:
    """The texts of the judged queries."""
    if queries is None:
        return {}
    read = read_queries(queries) if isinstance(queries, str | Path) else list(queries)
    texts = {query.id: query.text for query in read if query.id in qrels}
    if not texts:
        known = some(query.id for query in read)
        msg = f"none of the queries is in the qrels: the queries have {known}, the qrels {some(qrels)}. "
        msg += "Give the queries of these qrels."
        raise InputError(msg)
    return texts


def _write(
    comparison: Comparison, output: Path, inputs: Callable[[], dict[str, Any]], *, plot: bool, overwrite: bool
) -> None:
    if output.suffix == ".json":
        artifacts.write_json(output, comparison.to_json())
        return
    means, differences = _plots(comparison) if plot else (None, {})
    alone = output.suffix in _PAGES
    page = comparison_page(comparison, means=means, differences=differences, alone=alone)
    if alone:
        page.write(output)
        return
    with artifacts.write_folder(output, overwrite=overwrite) as staging:
        page.write(staging / PAGE)
        if means is not None:
            (staging / MEANS).write_bytes(means.light)
        for metric, picture in differences.items():
            (staging / DIFFERENCES.format(_NOT_IN_NAMES.sub("-", metric))).write_bytes(picture.light)
        artifacts.write_json(staging / RESULT, comparison.to_json())
        (staging / PER_QUERY).write_text(_per_query_table(comparison), encoding="utf-8")
        numbers = {"runs": len(comparison.runs), "queries": max(mean.queries for mean in comparison.means)}
        options = comparison.options | {"metrics": comparison.metrics, "baseline": comparison.baseline}
        artifacts.write_manifest(
            staging, "comparison", command="compare", options=options, inputs=inputs(), counts=numbers
        )


def _plots(comparison: Comparison) -> tuple[Picture, dict[str, Picture]]:
    means = Picture(draw_means(comparison), draw_means(comparison, dark=True))
    differences = {
        metric: Picture(draw_differences(comparison, metric), draw_differences(comparison, metric, dark=True))
        for metric in comparison.metrics
    }
    return means, differences


def _per_query_table(comparison: Comparison) -> str:
    lines = ["\t".join(("metric", "query", *comparison.runs))]
    for metric, by_run in comparison.per_query.items():
        for query_id in by_run[comparison.runs[0]]:
            lines.append("\t".join((metric, query_id, *(f"{by_run[run][query_id]:.6g}" for run in comparison.runs))))
    return "\n".join(lines) + "\n"


def _inputs(runs: Mapping[str, Any], qrels: Any, queries: Any) -> dict[str, Any]:
    given = {f"run {name}": path for name, path in runs.items()} | {"qrels": qrels, "queries": queries}
    return {
        name: artifacts.describe_input(source, sources.fingerprint(source))
        for name, source in given.items()
        if isinstance(source, str | Path)
    }


def _check_output(output: Path, *, plot: bool, overwrite: bool) -> None:
    """Refuse what cannot be written, before anything is read."""
    if output.suffix not in (*_PAGES, ".json"):
        artifacts.check_output(output, overwrite=overwrite)
    elif output.is_dir():
        msg = f"output '{output}' is a folder, and a file is to be written there. Choose another --output."
        raise ArtifactError(msg)
    if plot and output.suffix != ".json":
        try:
            import matplotlib  # noqa: F401
        except ImportError as error:
            needed_for = "the plots of a comparison (--no-plot leaves them out)"
            raise MissingDependencyError("matplotlib", needed_for, "'retrievalkit[plot]'") from error


def _notes(contenders: Mapping[str, Contender], qrels: Qrels, over: Over, texts: Mapping[str, str]) -> list[str]:
    consequence = "count 0" if over == "qrels" else "are left out for all runs"
    notes = [
        f"{len(one.absent)} of {len(qrels)} queries of the qrels are not in run '{name}' and {consequence}: "
        f"{some(one.absent)}."
        for name, one in contenders.items()
        if one.absent
    ]
    notes += [f"{name}: {doubt}" for name, one in contenders.items() for doubt in one.doubts]
    if texts and (lacking := [query_id for query_id in qrels if query_id not in texts]):
        told = f"{len(lacking)} of {len(qrels)} queries of the qrels have no text in the queries: {some(lacking)}."
        notes.append(told)
    return notes
