"""Lookup and validation of metrics by name: ir-measures' metrics, and metrics that plugins register."""

from __future__ import annotations

import re
import subprocess
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import ir_measures

from retrievalkit import registry
from retrievalkit.contracts import Judged, Metric
from retrievalkit.data.qrels import LARGEST_GRADE, Qrels
from retrievalkit.errors import InputError, OptionError, UnknownNameError, nearest
from retrievalkit.evaluation.evaluate import METRICS

_TRUNCATED = {"AP", "Judged", "P", "R", "RR", "Success", "nDCG"}  # with a cutoff, ranks below it do not count
_LARGEST_CUTOFF = 1_000_000_000
_LARGEST_EXPONENT = LARGEST_GRADE.bit_length() - 1
_LARGEST_GRADE_OF_ERR = 4
_FAILURES = (
    ValueError, TypeError, KeyError, ArithmeticError, RuntimeError, AssertionError, OSError, subprocess.SubprocessError,
)  # fmt: skip


class RankedQuery(NamedTuple):
    """The number of documents retrieved (None if the run lacks the query), and the documents' grades by rank."""

    depth: int | None
    grades: dict[str, int]


def check_metrics(metrics: str | Sequence[str], qrels: Qrels) -> None:
    """Refuse metrics that cannot be computed, before large files are read."""
    for name in metric_names(metrics):
        measure_of(name, qrels)


def mean(name: str, by_query: Mapping[str, float]) -> float:
    """Return the mean; or the sum for metrics that count, such as NumRel."""
    return open_metric(name).mean(list(by_query.values()))


def metric_names(metrics: str | Sequence[str]) -> list[str]:
    """Return the distinct metrics in order, split at spaces and commas outside parentheses."""
    texts = [metrics] if isinstance(metrics, str) else metrics
    names = [name for text in texts for name in re.findall(r"(?:[^\s,(]|\([^)]*\)?)+", text)]
    if not names:
        msg = f"there are no metrics. Name some, such as '{METRICS}'."
        raise OptionError(msg)
    return list(dict.fromkeys(names))


