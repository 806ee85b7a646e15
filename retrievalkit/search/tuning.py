"""Tunes the fusion of runs on judged queries: `rkit search INDEX INDEX --tune QRELS`.

Every index is searched once. Then weights are tried from 0 to 1 in steps of 0.05 (with three or more indexes one weight
at a time, until nothing improves), with each normalisation of scores, or for `rrf` with several constants; the same
queries always give the same result. Without normalisation the scores of indexes differ in scale, so the steps then
apply to scores divided by their mean standard deviation.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from retrievalkit import artifacts
from retrievalkit.contracts import Candidates
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.runs import Run
from retrievalkit.errors import DataError, InputError, OptionError, UnknownNameError
from retrievalkit.report.counts import counted
from retrievalkit.report.terminal import printable
from retrievalkit.search.fusion import RRF_K, Fusion, Scores
from retrievalkit.search.options import Normalization

if TYPE_CHECKING:
    from rich.console import Console

METRIC = "nDCG@10"
STEPS = 20
RRF_CONSTANTS = (0, 1, 5, 10, 20, 40, 60, 100, 200)
SHOWN = 5
_SWEEPS = 5
_DO = "'rkit search INDEX INDEX --tune QRELS --output FILE' writes a file of tuned weights."
_DIGITS = 4
_NORMALIZATIONS: tuple[Normalization, ...] = ("min_max", "z_score", "none")

Weights = tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """A fusion and its value of the metric."""

    fusion: Fusion
    value: float


@dataclass(frozen=True)
class Tuned:
    """The result of tuning.

    Attributes:
        labels: The names of the indexes, in the order of the weights.
        identities: A fingerprint of each index.
        metric: The metric that was maximised.
        queries: How many queries it was computed on.
        trials: All fusions that were tried, best first.
        references: Name -> value, for each index alone and for fusion without tuning.
    """

    labels: Sequence[str]
    identities: Sequence[str]
    metric: str
    queries: int
    trials: Sequence[Trial]
    references: Mapping[str, float]

    @property
    def best(self) -> Trial:
        """The best trial."""
        return self.trials[0]

    def options(self) -> str:
        """The options of `rkit search` for the best fusion."""
        fusion = self.best.fusion
        named = {
            "--fusion": fusion.method,
            "--weights": ",".join(f"{weight:g}" for weight in fusion.weights or ()),
            "--normalization": fusion.normalization,
            "--rrf-k": fusion.rrf_k,
            "--missing": fusion.missing,
        }
        return " ".join(f"{name} {value}" for name, value in named.items() if value not in (None, ""))

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values, which `read_choice` reads back."""
        return {
            "indexes": [
                {"name": label, "identity": identity}
                for label, identity in zip(self.labels, self.identities, strict=True)
            ],
            **_as_json(self.best, self.metric),
            "queries": self.queries,
            "references": dict(self.references),
            "trials": [_as_json(trial, self.metric) for trial in self.trials],
        }

    def render(self, console: Console, places: Sequence[str]) -> None:
        """Print the best trials as a table, and the command line for the best."""
        from rich import box
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD)
        for name in ("fusion", *self.labels):
            table.add_column(Text(printable(name)), justify="left" if name == "fusion" else "right", overflow="fold")
        table.add_column(self.metric, justify="right")
        for trial in _shown(self.trials):
            cells = [_name(trial.fusion), *(f"{weight:g}" for weight in trial.fusion.weights or ())]
            table.add_row(*cells, f"{trial.value:.4f}", style="bold" if trial is self.best else None)
        table.add_section()
        for name, value in self.references.items():
            table.add_row(Text(printable(name)), *[""] * len(self.labels), f"{value:.4f}")
        console.print(f"{len(self.trials):,} fusions tried on {counted(self.queries, 'queries')}:")
        console.print(table)
        line = " ".join(["rkit search", *map(shlex.quote, places), self.options()])
        console.print(Text(printable(f"Best search:  {line}")), soft_wrap=True)


