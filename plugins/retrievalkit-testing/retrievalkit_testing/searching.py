"""The conformance tests of filters of mined negatives, fusion methods, metrics and re-rankers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from retrievalkit import registry
from retrievalkit.contracts import (
    Candidates,
    Filter,
    FilterInputs,
    Found,
    FusionMethod,
    Judged,
    Metric,
    Places,
    Question,
    Reranker,
)  # fmt: skip
from retrievalkit.data.corpus import Passage
from retrievalkit.data.queries import Query
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.option_effects import off_defaults
from retrievalkit_testing.properties import Kit, expect, expect_same
from retrievalkit_testing.samples import COUNTRIES, WORDS, kit_reranker
from retrievalkit_testing.shared import Subject, Turn, share

_PASSAGES = 400


def passage(name: str) -> Passage:
    """Return a passage of 5 to 30 words from a small corpus with several passages per country."""
    row = int(name[1:])
    country, capital, currency, language = COUNTRIES.split("|")[row % 42].replace("-", " ").split(" ", 3)
    words = f"The city is {capital}, and people pay with the {currency}. " * (row % 3)
    return Passage(name, country, f"{words}It is number {row // 84} {language}.")


def pair_scores(pairs: Sequence[tuple[Found, str]]) -> list[float | None]:
    """Draw a re-ranker's scores of pairs; some are missing."""
    return [None if int(name[1:]) % 7 == 0 else int(name[1:]) % 11 - 5.0 for _, name in pairs]


Part = list[tuple[Found, Places]]
"""Questions with their hits, and the places of the hits that earlier filters left."""


