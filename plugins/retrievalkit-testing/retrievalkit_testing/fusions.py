"""The conformance tests of fusion methods: what each run contributes to each document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import Candidates, FusionMethod
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import off_defaults, required_values
from retrievalkit_testing.properties import Kit, fail
from retrievalkit_testing.shared import Subject, Turn, share


class FusionCase(Subject):
    """A fusion method with drawn runs."""

    tolerance = (1e-9, 1e-12)

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.label, self.options = name, "drawn runs", options
        component = registry.get("fusion", name)
        self.draws = {
            "documents": sizes(1, 300),
            "runs": st.integers(1, 5),
            "ties": st.booleans(),
            "options": st.sampled_from(off_defaults(component, options, self.create)),
            "seed": SEEDS,
        }
        self.typical = [{"documents": 40, "runs": 3, "ties": False, "options": {}, "seed": 0}]

    def create(self, options: Any) -> FusionMethod:
        """A new fusion method with these options."""
        made: FusionMethod = registry.create("fusion", self.name, **options)
        return made

    def created(self, drawn: Drawn) -> FusionMethod:
        return self.create({**self.options, **drawn["options"]})

    def given(self, drawn: Drawn) -> Candidates:
        """Hits of runs with scores on different scales, each of a part of the documents, all of some run."""
        draw, (documents, runs) = np.random.default_rng(drawn["seed"]), (drawn["documents"], drawn["runs"])
        scores = draw.normal(size=(documents, runs)) * 10.0 ** np.arange(runs)
        scores = np.zeros_like(scores) + 2 if drawn["ties"] else scores
        missing = draw.random((documents, runs)) < 0.4
        missing[np.arange(documents), draw.integers(0, runs, documents)] = False
        # Of the last of several runs nothing is found.
        missing[:, -1] |= runs > 1 and drawn["seed"] % 3 == 0
        missing[missing.all(axis=1), 0] = False
        scores[missing] = np.nan
        order = np.argsort(-scores, axis=0, kind="stable").argsort(axis=0)
        return Candidates(
            [f"d{row}" for row in range(documents)], scores, np.where(missing, 0, order + 1).astype(np.int32)
        )

    def call(self, component: FusionMethod, given: Candidates) -> Any:
        return component.parts(given)

    def near(self, given: Candidates) -> Candidates:
        scores = given.scores.copy()
        scores[0] += 4e-3
        return replace(given, scores=scores)

    def turned(self, given: Candidates, draw: np.random.Generator) -> Iterator[Turn]:
        rows, columns = (draw.permutation(size) for size in given.scores.shape)
        ids = [given.ids[row] for row in rows]
        documents = Candidates(ids, given.scores[rows], given.ranks[rows])
        yield "documents", documents, lambda found: found[rows.argsort()]
        runs = Candidates(given.ids, given.scores[:, columns], given.ranks[:, columns])
        yield "runs", runs, lambda found: found[:, columns.argsort()]

    def check_form(self, given: Candidates, found: Any) -> None:
        dtype = getattr(found, "dtype", type(found).__name__)
        if not isinstance(found, np.ndarray) or found.shape != given.scores.shape or dtype != np.float64:
            told = f"{getattr(found, 'shape', '')} {dtype}"
            fail("`parts` are not those of each document and run", expected=f"{given.scores.shape} float64", found=told)
        if not np.isfinite(found).all():
            wrong = found[~np.isfinite(found)][0]
            fail(
                "`parts` are not finite: scores of documents that a run lacks are NaN", expected="numbers", found=wrong
            )


def _cases(name: str, **options: Any) -> list[FusionCase]:
    return [FusionCase(name, {**required_values(registry.get("fusion", name), options), **options})]


def _behaviour(case: FusionCase, options: Any) -> list[Any]:
    made = case.create(options)
    return [case.answer(made, case.given({**case.typical[0], "seed": seed})).tolist() for seed in range(3)]


FUSIONS: Kit[FusionCase] = Kit("fusion", _cases, method="parts", unchecked="whether the fused runs are better")
share(FUSIONS, threads=True, options=_behaviour)


@FUSIONS.property(after=("form", "same_twice"))
def ranks_or_scores(case: FusionCase, drawn: Drawn) -> None:
    """A method that says that it uses no scores gives the same whatever the scores are."""
    made, given = case.created(drawn), case.given(drawn)
    if made.uses_scores:
        return
    expected, found = (case.answer(made, one) for one in (given, replace(given, scores=given.scores * 2 + 1)))
    case.same("`uses_scores` is False, and other scores change the result", found, expected)