def tune(
    found: Mapping[str, Candidates],
    qrels: Qrels,
    *,
    fusion: Fusion,
    labels: Sequence[str],
    identities: Sequence[str],
    metric: str = METRIC,
    k: int = 1000,
    progress: Callable[[str], None] = lambda _: None,
) -> Tuned:
    """Find the best weights, and the best normalisation or constant of rrf if it is not fixed.

    Args:
        found: Query id -> the hits of all indexes, with computed scores if the fusion uses them.
        qrels: Judgements; those of other queries are ignored.
        fusion: "linear" or "rrf", with the options that stay fixed.
        labels: The names of the indexes.
        identities: A fingerprint of each index.
        metric: Name as ir-measures writes it; higher is better.
        k: How many documents per query the metric is computed on.
        progress: Called with the name of the trial that is being computed.

    Raises:
        OptionError: There is nothing to tune, or several metrics were named.
        InputError: No query is judged, or the metric cannot be computed.
    """
    _check(fusion, metric)
    judge = _Judge(found, qrels, metric, k)
    trials = [trial for base in _bases(fusion) for trial in _trials(judge, base, len(labels), progress)]
    if fusion.method == "rrf" and fusion.rrf_k is None:
        # Try the best weights for the usual constant with other constants.
        first = min(trials, key=_order)
        trials += [judge.trial(replace(first.fusion, rrf_k=k)) for k in RRF_CONSTANTS if k != first.fusion.rrf_k]
        trials += _trials(judge, min(trials, key=_order).fusion, len(labels), progress)
    unique = {trial.fusion: trial for trial in trials}
    return Tuned(
        labels, identities, metric, judge.queries, sorted(unique.values(), key=_order), judge.references(labels)
    )


def read_choice(path: str | Path, identities: Sequence[str]) -> Fusion:
    """Read the best fusion from a file written by `--tune`.

    Raises:
        ArtifactError: The file cannot be read, or holds no fusion.
        DataError: The fusion is impossible.
        InputError: It was tuned for another number of indexes, or for these in another order.
    """
    try:
        choice = artifacts.read_document(path, _Choice, do=_DO)
    except (OptionError, UnknownNameError) as error:
        raise DataError(str(error), file=path) from error
    names = ", ".join(index.name for index in choice.indexes)
    order = [index.identity for index in choice.indexes]
    if len(order) != len(identities) or (order != list(identities) and sorted(order) == sorted(identities)):
        msg = f"the weights in '{path}' are for {len(order)} indexes in this order: {names}. Use the same order."
        raise InputError(msg)
    return choice.fusion


@dataclass(frozen=True)
class _Named:
    """An index in a file of tuned weights."""

    name: str
    identity: str


@dataclass(frozen=True)
class _Choice:
    """What is read of a file of tuned weights."""

    indexes: list[_Named]
    fusion: Fusion


class _Judge:
    """Evaluates fusions on judged queries."""

    def __init__(self, found: Mapping[str, Candidates], qrels: Qrels, metric: str, k: int) -> None:
        self.found = found
        self.qrels = {query_id: judged for query_id, judged in qrels.items() if query_id in found}
        self.metric = metric
        self.depth = k
        from retrievalkit.evaluate.measures import open_metric

        self.k = min(k, open_metric(metric).cutoff or k)
        self._parts: dict[Fusion, list[Scores]] = {}
        self._scales: Scores | None = None

    @property
    def queries(self) -> int:
        """How many queries are judged."""
        return len(self.qrels)

    def trial(self, fusion: Fusion) -> Trial:
        """Evaluate a fusion."""
        return Trial(fusion, self.value(fusion))

    def value(self, fusion: Fusion) -> float:
        """The mean of the metric for the run that `rkit search` would write."""
        run: Run = {}
        for (query_id, hits), parts in zip(self.found.items(), self._parts_of(fusion), strict=True):
            scores = fusion.total(parts)
            rows = np.arange(len(scores))
            if len(scores) > self.k:
                # Documents tied with the last one are all kept, because the metric breaks ties in its own way.
                rows = np.flatnonzero(scores >= np.partition(scores, -self.k)[-self.k])
            run[query_id] = [(hits.ids[row], float(scores[row])) for row in rows]
        return self._mean(run)

    def scales(self) -> Scores:
        """(runs,) the standard deviation of a run's scores for a query, averaged over queries."""
        if self._scales is None:
            deviations = np.array([_deviations(hits) for hits in self.found.values() if hits.ids])  # (queries, runs)
            means = deviations.mean(axis=0)
            self._scales = np.where(means > 0, means, 1.0)
        return self._scales

    def references(self, labels: Sequence[str]) -> dict[str, float]:
        """The values of each run alone, and of fusion without tuning."""
        alone = {f"{label} alone": self._alone(run) for run, label in enumerate(labels)}
        return {**alone, "rrf, not tuned": self.value(Fusion("rrf"))}

    def _alone(self, run: int) -> float:
        alone: Run = {}
        for query_id, hits in self.found.items():
            rows = np.flatnonzero((hits.ranks[:, run] > 0) & (hits.ranks[:, run] <= self.depth))
            alone[query_id] = [(hits.ids[row], float(hits.scores[row, run])) for row in rows]
        return self._mean(alone)

    def _mean(self, run: Run) -> float:
        # Here, because every search imports this module, and most tune nothing.
        from retrievalkit.evaluate.measures import mean
        from retrievalkit.evaluate.metrics import per_query

        return mean(self.metric, per_query(run, self.qrels, self.metric)[self.metric])

    def _parts_of(self, fusion: Fusion) -> list[Scores]:
        unweighted = replace(fusion, weights=None)
        if unweighted not in self._parts:
            # Only the last fusion's parts are cached, because those of all queries are large.
            self._parts = {unweighted: [unweighted.parts(hits) for hits in self.found.values()]}
        return self._parts[unweighted]


