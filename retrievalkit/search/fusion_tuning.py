"""Tuning of the fusion of runs on judged queries: `rkit search INDEX INDEX --tune QRELS`.

Every index is searched once. A grid search then tries weights from 0 to 1 in steps of 0.05 (with three or more indexes
one weight at a time, until nothing improves) with each score normalisation, or for `rrf` with several constants. The
result is deterministic. The scale of unnormalised scores differs between indexes, so the steps apply to scores divided
by their mean standard deviation.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from retrievalkit.contracts import Candidates
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.queries import Query, check_queries
from retrievalkit.data.runs import Run
from retrievalkit.errors import InputError, OptionError
from retrievalkit.evaluation.metric_names import mean, metric_names, open_metric
from retrievalkit.evaluation.metrics import per_query
from retrievalkit.reporting.progress import ProgressBar
from retrievalkit.reporting.terminal import counted, printable
from retrievalkit.search.fusion import RRF_K, Fusion, Scores
from retrievalkit.search.options import METRIC, Normalization
from retrievalkit.search.searcher import Searcher, batches

STEPS = 20
RRF_CONSTANTS = (0, 1, 5, 10, 20, 40, 60, 100, 200)
SHOWN = 5
_SWEEPS = 5
_DIGITS = 4
_NORMALIZATIONS: tuple[Normalization, ...] = ("min_max", "z_score", "none")

Weights = tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """A fusion and its metric value."""

    fusion: Fusion
    value: float


@dataclass(frozen=True)
class Tuned:
    """All fusions tried, best first, and the metric values of each index alone and of untuned fusion."""

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
        """Return the `rkit search` options for the best fusion."""
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
        """Return the result as JSON values, which `read_choice` reads back."""
        named = zip(self.labels, self.identities, strict=True)
        best, *trials = (
            {"fusion": asdict(trial.fusion), self.metric: trial.value} for trial in (self.best, *self.trials)
        )
        return {
            "indexes": [{"name": label, "identity": identity} for label, identity in named],
            **best,
            "queries": self.queries,
            "references": dict(self.references),
            "trials": trials,
        }

    def render(self, places: Sequence[str], *, err: bool = False) -> None:
        """Print the best trials, the best of each normalisation, and the command line for the best fusion."""
        from rich import box
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        table = Table(box=box.SIMPLE_HEAD)
        for name in ("fusion", *self.labels):
            table.add_column(Text(printable(name)), justify="left" if name == "fusion" else "right", overflow="fold")
        table.add_column(self.metric, justify="right")
        first = {trial.fusion.normalization: trial for trial in reversed(self.trials)}
        for trial in self.trials:
            if trial in self.trials[:SHOWN] or trial is first.get(trial.fusion.normalization):
                cells = [_name(trial.fusion), *(f"{weight:g}" for weight in trial.fusion.weights or ())]
                table.add_row(*cells, f"{trial.value:.4f}", style="bold" if trial is self.best else None)
        table.add_section()
        for name, value in self.references.items():
            table.add_row(Text(printable(name)), *[""] * len(self.labels), f"{value:.4f}")
        console = Console(highlight=False, stderr=err)
        console.print(f"{len(self.trials):,} fusions tried on {counted(self.queries, 'queries')}:")
        console.print(table)
        line = " ".join(["rkit search", *map(shlex.quote, places), self.options()])
        console.print(Text(printable(f"Best search:  {line}")), soft_wrap=True)


def tune(
    searcher: Searcher,
    queries: Sequence[Query],
    qrels: Qrels,
    fusion: Fusion,
    *,
    metric: str = METRIC,
    k: int = 1000,
    depth: int | None = None,
) -> Tuned:
    """Find the best weights, and the best normalisation or rrf constant unless `fusion` fixes it."""
    if not fusion.takes("weights"):
        msg = f"fusion '{fusion.method}' has nothing to tune. Choose --fusion linear, which weights scores, or rrf."
        raise OptionError(msg)
    if fusion.weights is not None:
        msg = f"weights are set to {list(fusion.weights)}, but --tune determines the weights. Leave out one of the two."
        raise OptionError(msg)
    if len(metric_names(metric)) != 1:
        msg = f"--tune-metric is '{metric}', but must be a single metric, such as {METRIC}."
        raise OptionError(msg)
    judged = [query for query in queries if query.id in qrels]
    if not judged:
        msg = (
            f"none of the {counted(len(queries), 'queries')} to tune on is judged: its ids are like '{queries[0].id}', "
            f"theirs like '{next(iter(qrels))}'. Give the queries of these judgements with tune_queries."
        )
        raise InputError(msg)
    if searcher.indexes:
        check_queries(judged)
    if lacking := len(qrels) - len(judged):
        searcher.note(
            f"{lacking:,} of the {len(qrels):,} judged queries are not among the queries to tune on and are left out."
        )
    searcher.check_runs(judged)
    names: dict[str, str] = {}
    candidates: dict[str, Candidates] = {}
    for batch in batches(judged, k, depth):
        for query, hits in zip(batch, searcher.candidates(searcher.ask(batch), k, fusion, depth), strict=True):
            # Store one string per id across queries: ids take most of the memory.
            hits.ids = [names.setdefault(name, name) for name in hits.ids]
            candidates[query.id] = hits
    searcher.note_short_runs(depth)
    judge, runs = _Judge(candidates, qrels, metric, k), len(searcher.sources)
    bases = [fusion]
    if fusion.method == "rrf":
        bases = [replace(fusion, rrf_k=RRF_K if fusion.rrf_k is None else fusion.rrf_k)]
    elif fusion.takes("normalization") and fusion.normalization is None:
        bases = [replace(fusion, normalization=name) for name in _NORMALIZATIONS]
    with ProgressBar("tune") as bar:
        trials = [trial for base in bases for trial in _trials(judge, base, runs, bar)]
        if fusion.method == "rrf" and fusion.rrf_k is None:
            # Try the best weights of the usual constant with other constants.
            first = min(trials, key=_order)
            others = [replace(first.fusion, rrf_k=k) for k in RRF_CONSTANTS if k != first.fusion.rrf_k]
            trials += [judge.trial(other, judge.parts(other)) for other in others]
            trials += _trials(judge, min(trials, key=_order).fusion, runs, bar)
        unique = sorted({trial.fusion: trial for trial in trials}.values(), key=_order)
        references = {f"{label} alone": judge.alone(run) for run, label in enumerate(searcher.labels)}
        references["rrf, not tuned"] = judge.trial(Fusion("rrf"), judge.parts(Fusion("rrf"))).value
    return Tuned(searcher.labels, searcher.identities, metric, len(judge.qrels), unique, references)


class _Judge:
    """Evaluates fusions on judged queries."""

    def __init__(self, candidates: Mapping[str, Candidates], qrels: Qrels, metric: str, k: int) -> None:
        self.candidates = candidates
        self.qrels = {query_id: judged for query_id, judged in qrels.items() if query_id in candidates}
        self.metric = metric
        self.depth = k
        self.k = min(k, open_metric(metric).cutoff or k)

    def parts(self, fusion: Fusion) -> list[Scores]:
        """Return the runs' contributions to each query's documents, before weighting."""
        return [fusion.parts(hits) for hits in self.candidates.values()]

    def trial(self, fusion: Fusion, parts_of: Sequence[Scores]) -> Trial:
        """Compute the metric's mean for the run that `rkit search` would write."""
        run: Run = {}
        for (query_id, hits), parts in zip(self.candidates.items(), parts_of, strict=True):
            scores = fusion.total(parts)
            rows = np.arange(len(scores))
            if len(scores) > self.k:
                # Keep all documents tied with the last document, because the metric breaks ties in its own way.
                rows = np.flatnonzero(scores >= np.partition(scores, -self.k)[-self.k])
            run[query_id] = [(hits.ids[row], float(scores[row])) for row in rows]
        return Trial(fusion, self._mean(run))

    def alone(self, run: int) -> float:
        """Return the metric's mean for a single run."""
        alone: Run = {}
        for query_id, hits in self.candidates.items():
            rows = np.flatnonzero((hits.ranks[:, run] > 0) & (hits.ranks[:, run] <= self.depth))
            alone[query_id] = [(hits.ids[row], float(hits.scores[row, run])) for row in rows]
        return self._mean(alone)

    def scales(self) -> Scores:
        """Return the standard deviation of each run's scores for a query, averaged over queries, shape (runs,)."""
        deviations = [
            [float(column[~np.isnan(column)].std()) if not np.isnan(column).all() else 0.0 for column in hits.scores.T]
            for hits in self.candidates.values()
            if hits.ids
        ]
        means = np.array(deviations).mean(axis=0)
        return np.where(means > 0, means, 1.0)

    def _mean(self, run: Run) -> float:
        return mean(self.metric, per_query(run, self.qrels, self.metric)[self.metric])


