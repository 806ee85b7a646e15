"""The conformance tests of metrics: the value of a query from the grades of its hits."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import Judged, Metric
from retrievalkit.errors import InputError
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import required_values
from retrievalkit_testing.properties import Kit, expect_same, fail
from retrievalkit_testing.shared import Subject, Turn, share

_FORMS = ("{name}", "{name}@10", "{name}@0.5")
"""Some metrics of ir-measures need a cutoff, or a level of recall."""


@dataclass
class Queries:
    """Judged queries."""

    judged: list[Judged]


class MetricCase(Subject):
    """A metric with drawn grades."""

    tolerance = (1e-9, 1e-9)

    def __init__(self, name: str, text: str, options: dict[str, Any]) -> None:
        self.name, self.label, self.text, self.options = name, text, text, options
        self.draws = {"queries": sizes(1, 20), "hits": sizes(0, 100), "grade": st.integers(1, 4), "seed": SEEDS}
        self.typical = [{"queries": 20, "hits": 30, "grade": 3, "seed": 0}]

    def create(self, options: Any) -> Metric:
        """A new metric with these options."""
        metric: Any = registry.get("metric", self.name)
        return metric(**options) if options else metric.of(self.text)  # type: ignore[no-any-return]

    def created(self, drawn: Drawn) -> Metric:  # noqa: ARG002 - by contract
        return self.create(self.options)

    def given(self, drawn: Drawn) -> Queries:
        """Queries with hits that are judged or not, up to the cutoff, and with documents that were not found."""
        draw, judged = np.random.default_rng(drawn["seed"]), []
        for number in range(drawn["queries"]):
            hits = drawn["hits"] if number == 0 else int(draw.integers(0, drawn["hits"] + 1))
            grades = draw.integers(0, drawn["grade"] + 1, hits).tolist()
            found = [None if draw.random() < 0.4 else grade for grade in grades][: self.create(self.options).cutoff]
            others = draw.integers(0, drawn["grade"] + 1, int(draw.integers(0, 5))).tolist()
            judged.append(Judged(found, [*(one for one in found if one is not None), *others, 1]))
        return Queries(judged)

    def call(self, component: Metric, given: Queries) -> Any:
        return [component.value(one) for one in given.judged]

    def rows(self, given: Queries) -> int:
        return len(given.judged)

    def chosen(self, given: Queries, rows: Any) -> Queries:
        return Queries([given.judged[row] for row in rows])

    def near(self, given: Queries) -> Queries:
        return Queries([Judged(one.found[:-1], one.grades) for one in given.judged])

    def turned(self, given: Queries, draw: np.random.Generator) -> Iterator[Turn]:
        other = [Judged(one.found, draw.permutation(np.array(one.grades, dtype=int)).tolist()) for one in given.judged]
        yield "the grades of judged documents", Queries(other), lambda found: found

    def check_form(self, given: Queries, found: Any) -> None:  # noqa: ARG002 - by contract
        for value in found:
            if not isinstance(value, int | float) or not math.isfinite(value):
                fail("a value is no finite number", expected="a finite number", found=repr(value)[:40])


def _cases(name: str, **options: Any) -> list[MetricCase]:
    component: Any = registry.get("metric", name)
    options = {**required_values(component, options), **options} if name not in _of_ir_measures() else options
    for form in _FORMS:
        try:
            case = MetricCase(name, form.format(name=name), options)
            case.answer(case.create(options), Queries([Judged([1], [1])]))
        except InputError as error:
            refusal = error
        except Exception:  # noqa: BLE001 - left to the properties
            return [case]
        else:
            return [case]
    raise refusal


def _of_ir_measures() -> set[str]:
    components = [one for plugin in registry.plugins() for one in plugin.components if one.kind == "metric"]
    return {one.name for one in components if one.distribution == "retrievalkit"}


def _behaviour(case: MetricCase, options: Any) -> list[Any]:
    given = [case.given({**case.typical[0], "seed": seed}) for seed in range(3)]
    made = case.create(options)
    return [case.answer(made, one) for one in given]


METRICS: Kit[MetricCase] = Kit("metric", _cases, method="value", unchecked="its equation")
share(METRICS, rows=True, options=_behaviour)


@METRICS.property(after=("form", "same_twice"))
def higher_is_better(case: MetricCase, drawn: Drawn) -> None:
    """The same hits, in the order of their grades, have no lower value."""
    made, given = case.created(drawn), case.given(drawn)
    best = [Judged(sorted(one.found, key=lambda grade: -1 if grade is None else grade, reverse=True), one.grades)
            for one in given.judged]  # fmt: skip
    perfect = [Judged(sorted(one.grades, reverse=True)[: made.cutoff], one.grades) for one in given.judged]
    for one, other in ((given.judged, best), (given.judged, perfect)):
        values = [case.answer(made, Queries(some)) for some in (one, other)]
        for worse, better, query in zip(*values, one, strict=True):
            if better < worse - 1e-9 and (other is best or None not in query.found):
                problem = "hits in the order of their grades have a lower value"
                fail(problem, expected=f"{worse:.4g} or more", found=float(better))


@METRICS.property(after=("form",))
def mean(case: MetricCase, drawn: Drawn) -> None:
    """`mean` gives a finite number for the values of any number of queries, in any order, also of none."""
    made, values = case.created(drawn), case.answer(case.created(drawn), case.given(drawn))
    for some in (values, list[float]()):
        found = made.mean(some)
        if not isinstance(found, int | float) or not math.isfinite(found):
            fail(f"the mean of {len(some)} values is no finite number", found=repr(found), method="mean")
        expect_same("the order of values changes their mean", made.mean(some[::-1]), found, rtol=1e-9, method="mean")
