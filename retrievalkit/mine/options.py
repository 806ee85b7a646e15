"""The options of mining, a question with its hits, and the choice of hard negatives from them.

The filters are in `mine.filters`.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, get_args

from retrievalkit.data.queries import Query
from retrievalkit.errors import OptionError

Sample = Literal["top", "random"]
Positives = Literal["keep", "retrieved"]
Merge = Literal["concatenate", "pool"]

TITLE = "title"


@dataclass(frozen=True, kw_only=True)
class MiningOptions:
    """Which of the hits become negatives, and how the mined examples are merged with another set.

    Args:
        depth: How many hits per question are considered, positives included.
        negatives: How many negatives per question are kept.
        skip_top: Drop this many of the first ranks, which may be unlabelled positives.
        drop_answers: Drop passages that contain the question's answer (DPR's rule, see `evaluate.answers`).
        drop_positives: Drop the question's known positives, of all examples with its text, and copies of their text.
        same_document: Drop passages of a positive's document: "title" where passages of a document share a title (as
            DPR's do), or a regular expression that finds the document's name in the start of an id, such as "(.+)#".
        near_duplicates: Drop passages that share at least this fraction of their word 5-grams with a positive, or with
            a better negative (Jaccard's coefficient, such as 0.8).
        margin_absolute: Keep hits that score at least this much less than the positive.
        margin_relative: Keep hits that score at most this fraction of the positive's score, such as 0.95 (for a
            negative score: lower by the same fraction of its magnitude). With several positives the lowest score
            counts; a positive that is not among the hits counts with the score of the last hit.
        reranker: A second opinion on the hits: a re-ranker (rkit rerank train, or a Hugging Face cross-encoder), or a
            run of its scores (rkit rerank apply).
        reranker_above: Drop hits that the re-ranker scores above this; the score of a cross-encoder is its logit.
        reranker_margin: Keep hits that the re-ranker scores at least this much less than the positive (with several,
            the lowest-scoring one).
        sample: Keep the "top" of the hits that pass the filters, or a "random" sample of them, in rank order.
        seed: Of the random sample, which otherwise depends only on the question's id.
        positives: "keep" those of the examples; or "retrieved", as in MLR's released code: the best hit that contains
            an answer is the positive, only hits without an answer are negatives, and a question without such a hit
            is dropped.
        keep: How many negatives of each example are kept when merging; None = all.
        merge: "concatenate": the other set's examples, then the mined ones, as separate examples; "pool": one example
            per question, with the negatives of both.
    """

    depth: int = 200
    negatives: int = 100
    skip_top: int = 0
    drop_answers: bool = False
    drop_positives: bool = True
    same_document: str | None = None
    near_duplicates: float | None = None
    margin_absolute: float | None = None
    margin_relative: float | None = None
    reranker: str | None = None
    reranker_above: float | None = None
    reranker_margin: float | None = None
    sample: Sample = "top"
    seed: int = 42
    positives: Positives = "keep"
    keep: int | None = None
    merge: Merge = "concatenate"

    @property
    def needs_answers(self) -> bool:
        """Whether hits are checked for the answers."""
        return self.drop_answers or self.positives == "retrieved"

    def check(self, *, merging: bool) -> None:
        """Refuse invalid values and combinations.

        Args:
            merging: Whether there is another set to merge with.

        Raises:
            OptionError: An option is invalid; the message names it.
        """
        least = {"depth": 1, "negatives": 1, "skip_top": 0} | ({"keep": 1} if self.keep is not None else {})
        for name, low in least.items():
            if getattr(self, name) < low:
                msg = f"{name} is {getattr(self, name)}, but must be at least {low}."
                raise OptionError(msg)
        for name, choices in {"sample": Sample, "positives": Positives, "merge": Merge}.items():
            if getattr(self, name) not in get_args(choices):
                msg = f"{name} is '{getattr(self, name)}', but must be one of {', '.join(get_args(choices))}."
                raise OptionError(msg)
        if self.skip_top >= self.depth:
            msg = f"skip_top {self.skip_top} leaves nothing of depth {self.depth}. Raise --depth, or skip less."
            raise OptionError(msg)
        self._check_thresholds()
        if not merging and (self.keep is not None or self.merge != "concatenate"):
            msg = "keep and merge say how sets are merged, but there is no other set. Give it with --merge-with."
            raise OptionError(msg)

    def _check_thresholds(self) -> None:
        for name, usual in {"margin_relative": 0.95, "near_duplicates": 0.8}.items():
            value = getattr(self, name)
            if value is not None and not 0 < value <= 1:
                msg = f"{name} is {value}, but must be above 0 and at most 1, such as {usual}."
                raise OptionError(msg)
        for name in ("margin_absolute", "reranker_above", "reranker_margin"):
            value = getattr(self, name)
            if value is not None and not abs(value) < float("inf"):
                msg = f"{name} is {value}, but must be a finite number."
                raise OptionError(msg)
        thresholds = self.reranker_above is not None or self.reranker_margin is not None
        if self.reranker is not None and not thresholds:
            msg = f"the re-ranker '{self.reranker}' drops nothing by itself. Set reranker_above or reranker_margin too."
            raise OptionError(msg)
        if self.reranker is None and thresholds:
            msg = "reranker_above and reranker_margin need a re-ranker's scores. Give a re-ranker with --reranker DIR."
            raise OptionError(msg)
        if self.same_document is not None:
            document_pattern(self.same_document)


def document_pattern(text: str) -> re.Pattern[str] | None:
    """The pattern that finds a document's name in a passage's id; None if titles identify documents.

    Raises:
        OptionError: It is not a regular expression, or it matches an empty id.
    """
    if text == TITLE:
        return None
    try:
        pattern = re.compile(text)
    except re.error as error:
        msg = f"same_document is '{text}', which is neither '{TITLE}' nor a regular expression ({error})."
        raise OptionError(msg) from None
    if pattern.match(""):
        msg = (
            f"same_document is '{text}', which matches every id. Include the end of the document's name, as in '(.+)#'."
        )
        raise OptionError(msg)
    return pattern


def document_of(pattern: re.Pattern[str], passage_id: str) -> str | None:
    """The name of a passage's document: the first group of the pattern's match, or the whole match."""
    match = pattern.match(passage_id)
    return None if match is None else match[1 if pattern.groups else 0]


@dataclass(frozen=True, slots=True)
class Question:
    """A distinct query text, with the data of all examples of that text.

    Attributes:
        query: The smallest of its ids, the text, and the answers.
        ids: All ids that the examples use for it.
        positives: Ids of its known positives.
        copies: Ids of other passages with the same text as a positive.
    """

    query: Query
    ids: tuple[str, ...]
    positives: frozenset[str]
    copies: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Found:
    """The hits of a question, and the positives that they are compared to.

    Methods refer to a hit by its place in the ranking, counted from 0.

    Attributes:
        question: The question.
        ids: Ids of the retrieved passages, best first.
        scores: Their scores.
        holds: Whether each contains an answer; None = not checked.
        positives: Ids of the question's positives, or of the mined positive.
    """

    question: Question
    ids: Sequence[str]
    scores: Sequence[float]
    holds: Sequence[bool] | None = None
    positives: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, question: Question, hits: Sequence[tuple[str, float]], holds: Sequence[bool] | None = None) -> Found:
        """From the hits of a run."""
        ids = [passage_id for passage_id, _ in hits]
        return cls(question, ids, [score for _, score in hits], holds, question.positives)

    @property
    def positive_score(self) -> float:
        """The lowest score of the positives; one not retrieved counts with the last hit's score, an upper bound."""
        last = self.scores[-1] if self.scores else 0.0
        places = self.positive_places
        lowest = min((self.scores[place] for place in places), default=last)
        return lowest if len(places) == len(self.positives) else min(lowest, last)

    @cached_property
    def positive_places(self) -> list[int]:
        """The places of the positives among the hits."""
        if self.positives.isdisjoint(self.ids):
            return []
        return [place for place, passage_id in enumerate(self.ids) if passage_id in self.positives]


@dataclass(frozen=True)
class Mined:
    """The result for a question: negatives, best first, and the positive if it was mined as well."""

    negatives: tuple[str, ...]
    positive: str | None = None
    dropped: bool = False


def choose(places: Sequence[int], options: MiningOptions, query_id: str) -> Sequence[int]:
    """The first of the hits, or a random sample of them in rank order."""
    if options.sample == "top" or len(places) <= options.negatives:
        return places[: options.negatives]
    sampled = random.Random(f"mine {options.seed} {query_id}").sample(range(len(places)), options.negatives)
    return [places[number] for number in sorted(sampled)]
