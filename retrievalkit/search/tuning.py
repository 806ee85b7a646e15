"""Finds the best way to fuse runs on judged queries: `rkit search INDEX INDEX --tune QRELS`.

Every index is searched once. Then weights are tried from 0 to 1 in steps of 0.05 (with three or more indexes one weight
at a time, as long as that helps), with each normalisation of scores, or for `rrf` with several constants; the same
queries always give the same result. Without normalisation the scores of indexes differ in scale: there the steps apply
to scores divided by their mean deviation.
"""

from __future__ import annotations

import json
import shlex
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

import numpy as np

from retrievalkit import artifacts
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.runs import Run
from retrievalkit.errors import DataError, InputError, OptionError
from retrievalkit.evaluate.metrics import mean, metric_names, per_query
from retrievalkit.search.fusion import RRF_K, Candidates, Fusion, Normalization, Scores

if TYPE_CHECKING:
    from rich.console import Console

METRIC = "nDCG@10"
STEPS = 20
RRF_CONSTANTS = (0, 1, 5, 10, 20, 40, 60, 100, 200)
SHOWN = 5
_SWEEPS = 5
_DIGITS = 4
_NORMALIZATIONS: tuple[Normalization, ...] = ("min_max", "z_score", "none")

Weights = tuple[float, ...]


@dataclass(frozen=True)
class Trial:
    """A way to fuse, and the value of the metric."""

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
        trials: Best first.
        references: Name -> value: each index alone, and fusion without tuning.
    """

    labels: Sequence[str]
    identities: Sequence[str]
    metric: str
    queries: int
    trials: Sequence[Trial]
    references: Mapping[str, float]

    @property
    def best(self) -> Trial:
        """The best of all."""
        return self.trials[0]

    def options(self) -> str:
        """The options of `rkit search` for the best way."""
        given = self.best.fusion
        named = {
            "--fusion": given.method,
            "--weights": ",".join(f"{weight:g}" for weight in given.weights or ()),
            "--normalization": given.normalization,
            "--rrf-k": given.rrf_k,
            "--missing": given.missing,
        }
        return " ".join(f"{name} {value}" for name, value in named.items() if value not in (None, ""))

    def to_json(self) -> dict[str, Any]:
        """The result as JSON values, which `read_choice` reads back."""
        return {
            "indexes": [{"name": a, "identity": b} for a, b in zip(self.labels, self.identities, strict=True)],
            **_as_json(self.best, self.metric),
            "queries": self.queries,
            "references": dict(self.references),
            "trials": [_as_json(trial, self.metric) for trial in self.trials],
        }

    def render(self, console: Console, places: Sequence[str]) -> None:
        """Print the best trials as a table, and the command line for the best."""
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD)
        for name in ("fusion", *self.labels):
            table.add_column(name, justify="left" if name == "fusion" else "right", overflow="fold")
        table.add_column(self.metric, justify="right")
        for trial in _shown(self.trials):
            cells = [_name(trial.fusion), *(f"{weight:g}" for weight in trial.fusion.weights or ())]
            table.add_row(*cells, f"{trial.value:.4f}", style="bold" if trial is self.best else None)
        table.add_section()
        for name, value in self.references.items():
            table.add_row(name, *[""] * len(self.labels), f"{value:.4f}")
        console.print(f"weights tried on {self.queries:,} queries, {len(self.trials):,} ways to fuse:")
        console.print(table)
        line = " ".join(["rkit search", *map(shlex.quote, places), self.options()])
        console.print(f"Search so:  {line}", soft_wrap=True)


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
        found: Query id -> the hits of the indexes, with computed scores if there are any.
        qrels: Judgements; those of other queries are not used.
        fusion: "linear" or "rrf", with the options that are fixed.
        labels: The names of the indexes.
        identities: A fingerprint of each index.
        metric: Name as ir-measures writes it; higher is better.
        k: Documents of a query that are judged.
        progress: Called with the trial that is being computed.

    Raises:
        OptionError: There is nothing to tune, or several metrics were named.
        InputError: No query is judged, or the metric is none.
    """
    _check(fusion, metric)
    judge = _Judge(found, qrels, metric, k)
    trials = [trial for way in _ways(fusion) for trial in _trials(judge, way, len(labels), progress)]
    if fusion.method == "rrf" and fusion.rrf_k is None:
        # The weights that are best with the usual constant, with other constants.
        first = min(trials, key=_order)
        trials += [judge.trial(replace(first.fusion, rrf_k=k)) for k in RRF_CONSTANTS if k != first.fusion.rrf_k]
        trials += _trials(judge, min(trials, key=_order).fusion, len(labels), progress)
    unique = {trial.fusion: trial for trial in trials}
    return Tuned(
        labels, identities, metric, judge.queries, sorted(unique.values(), key=_order), judge.references(labels)
    )


