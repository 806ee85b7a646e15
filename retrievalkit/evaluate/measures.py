"""Metrics by the names that users write, validated: those of ir-measures, and those that plugins register."""

from __future__ import annotations

import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import ir_measures

from retrievalkit import registry
from retrievalkit.contracts import Judged, Metric
from retrievalkit.data.qrels import LARGEST_GRADE, Qrels
from retrievalkit.errors import InputError, OptionError, UnknownNameError, nearest

METRICS = "nDCG@10 RR@10 R@1000"

_TRUNCATED = {"AP", "Judged", "P", "R", "RR", "Success", "nDCG"}  # with a cutoff, ranks below it do not count
_TREC_EVAL = {"AP", "P", "R", "Success", "nDCG"}  # computed by trec_eval, with any cutoff, from whole rankings too
_LARGEST_CUTOFF = 1_000_000_000
_LARGEST_EXPONENT = LARGEST_GRADE.bit_length() - 1
_LONGEST_NAME = 200


def check_metrics(metrics: str | Sequence[str], qrels: Qrels) -> None:
    """Refuse metrics that cannot be computed, before large files are read.

    Raises:
        UnknownNameError: A metric is unknown.
        OptionError: A metric cannot be read.
    """
    for name in metric_names(metrics):
        measure_of(name, qrels)


def mean(name: str, by_query: Mapping[str, float]) -> float:
    """The mean; or the sum for metrics that count, such as NumRel."""
    return open_metric(name).mean(list(by_query.values()))


def metric_names(metrics: str | Sequence[str]) -> list[str]:
    """The distinct metrics, in order; a text is split at spaces and commas outside parentheses.

    Raises:
        OptionError: There is none.
    """
    names = re.findall(r"(?:[^\s,(]|\([^)]*\)?)+", metrics) if isinstance(metrics, str) else list(metrics)
    if not names:
        msg = f"no metric was given. Name some, such as '{METRICS}'."
        raise OptionError(msg)
    return list(dict.fromkeys(names))


class IrMeasure(Metric):
    """A measure of ir-measures, by the name and with the parameters that it has there.

    `metrics.per_query` computes all of them in one pass; `value` is for a single query.
    """

    def __init__(self, measure: Any) -> None:
        self.measure = measure
        self.cutoff = depth_of(measure)

    @classmethod
    def of(cls, text: str) -> IrMeasure:
        """The measure with this name, validated: ir-measures would end the process for a wrong cutoff."""
        return cls(_validated(text))

    def for_grades(self, qrels: Qrels) -> IrMeasure:
        """The measure for judgements with these grades."""
        return IrMeasure(_with_exponential_gains(self.measure, qrels))

    def value(self, query: Judged) -> float:
        """The value for a query."""
        found = {str(rank): grade for rank, grade in enumerate(query.found, 1)}
        unfound = Counter(query.grades)
        unfound.subtract(grade for grade in query.found if grade is not None)
        judged = {rank: grade for rank, grade in found.items() if grade is not None}
        judged |= {f"-{number}": grade for number, grade in enumerate(unfound.elements(), 1)}
        run = {rank: float(len(found) - int(rank)) for rank in found}
        qrels = {"1": judged}
        measure = self.for_grades(qrels).measure
        return next((float(one.value) for one in ir_measures.iter_calc([measure], qrels, {"1": run})), 0.0)

    def mean(self, values: Sequence[float]) -> float:
        """The mean; or the sum for metrics that count, such as NumRel."""
        aggregator = self.measure.aggregator()
        for value in values:
            aggregator.add(value)
        return float(aggregator.result())


def measure_of(name: str, qrels: Qrels) -> Metric:
    """The metric with this name, for these judgements.

    Raises:
        UnknownNameError: Neither ir-measures nor a plugin has it.
        OptionError: It cannot be read.
    """
    metric = open_metric(name)
    return metric.for_grades(qrels) if isinstance(metric, IrMeasure) else metric


def open_metric(name: str) -> Metric:
    """The metric with this name; see `measure_of`."""
    if len(name) > _LONGEST_NAME:
        msg = f"metric '{name[:_LONGEST_NAME]}...' is too long to be one. Write metrics as in '{METRICS}'."
        raise OptionError(msg)
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


def _validated(name: str) -> Any:
    try:
        measure = parse(name)
        measure.validate_params()
    except (AssertionError, ValueError, TypeError, KeyError, SyntaxError, AttributeError, OverflowError) as error:
        msg = f"metric '{name}' cannot be read: {reason(error)}. Write metrics as in '{METRICS}' or 'AP(rel=2)@100'."
        raise OptionError(msg) from error
    for parameter in ("cutoff", "rel"):
        value = measure.params.get(parameter, 1)
        if isinstance(value, bool) or not 1 <= value <= _LARGEST_CUTOFF:
            msg = f"metric '{name}' has {parameter} {value}; it must be a whole number from 1 to {_LARGEST_CUTOFF:,}."
            raise OptionError(msg)
    gains = measure.params.get("gains") or {}
    if any(gain > LARGEST_GRADE for gain in gains.values()):
        msg = f"metric '{name}' has a gain above {LARGEST_GRADE:,}. Give smaller ones."
        raise OptionError(msg)
    return measure


def parse(name: str) -> Any:
    """The measure of ir-measures with this name."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # from ir-measures' parser, on newer Pythons
        return ir_measures.parse_measure(name)


def _with_exponential_gains(measure: Any, qrels: Qrels) -> Any:
    """For nDCG with exponential gains, the gains 2^grade - 1: ir-measures would call a Perl script for it."""
    if measure.NAME != "nDCG" or measure["dcg"] != "exp-log2":
        return measure
    grades = {grade for judged in qrels.values() for grade in judged.values()}
    if (largest := max(grades, default=0)) > _LARGEST_EXPONENT:
        msg = f"the qrels have the grade {largest}; exponential gains ('dcg') are for at most {_LARGEST_EXPONENT}."
        raise InputError(msg)
    return measure(dcg="log2", gains={grade: 2**grade - 1 for grade in sorted(grades) if grade > 0})


def trec_eval_level(measure: Any) -> int | None:
    """The grade from which trec_eval counts documents as relevant; None for other measures than its, with a cutoff."""
    params = measure.params
    if measure.NAME not in _TREC_EVAL or "cutoff" not in params or params.get("judged_only") or params.get("gains"):
        return None
    level: int = params.get("rel", 1)
    return level


def cutoff_of(name: str) -> int | None:
    """The cutoff in a metric's name, if any; None for a wrong name too, which is refused when it is computed."""
    try:
        metric = open_metric(name)
    except InputError:
        return None
    if not isinstance(metric, IrMeasure):
        return metric.cutoff
    cutoff = metric.measure.params.get("cutoff")
    return cutoff if isinstance(cutoff, int) else None


def depth_of(measure: Any) -> int | None:
    """How many documents of a ranking a measure needs; None if unknown."""
    if measure.NAME not in _TRUNCATED or measure.params.get("judged_only"):
        return None
    depth: int | None = measure.params.get("cutoff")
    return depth


def reason(error: Exception) -> str:
    """An error of ir-measures in a line."""
    return " ".join(f"{error}".split()).rstrip(".") or type(error).__name__
