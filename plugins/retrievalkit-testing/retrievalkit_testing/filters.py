"""The conformance tests of filters of mined negatives: what they keep of the hits of questions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import Filter, FilterInputs, Found, Places, Question
from retrievalkit.data.corpus import Passage
from retrievalkit.data.queries import Query
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import off_defaults, required_values
from retrievalkit_testing.properties import Kit, fail
from retrievalkit_testing.samples import COUNTRIES
from retrievalkit_testing.shared import Subject, share

_PASSAGES = 400


def passage(name: str) -> Passage:
    """A passage of a small corpus, in which each country has several."""
    row = int(name[1:])
    country, capital, currency, language = COUNTRIES.split("|")[row % 42].replace("-", " ").split(" ", 3)
    words = f"The city is {capital}, and people pay with the {currency}. " * (1 + row % 3)
    return Passage(name, country, f"{words} It is number {row // 84} {language}.")


def pair_scores(pairs: Sequence[tuple[Found, str]]) -> list[float | None]:
    """A re-ranker's scores of pairs; it lacks some."""
    return [None if int(name[1:]) % 7 == 0 else int(name[1:]) % 11 - 5.0 for _, name in pairs]


@dataclass
class Part:
    """Questions with their hits, and the places of the hits that earlier filters left."""

    found: list[Found]
    left: list[Places]


class FilterCase(Subject):
    """A filter on a small corpus."""

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        self.name, self.label, self.options = name, "a small corpus", options
        component = registry.get("filter", name)
        self.draws = {
            "questions": sizes(1, 40),
            "hits": sizes(0, 200),
            "options": st.sampled_from(off_defaults(component, options, self.create)),
            "seed": SEEDS,
        }
        self.typical = [{"questions": 12, "hits": 50, "options": {}, "seed": 0}]

    def create(self, options: Any) -> Filter:
        """A new filter with these options."""
        made: Filter = registry.create("filter", self.name, FilterInputs(passage, pair_scores), **options)
        return made

    def created(self, drawn: Drawn) -> Filter:
        return self.create({**self.options, **drawn["options"]})

    def given(self, drawn: Drawn) -> Part:
        """Questions with hits in falling order of scores, with and without their positives and answers."""
        draw, found, left = np.random.default_rng(drawn["seed"]), [], []
        for number in range(drawn["questions"]):
            hits = drawn["hits"] if number == 0 else int(draw.integers(0, drawn["hits"] + 1))
            rows = draw.permutation(_PASSAGES)
            positives = frozenset(f"d{row}" for row in rows[hits // 3 :][: 1 + number % 3])
            copies = frozenset(f"d{row}" for row in rows[:hits][-1:]) if number % 4 == 0 else frozenset()
            query = Query(f"q{number}", f"what is number {number}", (str(number),))
            ranked = [f"d{row}" for row in rows[:hits]]
            scores = sorted(draw.normal(size=hits).round(3).tolist(), reverse=True)
            holds = None if number % 5 == 0 else (draw.random(hits) < 0.3).tolist()
            question = Question(query, (query.id,), positives, copies)
            found.append(Found(question, ranked, scores, holds, positives))
            left.append([place for place in range(hits) if draw.random() < 0.8])
        return Part(found, left)

    def call(self, component: Filter, given: Part) -> Any:
        return component.keep(given.found, given.left)

    def read(self, given: Part, found: Any) -> list[list[int]]:  # noqa: ARG002 - by contract
        return [list(places) for places in found]

    def rows(self, given: Part) -> int:
        return len(given.found)

    def chosen(self, given: Part, rows: Sequence[int]) -> Part:
        return Part([given.found[row] for row in rows], [given.left[row] for row in rows])

    def near(self, given: Part) -> Part:
        """The same questions with slightly other scores and fewer hits left."""
        found = [replace(one, scores=[score + 1e-3 for score in one.scores]) for one in given.found]
        return Part(found, [places[::2] for places in given.left])

    def check_form(self, given: Part, found: Any) -> None:
        if not isinstance(found, Sequence) or isinstance(found, str) or len(found) != len(given.found):
            told = f"{type(found).__name__} of {len(found)}" if hasattr(found, "__len__") else type(found).__name__
            fail("it does not return the places to keep for each question", expected=len(given.found), found=told)
        for kept, left in zip(found, given.left, strict=True):
            if not isinstance(kept, list) or not all(isinstance(place, int) for place in kept):
                fail(
                    "it returns something else than places of hits", expected="a list of places", found=repr(kept)[:60]
                )
            if not set(kept) <= set(left):
                fail("it keeps hits that earlier filters dropped", expected=left[:8], found=kept[:8])
            if kept != sorted(set(kept)):
                fail("the places that it keeps are not in ascending order", expected=sorted(kept)[:8], found=kept[:8])


def _cases(name: str, **options: Any) -> list[FilterCase]:
    return [FilterCase(name, {**required_values(registry.get("filter", name), options), **options})]


def _behaviour(case: FilterCase, options: Any) -> list[Any]:
    parts = [case.given({**case.typical[0], "questions": 30, "hits": 200, "seed": seed}) for seed in range(3)]
    made = case.create(options)
    return [case.answer(made, part) for part in parts]


FILTERS: Kit[FilterCase] = Kit("filter", _cases, method="keep_of", unchecked="whether what it drops are no negatives")
share(FILTERS, rows=True, options=_behaviour)


@FILTERS.property(after=("form", "same_twice"))
def reasons(case: FilterCase, drawn: Drawn) -> None:
    """`reason` gives a text for each hit that it dropped."""
    made, given = case.created(drawn), case.given(drawn)
    kept = case.call(made, Part(given.found, [list(places) for places in given.left]))
    for one, before, after in zip(given.found, given.left, kept, strict=True):
        for place in sorted(set(before) - set(after)):
            if not isinstance(reason := made.reason(one, place), str):
                fail("`reason` gives no text", expected="a text", found=repr(reason), method="reason")