def _bases(fusion: Fusion) -> Iterator[Fusion]:
    """The fusions to try weights with."""
    if fusion.method == "rrf":
        yield replace(fusion, rrf_k=RRF_K if fusion.rrf_k is None else fusion.rrf_k)
        return
    if not fusion.takes("normalization"):
        yield fusion
        return
    for normalization in _NORMALIZATIONS if fusion.normalization is None else [fusion.normalization]:
        yield replace(fusion, normalization=normalization)


def _trials(judge: _Judge, base: Fusion, runs: int, progress: Callable[[str], None]) -> list[Trial]:
    """Evaluate the fusion with different weights."""
    scales = judge.scales() if base.method == "linear" and base.normalization == "none" else np.ones(runs)
    tried: dict[Weights, Trial] = {}

    def attempt(weights: Weights) -> Trial:
        if weights not in tried:
            progress(f"{_name(base)}, {len(tried) + 1}")
            tried[weights] = judge.trial(replace(base, weights=_scaled(weights, scales)))
        return tried[weights]

    if runs <= 2:
        for weights in _along((0.5,) * runs, 0):
            attempt(weights)
        return list(tried.values())
    current = (round(1 / runs, _DIGITS),) * runs
    attempt(current)
    for _ in range(_SWEEPS):
        before = current
        for run in range(runs):
            for weights in _along(current, run):
                attempt(weights)
            current = min(tried, key=lambda weights: _order(tried[weights]))
        if current == before:
            break
    return list(tried.values())


def _along(weights: Weights, run: int) -> Iterator[Weights]:
    """Weights that sum to 1: that of `run` goes from 0 to 1, and the others keep their proportions."""
    rest = sum(weights) - weights[run]
    for step in range(STEPS + 1):
        share = step / STEPS
        others = [(1 - share) * (weight / rest if rest else 1 / (len(weights) - 1)) for weight in weights]
        others[run] = share
        yield tuple(round(weight, _DIGITS) for weight in others)


def _scaled(weights: Weights, scales: Scores) -> Weights:
    """Convert weights of scores divided by their scale into weights of raw scores that sum to 1."""
    divided = np.array(weights) / scales
    return tuple(float(f"{weight:.{_DIGITS}g}") for weight in divided / divided.sum())


def _order(trial: Trial) -> tuple[float, float, int, Weights]:
    """Sort key: best first; equal values by the evenness of their weights, then by normalisation."""
    weights = trial.fusion.weights or ()
    normalization = _NORMALIZATIONS.index(trial.fusion.normalization or "none")
    uneven = round(max(weights, default=0) - min(weights, default=0), 9)
    return -round(trial.value, 9), uneven, normalization, weights


def _shown(trials: Sequence[Trial]) -> Iterable[Trial]:
    """The best few trials, and the best of each normalisation."""
    rows = list(trials[:SHOWN])
    for normalization in get_args(Normalization):
        rows += [trial for trial in trials if trial.fusion.normalization == normalization][:1]
    return dict.fromkeys(sorted(rows, key=trials.index))


def _deviations(hits: Candidates) -> list[float]:
    columns = [column[~np.isnan(column)] for column in hits.scores.T]
    return [float(column.std()) if len(column) else 0.0 for column in columns]


def _name(fusion: Fusion) -> str:
    if fusion.method == "rrf":
        return f"rrf, k = {fusion.rrf_k}"
    return f"{fusion.method}, {fusion.normalization or 'none'}" if fusion.takes("normalization") else fusion.method


def _as_json(trial: Trial, metric: str) -> dict[str, Any]:
    return {"fusion": asdict(trial.fusion), metric: trial.value}


def _check(fusion: Fusion, metric: str) -> None:
    if not fusion.takes("weights"):
        msg = f"fusion '{fusion.method}' has nothing to tune. Choose --fusion linear, which weights scores, or rrf."
        raise OptionError(msg)
    if fusion.weights is not None:
        msg = f"weights are given ({list(fusion.weights)}), but --tune searches for weights. Leave out one of the two."
        raise OptionError(msg)
    from retrievalkit.evaluate.measures import metric_names

    if len(metric_names(metric)) != 1:
        msg = f"--tune-metric is '{metric}', but must be a single metric, such as {METRIC}."
        raise OptionError(msg)


def write_choice(path: str | Path, tuned: Tuned) -> None:
    """Write the best fusion and all trials as JSON."""
    artifacts.write_json(path, tuned.to_json())
