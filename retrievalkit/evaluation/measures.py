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
from retrievalkit.evaluation.evaluate import METRICS

_TRUNCATED = {"AP", "Judged", "P", "R", "RR", "Success", "nDCG"}  # with a cutoff, ranks below it do not count
_LARGEST_CUTOFF = 1_000_000_000
_LARGEST_EXPONENT = LARGEST_GRADE.bit_length() - 1
_LARGEST_GRADE_OF_ERR = 4


def check_metrics(metrics: str | Sequence[str], qrels: Qrels) -> None:
    """Refuse metrics that cannot be computed, before large files are read."""
    for name in metric_names(metrics):
        measure_of(name, qrels)


def mean(name: str, by_query: Mapping[str, float]) -> float:
    """The mean; or the sum for metrics that count, such as NumRel."""
    return open_metric(name).mean(list(by_query.values()))


def metric_names(metrics: str | Sequence[str]) -> list[str]:
    """The distinct metrics, in order; texts are split at spaces and commas outside parentheses."""
    texts = [metrics] if isinstance(metrics, str) else metrics
    names = [name for text in texts for name in re.findall(r"(?:[^\s,(]|\([^)]*\)?)+", text)]
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
        # Documents of a ranking that the measure needs; None if unknown.
        known = measure.NAME in _TRUNCATED and not measure.params.get("judged_only")
        self.cutoff = measure.params.get("cutoff") if known else None

    @classmethod
    def of(cls, name: str) -> IrMeasure:
        """The measure with this name, validated: ir-measures would end the process for a wrong cutoff."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # from ir-measures' parser, on newer Pythons
                measure = ir_measures.parse_measure(name)
            if lacking := sorted(_required(measure) - measure.params.keys()):
                msg = f"it needs {' and '.join(lacking)}"
                raise ValueError(msg)  # noqa: TRY301 -- as ir-measures' own, whose text shows an address instead of a name
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
            msg = f"metric '{name}' has a gain above {LARGEST_GRADE:,}. Give smaller ones."
            raise OptionError(msg)
        return cls(measure)

    def for_grades(self, qrels: Qrels) -> IrMeasure:
        """The measure, with exponential gains written out: ir-measures would call a Perl script for those of nDCG.

        The script computes ERR, and takes grades up to 4.
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
        """The value for a query."""
        found = {str(rank): grade for rank, grade in enumerate(query.found, 1)}
        unfound = Counter(query.grades)
        unfound.subtract(grade for grade in query.found if grade is not None)
        judged = {rank: grade for rank, grade in found.items() if grade is not None}
        judged |= {f"-{number}": grade for number, grade in enumerate(unfound.elements(), 1)}
        run = {"1": {rank: float(len(found) - int(rank)) for rank in found}} if found else {}
        qrels = {"1": with_grade_of_zero(judged)}
        measure = self.for_grades(qrels).measure
        return next((float(one.value) for one in ir_measures.iter_calc([measure], qrels, run)), 0.0)

    def mean(self, values: Sequence[float]) -> float:
        """The mean; or the sum for metrics that count, such as NumRel. 0 if there are no values."""
        if not values:
            return 0.0
        aggregator = self.measure.aggregator()
        for value in values:
            aggregator.add(value)
        return float(aggregator.result())


def measure_of(name: str, qrels: Qrels) -> Metric:
    """The metric with this name, for these judgements."""
    metric = open_metric(name)
    return metric.for_grades(qrels) if isinstance(metric, IrMeasure) else metric


def open_metric(name: str) -> Metric:
    """The metric with this name; see `measure_of`."""
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
    """The parameters without which the measure, or none of the programs that compute it, has a value."""
    programs = [
        {parameter for parameter, values in one.params.items() if getattr(values, "required", False)}
        for provider in ir_measures.providers.registry.values()
        for one in provider.SUPPORTED_MEASURES
        if one.NAME == measure.NAME
    ]
    own = {parameter for parameter, description in measure.SUPPORTED_PARAMS.items() if description.required}
    return own | set.intersection(*programs)


def with_grade_of_zero(grades: dict[str, int]) -> dict[str, int]:
    """The judgements of a query by rank, with a grade that is not negative.

    trec_eval counts by grade up to the largest: where all are negative, it writes outside of them (SIGSEGV). No run
    contains the added name, because ranks start at 1, so that no value changes.
    """
    return grades if max(grades.values(), default=-1) >= 0 else grades | {"0": 0}