class FilterCase(Subject):
    """A filter on a small corpus."""

    kind = "filter"

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__(name, "a small corpus", options)
        settings = off_defaults(self, registry.get("filter", name))
        self.draws = {"questions": sizes(1, 40), "hits": sizes(0, 200), "options": settings, "seed": SEEDS}
        self.typical = [{"questions": 30, "hits": 200, "options": {}, "seed": 0}]

    def create(self, options: Any) -> Filter:
        created: Filter = registry.create("filter", self.name, FilterInputs(passage, pair_scores), **options)
        return created

    def inputs(self, drawn: Drawn) -> Part:
        """Questions with hits in descending order of scores, with and without their positives and answers."""
        draw, part = np.random.default_rng(drawn["seed"]), Part()
        for number in range(drawn["questions"]):
            count = drawn["hits"] if number == 0 else int(draw.integers(0, drawn["hits"] + 1))
            rows = draw.permutation(_PASSAGES)
            positives = frozenset(f"d{row}" for row in rows[count // 3 :][: 1 + number % 3])
            copies = frozenset(f"d{row}" for row in rows[:count][-1:]) if number % 4 == 0 else frozenset()
            query = Query(f"q{number}", f"what is number {number}", (str(number),))
            scores = sorted(draw.normal(size=count).round(3).tolist(), reverse=True)
            holds = None if number % 5 == 0 else (draw.random(count) < 0.3).tolist()
            question = Question(query, (query.id,), positives, copies)
            hits = Found(question, [f"d{row}" for row in rows[:count]], scores, holds, positives)
            part.append((hits, [place for place in range(count) if draw.random() < 0.8]))
        return part

    def call(self, component: Filter, inputs: Part) -> Any:
        return component.keep([hits for hits, _ in inputs], [places for _, places in inputs])

    def read(self, inputs: Part, result: Any) -> list[list[int]]:  # noqa: ARG002 - by contract
        return [list(places) for places in result]

    def near(self, inputs: Part) -> Part:
        """Return the questions with slightly other scores and fewer remaining hits."""
        more = [[score + 1e-3 for score in hits.scores] for hits, _ in inputs]
        return [(replace(hits, scores=some), left[::2]) for (hits, left), some in zip(inputs, more, strict=True)]

    def check_form(self, inputs: Part, result: Any) -> None:
        lists = isinstance(result, Sequence) and not isinstance(result, str) and len(result) == len(inputs)
        problem = "it does not return the places to keep for each question"
        expect(lists, problem, expected=f"{len(inputs)} lists", actual=repr(result)[:60])
        for kept, (_, left) in zip(result, inputs, strict=True):
            places = isinstance(kept, list) and all(isinstance(place, int) for place in kept)
            expect(places, "it does not return places of hits", expected="a list of places", actual=repr(kept)[:60])
            expect(set(kept) <= set(left), "it keeps hits that earlier filters dropped", expected=left, actual=kept)
            ascending = sorted(set(kept))
            expect(kept == ascending, "places are not in ascending order", expected=ascending, actual=kept)


FILTERS: Kit[FilterCase] = Kit(
    "filter",
    lambda name, **options: [FilterCase(name, options)],
    method="keep_of",
    unchecked="whether the dropped hits are relevant",
)
share(FILTERS, rows=True, options=True)


@FILTERS.property(after=("form", "same_twice"))
def reasons(case: FilterCase, drawn: Drawn) -> None:
    """`reason` returns a text for each dropped hit."""
    component, inputs = case.created(drawn), case.inputs(drawn)
    kept = case.call(component, [(hits, list(left)) for hits, left in inputs])
    for (hits, before), after in zip(inputs, kept, strict=True):
        for place in sorted(set(before) - set(after)):
            reason = component.reason(hits, place)
            expect(isinstance(reason, str), "`reason` is not a text", actual=repr(reason), method="reason")


class FusionCase(Subject):
    """A fusion method with drawn runs."""

    kind = "fusion"
    tolerance = (1e-9, 1e-12)

    def __init__(self, name: str, options: dict[str, Any]) -> None:
        super().__init__(name, "drawn runs", options)
        settings = off_defaults(self, registry.get("fusion", name))
        self.draws = {"documents": sizes(1, 300), "runs": range(1, 6), "ties": (False, True), "options": settings}
        self.draws |= {"seed": SEEDS}
        self.typical = [{"documents": 40, "runs": 3, "ties": False, "options": {}, "seed": 0}]

    def inputs(self, drawn: Drawn) -> Candidates:
        """Hits of runs with scores on different scales, each of a part of the documents, all of some run."""
        draw, (documents, runs) = np.random.default_rng(drawn["seed"]), (drawn["documents"], drawn["runs"])
        scores = draw.normal(size=(documents, runs)) * 10.0 ** np.arange(runs)
        scores = np.zeros_like(scores) + 2 if drawn["ties"] else scores
        missing = draw.random((documents, runs)) < 0.4
        missing[np.arange(documents), draw.integers(0, runs, documents)] = False
        # The last of several runs may have no hits.
        missing[:, -1] |= runs > 1 and drawn["seed"] % 3 == 0
        missing[missing.all(axis=1), 0] = False
        scores[missing] = np.nan
        ranks = np.argsort(-scores, axis=0, kind="stable").argsort(axis=0) + 1
        ids = [f"d{row}" for row in range(documents)]
        return Candidates(ids, scores, np.where(missing, 0, ranks).astype(np.int32))

    def call(self, component: FusionMethod, inputs: Candidates) -> Any:
        return component.parts(inputs)

    def near(self, inputs: Candidates) -> Candidates:
        scores = inputs.scores.copy()
        scores[0] += 4e-3
        return replace(inputs, scores=scores)

    def turned(self, inputs: Candidates, draw: np.random.Generator) -> Iterator[Turn]:
        rows, columns = (draw.permutation(size) for size in inputs.scores.shape)
        ids = [inputs.ids[row] for row in rows]
        documents = Candidates(ids, inputs.scores[rows], inputs.ranks[rows])
        yield "documents", documents, lambda parts: parts[rows.argsort()]
        runs = Candidates(inputs.ids, inputs.scores[:, columns], inputs.ranks[:, columns])
        yield "runs", runs, lambda parts: parts[:, columns.argsort()]

    def check_form(self, inputs: Candidates, result: Any) -> None:
        dtype, shape = getattr(result, "dtype", type(result).__name__), getattr(result, "shape", "")
        fits = isinstance(result, np.ndarray) and shape == inputs.scores.shape and dtype == np.float64
        problem = "`parts` are not those of each document and run"
        expect(fits, problem, expected=f"{inputs.scores.shape} float64", actual=f"{shape} {dtype}")
        problem = "`parts` are not finite: scores of documents that a run lacks are NaN"
        expect(np.isfinite(result).all(), problem, expected="numbers", actual=result[~np.isfinite(result)][:1])


FUSIONS: Kit[FusionCase] = Kit(
    "fusion",
    lambda name, **options: [FusionCase(name, options)],
    method="parts",
    unchecked="whether the fused runs are better",
)
share(FUSIONS, threads=True, options=True)


@FUSIONS.property(after=("form", "same_twice"))
def ranks_or_scores(case: FusionCase, drawn: Drawn) -> None:
    """With `uses_scores` False, the scores have no effect."""
    component, inputs = case.created(drawn), case.inputs(drawn)
    if not component.uses_scores:
        answers = [case.answer(component, part) for part in (inputs, replace(inputs, scores=inputs.scores * 2 + 1))]
        case.same("`uses_scores` is False, and other scores change the result", answers[1], answers[0])


_FORMS = ("{name}", "{name}@10", "{name}@0.5")
"""Some metrics of ir-measures need a cutoff, or a level of recall."""


class MetricCase(Subject):
    """A metric with drawn grades."""

    kind = "metric"
    tolerance = (1e-9, 1e-9)

    def __init__(self, name: str, text: str, options: dict[str, Any]) -> None:
        super().__init__(name, text, options)
        self.draws = {"queries": sizes(1, 20), "hits": sizes(0, 100), "grade": range(1, 5), "seed": SEEDS}
        self.typical = [{"queries": 20, "hits": 30, "grade": 3, "seed": 0}]

    def create(self, options: Any) -> Metric:
        metric: Any = registry.get("metric", self.name)
        return metric(**options) if options else metric.of(self.label)  # type: ignore[no-any-return]

    def inputs(self, drawn: Drawn) -> list[Judged]:
        """Queries with judged and unjudged hits, up to the cutoff, and with judged documents that are not hits."""
        draw, judged = np.random.default_rng(drawn["seed"]), []
        for number in range(drawn["queries"]):
            hits = drawn["hits"] if number == 0 else int(draw.integers(0, drawn["hits"] + 1))
            grades = draw.integers(0, drawn["grade"] + 1, hits).tolist()
            ranked = [None if draw.random() < 0.4 else grade for grade in grades][: self.create(self.options).cutoff]
            others = draw.integers(0, drawn["grade"] + 1, int(draw.integers(0, 5))).tolist()
            judged.append(Judged(ranked, [*(grade for grade in ranked if grade is not None), *others, 1]))
        return judged

    def call(self, component: Metric, inputs: list[Judged]) -> Any:
        return [component.value(query) for query in inputs]

    def near(self, inputs: list[Judged]) -> list[Judged]:
        return [Judged(query.found[:-1], query.grades) for query in inputs]

    def turned(self, inputs: list[Judged], draw: np.random.Generator) -> Iterator[Turn]:
        grades = [draw.permutation(np.array(query.grades, dtype=int)).tolist() for query in inputs]
        other = [Judged(query.found, some) for query, some in zip(inputs, grades, strict=True)]
        yield "the grades of judged documents", other, lambda values: values

    def check_form(self, inputs: list[Judged], result: Any) -> None:  # noqa: ARG002 - by contract
        for value in result:
            expect(_is_number(value), "a value is not finite", expected="a finite number", actual=repr(value)[:40])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _metrics(name: str, **options: Any) -> list[MetricCase]:
    refusals = []
    for form in _FORMS:
        try:
            case = MetricCase(name, form.format(name=name), options)
            case.create(case.options).value(Judged([1], [1]))
        except InputError as error:
            refusals.append(error)
        except Exception:  # noqa: BLE001 - left to the properties
            return [case]
        else:
            return [case]
    raise refusals[-1]


METRICS: Kit[MetricCase] = Kit("metric", _metrics, method="value", unchecked="its equation")
share(METRICS, rows=True, options=True)


@METRICS.property(after=("form", "same_twice"))
def higher_is_better(case: MetricCase, drawn: Drawn) -> None:
    """The same hits, ordered by their grades, have at least the same value."""
    component, inputs = case.created(drawn), case.inputs(drawn)
    orders = [sorted((-1 if grade is None else grade for grade in query.found), reverse=True) for query in inputs]
    ranked = [[None if grade < 0 else grade for grade in order] for order in orders]
    best = [Judged(some, query.grades) for some, query in zip(ranked, inputs, strict=True)]
    values = [case.answer(component, queries) for queries in (inputs, best)]
    for worse, better in zip(*values, strict=True):
        problem = "hits in the order of their grades have a lower value"
        expect(better >= worse - 1e-9, problem, expected=f"{worse:.4g} or more", actual=float(better))


@METRICS.property(after=("form",))
def mean(case: MetricCase, drawn: Drawn) -> None:
    """`mean` is a finite number for any number of queries, including none, in any order."""
    component = case.created(drawn)
    for values in (case.answer(component, case.inputs(drawn)), list[float]()):
        number = component.mean(values)
        expect(_is_number(number), f"the mean of {len(values)} values is not finite", actual=number, method="mean")
        problem = "the order of values changes their mean"
        expect_same(problem, component.mean(values[::-1]), number, rtol=1e-9, method="mean")


Pair = tuple[str, tuple[str, str]]
"""A query, and the title and text of a passage."""


class RerankerCase(Subject):
    """A re-ranker with a model."""

    kind = "reranker"
    tolerance = (1e-3, 1e-4)

    def __init__(self, name: str, source: str) -> None:
        super().__init__(name, "a cross-encoder", {})
        self.source = source
        self.draws = {"pairs": sizes(1, 200), "words": sizes(0, 60), "titles": (False, True)}
        self.draws |= {"batch_tokens": (None, 512, 4096), "seed": SEEDS}
        self.typical = [{"pairs": 12, "words": 20, "titles": True, "batch_tokens": None, "seed": 0}]
        self._batch_tokens: int | None = None

    def created(self, drawn: Drawn) -> Reranker:
        self._batch_tokens = drawn["batch_tokens"]
        component: Any = registry.get("reranker", self.name)
        return component.load(self.source)  # type: ignore[no-any-return]

    def inputs(self, drawn: Drawn) -> list[Pair]:
        """Pairs of known words, with empty texts among them."""
        draw, known = np.random.default_rng(drawn["seed"]), WORDS.split()
        pairs = []
        for _ in range(drawn["pairs"]):
            query, text = (" ".join(draw.choice(known, draw.integers(0, size + 1))) for size in (9, drawn["words"]))
            pairs.append((query, (str(draw.choice(known)) if drawn["titles"] else "", text)))
        return pairs

    def call(self, component: Reranker, inputs: list[Pair], **options: Any) -> Any:
        tokens = component.tokenize([query for query, _ in inputs], [passage for _, passage in inputs])
        return component.score(tokens, **{"batch_tokens": self._batch_tokens} | options)

    def read(self, inputs: list[Pair], result: Any) -> list[float]:  # noqa: ARG002 - by contract
        return [float(score) for score in result]

    def near(self, inputs: list[Pair]) -> list[Pair]:
        return [(query, (title, f"{text} city")) for query, (title, text) in inputs]

    def check_form(self, inputs: list[Pair], result: Any) -> None:
        dtype, shape = getattr(result, "dtype", type(result).__name__), getattr(result, "shape", None)
        fits = isinstance(result, np.ndarray) and shape == (len(inputs),) and dtype == np.float32
        expect(fits, "scores have another form", expected=f"({len(inputs)},) float32", actual=f"{shape} {dtype}")
        expect(np.isfinite(result).all(), "scores are not finite", actual=result[~np.isfinite(result)][:1])


def _rerankers(name: str, *, model: str | None = None) -> list[RerankerCase]:
    case = RerankerCase(name, kit_reranker() if model is None else model)
    try:
        case.created(case.typical[0])
    except InputError as error:
        if model is not None:
            raise
        msg = f"it does not load the kit's tiny cross-encoder ({error}). Name a model: --model MODEL"
        raise UnsupportedError(msg) from error
    return [case]


RERANKERS: Kit[RerankerCase] = Kit(
    "reranker",
    _rerankers,
    method="score",
    unchecked="whether it ranks well, bf16 and fp16, and devices other than the CPU",
)
share(RERANKERS, rows=True, threads=True)
_SOUND = ("form", "inputs_unchanged", "same_twice", "no_memory")


@RERANKERS.property(after=_SOUND)
def batches(case: RerankerCase, drawn: Drawn) -> None:
    """The batch size changes no score, and the numbers passed to `advance` add up to all pairs."""
    component, inputs, counts = case.created(drawn), case.inputs(drawn), list[int]()
    whole = case.read(inputs, case.call(component, inputs, batch_tokens=None, advance=counts.append))
    case.same("`batch_tokens` changes scores", case.read(inputs, case.call(component, inputs, batch_tokens=128)), whole)
    problem = "the numbers for `advance` do not add up to that of the pairs"
    expect(sum(counts) == len(inputs), problem, expected=len(inputs), actual=sum(counts))


@RERANKERS.property(after=_SOUND)
def fingerprint(case: RerankerCase) -> None:
    """`fingerprint` is a text, the same whenever the same model is loaded."""
    texts = [getattr(case.created(case.typical[0]), "fingerprint", None) for _ in range(2)]
    same = isinstance(texts[0], str) and texts[0] and texts[0] == texts[1]
    expect(same, "`fingerprint` is not a text, or changes", expected=texts[0], actual=texts[1], method="load")


@RERANKERS.property(after=_SOUND)
def reads_pairs(case: RerankerCase) -> None:
    """Scores depend on the query, and on the title and the text of a passage."""
    pairs = [("capital of peru", ("peru", "the city of lima")), ("rome", ("peru", "the city of lima")),
             ("capital of peru", ("rome", "the city of lima")), ("capital of peru", ("peru", "rome"))]  # fmt: skip
    first, *scores = case.answer(case.created(case.typical[0]), pairs)
    for part, score in zip(("query", "title", "text"), scores, strict=True):
        expect(score != first, f"another {part} does not change the score", expected="another score", actual=score)