def read_choice(path: str | Path, identities: Sequence[str]) -> Fusion:
    """The best fusion of a file that `--tune` wrote.

    Raises:
        DataError: The file holds no fusion.
        InputError: It is for another number of indexes, or for these in another order.
    """
    try:
        choice = json.loads(Path(path).read_text(encoding="utf-8"))
        made_for = [(one["name"], one["identity"]) for one in choice["indexes"]]
        fusion = _fusion_of(choice["fusion"])
    except (ValueError, KeyError, TypeError) as error:
        msg = "it holds no choice of weights. 'rkit search INDEX INDEX --tune QRELS --output FILE' writes one."
        raise DataError(msg, file=path) from error
    names = ", ".join(name for name, _ in made_for)
    order = [identity for _, identity in made_for]
    if len(order) != len(identities) or (order != list(identities) and sorted(order) == sorted(identities)):
        msg = f"the weights in '{path}' are for {len(order)} indexes in this order: {names}. Give the indexes so."
        raise InputError(msg)
    return fusion


def _fusion_of(choice: Mapping[str, Any]) -> Fusion:
    weights = choice["weights"]
    return Fusion(**{**choice, "weights": None if weights is None else tuple(map(float, weights))})


class _Judge:
    """Measures fusions on judged queries."""

    def __init__(self, found: Mapping[str, Candidates], qrels: Qrels, metric: str, k: int) -> None:
        self.found = found
        self.qrels = {query_id: judged for query_id, judged in qrels.items() if query_id in found}
        self.metric = metric
        self.most = k
        self.k = min(k, _cutoff(metric) or k)
        self._parts: dict[Fusion, list[Scores]] = {}
        self._scales: Scores | None = None

    @property
    def queries(self) -> int:
        """How many queries are judged."""
        return len(self.qrels)

    def trial(self, fusion: Fusion) -> Trial:
        """A fusion with its value."""
        return Trial(fusion, self.value(fusion))

    def value(self, fusion: Fusion) -> float:
        """The mean of the metric, of the run that `rkit search` would write."""
        run: Run = {}
        for (query_id, one), parts in zip(self.found.items(), self._parts_of(fusion), strict=True):
            scores = fusion.total(parts)
            rows = np.arange(len(scores))
            if len(scores) > self.k:
                # All documents tied with the last one stay: the metric breaks ties in its own way.
                rows = np.flatnonzero(scores >= np.partition(scores, -self.k)[-self.k])
            run[query_id] = [(one.ids[row], float(scores[row])) for row in rows]
        return self._mean(run)

    def scales(self) -> Scores:
        """(runs,) the mean deviation of a run's scores for a query."""
        if self._scales is None:
            deviations = np.array([_deviations(one) for one in self.found.values() if one.ids])  # (queries, runs)
            means = deviations.mean(axis=0)
            self._scales = np.where(means > 0, means, 1.0)
        return self._scales

    def references(self, labels: Sequence[str]) -> dict[str, float]:
        """Each run alone, and fusion that was not tuned."""
        alone = {f"{label} alone": self._alone(run) for run, label in enumerate(labels)}
        return {**alone, "rrf, not tuned": self.value(Fusion("rrf"))}

    def _alone(self, run: int) -> float:
        hits: Run = {}
        for query_id, one in self.found.items():
            rows = np.flatnonzero((one.ranks[:, run] > 0) & (one.ranks[:, run] <= self.most))
            hits[query_id] = [(one.ids[row], float(one.scores[row, run])) for row in rows]
        return self._mean(hits)

    def _mean(self, run: Run) -> float:
        return mean(self.metric, per_query(run, self.qrels, self.metric)[self.metric])

    def _parts_of(self, fusion: Fusion) -> list[Scores]:
        bare = replace(fusion, weights=None)
        if bare not in self._parts:
            # Only the last one is held: parts of all queries are large.
            self._parts = {bare: [bare.parts(one) for one in self.found.values()]}
        return self._parts[bare]