class IrMeasure(Metric):
    """A measure of ir-measures, with its name and parameters there.

    `metrics.per_query` computes all of them in one pass; `value` is for a single query.
    """

    def __init__(self, measure: Any) -> None:
        self.measure = measure
        # The number of first documents that the measure needs; None if unknown.
        known = measure.NAME in _TRUNCATED and not measure.params.get("judged_only")
        self.cutoff = measure.params.get("cutoff") if known else None

    @classmethod
    def of(cls, name: str) -> IrMeasure:
        """Return the named measure, validated: ir-measures would exit the process for a wrong cutoff."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # from ir-measures' parser, on newer Pythons
                measure = ir_measures.parse_measure(name)
            if missing := sorted(_required(measure) - measure.params.keys()):
                msg = f"it needs {' and '.join(missing)}"
                raise ValueError(msg)  # noqa: TRY301 -- like ir-measures' error, which shows an address, not a name
            measure.validate_params()
        except (AssertionError, ValueError, TypeError, KeyError, SyntaxError, AttributeError, OverflowError) as error:
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            msg = f"metric '{name}' cannot be read: {reason}. Write metrics as in '{METRICS}' or 'AP(rel=2)@100'."
            raise OptionError(msg) from error
        for parameter in ("cutoff", "rel"):
            value = measure.params.get(parameter, 1)
            if isinstance(value, bool) or not 1 <= value <= _LARGEST_CUTOFF:
                msg = (
                    f"metric '{name}' has {parameter} {value}; it must be a whole number from 1 to {_LARGEST_CUTOFF:,}."
                )
                raise OptionError(msg)
        gains = measure.params.get("gains") or {}
        if any(gain > LARGEST_GRADE for gain in gains.values()):
            msg = f"metric '{name}' has a gain above {LARGEST_GRADE:,}. Use smaller gains."
            raise OptionError(msg)
        return cls(measure)

    def for_grades(self, qrels: Qrels) -> IrMeasure:
        """Return the measure with nDCG's exponential gains written out: ir-measures would call a Perl script.

        The script computes ERR, and accepts grades up to 4.
        """
        measure, err = self.measure, self.measure.NAME == "ERR"
        if not err and (measure.NAME != "nDCG" or measure["dcg"] != "exp-log2"):
            return self
        grades = {grade for judged in qrels.values() for grade in judged.values()}
        most = _LARGEST_GRADE_OF_ERR if err else _LARGEST_EXPONENT
        if (largest := max(grades, default=0)) > most:
            msg = f"the qrels have the grade {largest}; the exponential gains of {measure} are for grades up to {most}."
            raise InputError(msg)
        gains = {grade: 2**grade - 1 for grade in sorted(grades) if grade > 0}
        return self if err else IrMeasure(measure(dcg="log2", gains=gains))

    def value(self, query: Judged) -> float:
        """Return the value for a query."""
        grades = {str(rank): grade for rank, grade in enumerate(query.found, 1) if grade is not None}
        unranked = Counter(query.grades)
        unranked.subtract(grades.values())
        grades |= {f"-{number}": grade for number, grade in enumerate(unranked.elements(), 1)}
        measure = self.for_grades({"1": grades})
        values = computed_by_ir_measures({"1": RankedQuery(len(query.found), grades)}, [measure])
        return values[measure.measure].get("1", 0.0)

    def mean(self, values: Sequence[float]) -> float:
        """Return the mean; or the sum for metrics that count, such as NumRel. 0 if there are no values."""
        if not values:
            return 0.0
        aggregator = self.measure.aggregator()
        for value in values:
            aggregator.add(value)
        return float(aggregator.result())


def measure_of(name: str, qrels: Qrels) -> Metric:
    """Return the metric with this name, for these judgements."""
    metric = open_metric(name)
    return metric.for_grades(qrels) if isinstance(metric, IrMeasure) else metric


def open_metric(name: str) -> Metric:
    """Return the metric with this name; see `measure_of`."""
    base = re.split(r"\W", name, maxsplit=1)[0]
    if base in registry.names("metric"):
        metric: Metric = registry.get("metric", base).of(name)  # type: ignore[attr-defined]
        return metric
    if base in ir_measures.measures.registry:
        return IrMeasure.of(name)
    lower: dict[str, str] = {}
    for known in (*registry.names("metric"), *ir_measures.measures.registry):
        lower.setdefault(known.lower(), known)  # names precede their aliases
    close = lower.get(nearest(base.lower(), lower) or "")
    hint = f"Write '{close}{name[len(base) :]}'." if close else f"Write metrics as in '{METRICS}'."
    hint = f"{hint} {registry.default_registry().hint('metric', base)}".rstrip()
    raise UnknownNameError("metric", name, registry.names("metric"), hint=hint)


def _required(measure: Any) -> set[str]:
    """Return the parameters that the measure itself, or every program that computes it, requires."""
    programs = [
        {parameter for parameter, values in supported.params.items() if getattr(values, "required", False)}
        for provider in ir_measures.providers.registry.values()
        for supported in provider.SUPPORTED_MEASURES
        if supported.NAME == measure.NAME
    ]
    required = {parameter for parameter, description in measure.SUPPORTED_PARAMS.items() if description.required}
    return required | set.intersection(*programs)


def computed_by_ir_measures(
    queries: Mapping[str, RankedQuery], measures: Sequence[IrMeasure]
) -> dict[Any, dict[str, float]]:
    """Compute each measure's values; to save time, rankings are truncated to the depth it needs."""
    # Some of ir-measures' programs accept only numbers as ids.
    ids = list(queries)
    # trec_eval keeps counts up to the largest grade: if all grades are negative, it writes out of bounds (SIGSEGV). A
    # grade of 0 for a rank that no run has changes no value.
    judged = {
        str(number): query.grades if max(query.grades.values(), default=-1) >= 0 else query.grades | {"0": 0}
        for number, query in enumerate(queries.values())
    }
    # Queries without hits are left out: some of the programs divide by their depth.
    depths = {str(number): query.depth for number, query in enumerate(queries.values()) if query.depth}
    deepest = max(depths.values(), default=0)
    by_depth: dict[int, list[Any]] = {}
    for metric in measures:
        by_depth.setdefault(min(metric.cutoff or deepest, deepest), []).append(metric.measure)
    values: dict[Any, dict[str, float]] = {metric.measure: {} for metric in measures}
    for depth, group in by_depth.items():
        # Documents are named by rank, and scores decrease by 1 per rank, so that all programs see the same order;
        # queries with equally many documents share their scores.
        names = [str(rank) for rank in range(1, depth + 1)]
        scores = {
            count: dict(zip(names, map(float, range(count, 0, -1)), strict=False))
            for count in {min(count, depth) for count in depths.values()}
        }
        run = {number: scores[min(count, depth)] for number, count in depths.items()}
        try:
            for value in ir_measures.iter_calc(group, judged, run):
                values[value.measure][ids[int(value.query_id)]] = float(value.value)
        except _FAILURES as error:
            reason = " ".join(str(error).split()).rstrip(".") or type(error).__name__
            failed = ", ".join(map(str, group))
            msg = f"ir-measures cannot compute {failed}: {reason}. Leave out the metric named there."
            raise InputError(msg) from error
    return values