def _trials(judge: _Judge, base: Fusion, runs: int, bar: ProgressBar) -> list[Trial]:
    """Evaluate the fusion with different weights."""
    scales = judge.scales() if base.method == "linear" and base.normalization == "none" else np.ones(runs)
    parts, tried = judge.parts(base), dict[Weights, Trial]()
    current = (round(1 / runs, _DIGITS),) * runs
    for _ in range(_SWEEPS):
        before = current
        for run in range(runs):
            for weights in (current, *_along(current, run)):
                if weights not in tried:
                    bar.update(label=f"tune: {_name(base)}, {len(tried) + 1}")
                    # Convert weights of scaled scores to weights of raw scores that sum to 1.
                    divided = np.array(weights) / scales
                    scaled = tuple(float(f"{weight:.{_DIGITS}g}") for weight in divided / divided.sum())
                    tried[weights] = judge.trial(replace(base, weights=scaled), parts)
            current = min(tried, key=lambda weights: _order(tried[weights]))
        if current == before:
            break
    return list(tried.values())


def _along(weights: Weights, run: int) -> Iterator[Weights]:
    """Yield weights that sum to 1: `run`'s weight goes from 0 to 1, and the others keep their proportions."""
    rest = sum(weights) - weights[run]
    for step in range(STEPS + 1):
        share = step / STEPS
        others = [(1 - share) * (weight / rest if rest else 1 / (len(weights) - 1)) for weight in weights]
        others[run] = share
        yield tuple(round(weight, _DIGITS) for weight in others)


def _order(trial: Trial) -> tuple[float, float, int, Weights]:
    """Return the sort key: best first; ties by the evenness of the weights, then by normalisation."""
    weights = trial.fusion.weights or ()
    normalization = _NORMALIZATIONS.index(trial.fusion.normalization or "none")
    uneven = round(max(weights, default=0) - min(weights, default=0), 9)
    return -round(trial.value, 9), uneven, normalization, weights


def _name(fusion: Fusion) -> str:
    if fusion.method == "rrf":
        return f"rrf, k = {fusion.rrf_k}"
    return f"{fusion.method}, {fusion.normalization or 'none'}" if fusion.takes("normalization") else fusion.method