def _ways(fusion: Fusion) -> Iterator[Fusion]:
    """The fusions that weights are tried with."""
    if fusion.method == "rrf":
        yield replace(fusion, rrf_k=RRF_K if fusion.rrf_k is None else fusion.rrf_k)
        return
    for normalization in _NORMALIZATIONS if fusion.normalization is None else [fusion.normalization]:
        yield replace(fusion, normalization=normalization)


def _trials(judge: _Judge, way: Fusion, runs: int, progress: Callable[[str], None]) -> list[Trial]:
    """The fusion with different weights, measured."""
    scales = judge.scales() if way.method == "linear" and way.normalization == "none" else np.ones(runs)
    tried: dict[Weights, Trial] = {}

    def attempt(weights: Weights) -> Trial:
        if weights not in tried:
            progress(f"{_name(way)}, {len(tried) + 1}")
            tried[weights] = judge.trial(replace(way, weights=_scaled(weights, scales)))
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
            current = min(tried, key=lambda one: _order(tried[one]))
        if current == before:
            break
    return list(tried.values())


def _along(weights: Weights, run: int) -> Iterator[Weights]:
    """Weights that sum to 1: one run's goes from 0 to 1, the others keep their proportions."""
    rest = sum(weights) - weights[run]
    for step in range(STEPS + 1):
        share = step / STEPS
        others = [(1 - share) * (one / rest if rest else 1 / (len(weights) - 1)) for one in weights]
        others[run] = share
        yield tuple(round(one, _DIGITS) for one in others)


def _scaled(weights: Weights, scales: Scores) -> Weights:
    """Weights of raw scores, from those of scores divided by their scale; they sum to 1."""
    divided = np.array(weights) / scales
    return tuple(float(f"{one:.{_DIGITS}g}") for one in divided / divided.sum())


def _order(trial: Trial) -> tuple[float, float, int, Weights]:
    """Best first; of equal values the most even weights, then the order of normalisations."""
    weights = trial.fusion.weights or ()
    normalization = _NORMALIZATIONS.index(trial.fusion.normalization or "none")
    uneven = round(max(weights, default=0) - min(weights, default=0), 9)
    return -round(trial.value, 9), uneven, normalization, weights


def _shown(trials: Sequence[Trial]) -> Iterable[Trial]:
    """The best few, and the best of each normalisation."""
    chosen = list(trials[:SHOWN])
    for normalization in get_args(Normalization):
        chosen += [one for one in trials if one.fusion.normalization == normalization][:1]
    return dict.fromkeys(sorted(chosen, key=trials.index))


def _deviations(found: Candidates) -> list[float]:
    columns = [column[~np.isnan(column)] for column in found.scores.T]
    return [float(column.std()) if len(column) else 0.0 for column in columns]


def _name(fusion: Fusion) -> str:
    if fusion.method == "rrf":
        return f"rrf, k = {fusion.rrf_k}"
    return f"{fusion.method}, {fusion.normalization or 'none'}"


def _as_json(trial: Trial, metric: str) -> dict[str, Any]:
    return {"fusion": asdict(trial.fusion), metric: trial.value}


def _cutoff(metric: str) -> int | None:
    """The cutoff in a metric's name, if it has one."""
    import ir_measures

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            found = ir_measures.parse_measure(metric).params.get("cutoff")
    except Exception:  # noqa: BLE001 - a wrong name is reported when the metric is computed
        return None
    return found if isinstance(found, int) and found > 0 else None


def _check(fusion: Fusion, metric: str) -> None:
    if fusion.method == "sum":
        msg = "fusion 'sum' has nothing to tune. Choose --fusion linear, which weights scores, or rrf."
        raise OptionError(msg)
    if fusion.weights is not None:
        msg = f"the weights are given as {list(fusion.weights)}, and --tune is to find them. Leave out one of the two."
        raise OptionError(msg)
    if len(metric_names(metric)) != 1:
        msg = f"--tune-metric is '{metric}', and should be one metric, such as {METRIC}."
        raise OptionError(msg)


def write_choice(path: str | Path, tuned: Tuned) -> None:
    """Write the best fusion and all trials as JSON."""
    artifacts.write_json(path, tuned.to_json())
