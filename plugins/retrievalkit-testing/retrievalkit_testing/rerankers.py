"""The conformance tests of re-rankers: scores of pairs of a query and a passage."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import Reranker
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit_testing.drawing import SEEDS, Drawn, sizes
from retrievalkit_testing.properties import Kit, fail
from retrievalkit_testing.samples import WORDS, kit_reranker
from retrievalkit_testing.shared import Subject, share

Pair = tuple[str, tuple[str, str]]
"""A query, and the title and text of a passage."""


class RerankerCase(Subject):
    """A re-ranker with a model."""

    tolerance = (1e-3, 1e-4)

    def __init__(self, name: str, source: str) -> None:
        self.name, self.label, self.source = name, "a cross-encoder", source
        self.draws = {
            "pairs": sizes(1, 200),
            "words": sizes(0, 60),
            "titles": st.booleans(),
            "batch_tokens": st.sampled_from((None, 512, 4096)),
            "seed": SEEDS,
        }
        self.typical = [{"pairs": 12, "words": 20, "titles": True, "batch_tokens": None, "seed": 0}]
        self._batch_tokens: int | None = None

    def created(self, drawn: Drawn) -> Reranker:
        self._batch_tokens = drawn["batch_tokens"]
        component: Any = registry.get("reranker", self.name)
        return component.load(self.source)  # type: ignore[no-any-return]

    def given(self, drawn: Drawn) -> list[Pair]:
        """Pairs of known words, with empty texts among them."""
        draw, known = np.random.default_rng(drawn["seed"]), WORDS.split()
        pairs = []
        for _ in range(drawn["pairs"]):
            query, text = (" ".join(draw.choice(known, draw.integers(0, size + 1))) for size in (9, drawn["words"]))
            pairs.append((query, (str(draw.choice(known)) if drawn["titles"] else "", text)))
        return pairs

    def call(self, component: Reranker, given: list[Pair]) -> Any:
        tokens = component.tokenize([query for query, _ in given], [passage for _, passage in given])
        return component.score(tokens, batch_tokens=self._batch_tokens)

    def read(self, given: list[Pair], found: Any) -> list[float]:  # noqa: ARG002 - by contract
        return [float(one) for one in found]

    def near(self, given: list[Pair]) -> list[Pair]:
        return [(query, (title, f"{text} city")) for query, (title, text) in given]

    def check_form(self, given: list[Pair], found: Any) -> None:
        dtype, shape = getattr(found, "dtype", type(found).__name__), getattr(found, "shape", None)
        if not isinstance(found, np.ndarray) or shape != (len(given),) or dtype != np.float32:
            fail("scores have another form", expected=f"({len(given)},) float32", found=f"{shape} {dtype}")
        if not np.isfinite(found).all():
            fail("scores are not finite", expected="numbers", found=float(found[~np.isfinite(found)][0]))


def _cases(name: str, *, model: str | None = None) -> list[RerankerCase]:
    component: Any = registry.get("reranker", name)
    source = kit_reranker() if model is None else model
    try:
        component.load(source)
    except InputError as error:
        if model is not None:
            raise
        msg = f"it does not load the kit's tiny cross-encoder ({error}). Name a model: --model MODEL"
        raise UnsupportedError(msg) from error
    return [RerankerCase(name, source)]


RERANKERS: Kit[RerankerCase] = Kit(
    "reranker", _cases, method="score", unchecked="whether it ranks well, bf16 and fp16, and devices other than the CPU"
)
share(RERANKERS, rows=True, threads=True)
_SOUND = ("form", "inputs_unchanged", "same_twice", "no_memory")


@RERANKERS.property(after=_SOUND)
def batch_tokens(case: RerankerCase, drawn: Drawn) -> None:
    """The size of batches changes no score."""
    made, given = case.created(drawn), case.given(drawn)
    answers = []
    for size in (None, 128):
        case._batch_tokens = size
        answers.append(case.answer(made, given))
    case.same("`batch_tokens` changes scores", answers[1], answers[0])


@RERANKERS.property(after=_SOUND)
def advance(case: RerankerCase, drawn: Drawn) -> None:
    """`advance` is called with the numbers of pairs, which add up to all."""
    made, given, counts = case.created(drawn), case.given(drawn), list[int]()
    tokens = made.tokenize([query for query, _ in given], [passage for _, passage in given])
    made.score(tokens, batch_tokens=drawn["batch_tokens"], advance=counts.append)
    if sum(counts) != len(given):
        fail("the numbers for `advance` do not add up to that of the pairs", expected=len(given), found=sum(counts))


@RERANKERS.property(after=_SOUND)
def fingerprint(case: RerankerCase) -> None:
    """`fingerprint` is a text, the same whenever the same model is loaded."""
    texts = [getattr(case.created(case.typical[0]), "fingerprint", None) for _ in range(2)]
    if not isinstance(texts[0], str) or not texts[0] or texts[0] != texts[1]:
        fail("`fingerprint` is no text, or another one each time", expected=texts[0], found=texts[1], method="load")


@RERANKERS.property(after=_SOUND)
def reads_pairs(case: RerankerCase) -> None:
    """Scores depend on the query, and on the title and the text of a passage."""
    made = case.created(case.typical[0])
    pairs = [("capital of peru", ("peru", "the city of lima")), ("rome", ("peru", "the city of lima")),
             ("capital of peru", ("rome", "the city of lima")), ("capital of peru", ("peru", "rome"))]  # fmt: skip
    seen = case.answer(made, pairs)
    for what, score in zip(("query", "title", "text"), seen[1:], strict=True):
        if score == seen[0]:
            fail(f"another {what} does not change the score", expected="another score", found=score)
