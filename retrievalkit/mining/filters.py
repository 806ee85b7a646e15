"""Filters that hits must pass to become negatives.

In order, they drop: known positives, copies of a positive's text, passages of its document, its near duplicates,
passages that contain the answer, the first ranks, scores too close to the positive's, hits that plugins' filters drop,
near duplicates of a better negative, and last, as re-ranking is the most expensive, hits that a re-ranker considers
relevant. Each filter sees only the hits that the previous filters kept.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, Any

from retrievalkit import registry
from retrievalkit.contracts import Filter, FilterInputs, Found, PairScores, Places
from retrievalkit.data.corpus import Passage
from retrievalkit.data.json_text import shown
from retrievalkit.data.same_text import normal_form
from retrievalkit.errors import OptionError
from retrievalkit.mining.options import RECORDED, Mined, MiningOptions, document_pattern
from retrievalkit.mining.shingles import likeness, repeats, shingles_of
from retrievalkit.registry.component_options import read_call

if TYPE_CHECKING:
    from retrievalkit.mining.shingles import Shingles

Passages = Callable[[str], Passage]


class _Inputs(FilterInputs):
    """The inputs of the filters of a mining run; two filters share the shingles."""

    @cached_property
    def shingles(self) -> Callable[[str], Shingles]:
        """Passage id -> its shingles."""
        return shingles_of(self.passages)


class KnownPositive(Filter):
    """Drops the question's known positives, from all examples with its text."""

    name = "known positive"

    def keep_of(self, found: Found, left: Places) -> Places:
        return _without(found.question.positives | found.positives, found, left)


class PositiveCopy(Filter):
    """Drops passages with the same text as a positive."""

    name = "copy of a positive"

    def keep_of(self, found: Found, left: Places) -> Places:
        return _without(found.question.copies, found, left)


def _without(unwanted: frozenset[str], hits: Found, left: Places) -> Places:
    ids = hits.ids
    return left if unwanted.isdisjoint(ids) else [place for place in left if ids[place] not in unwanted]


class Answer(Filter):
    """Drops passages that contain an answer."""

    name = "holds the answer"
    needs_answers = True

    def keep_of(self, found: Found, left: Places) -> Places:
        holds = found.holds
        return left if holds is None else [place for place in left if not holds[place]]


class Rank(Filter):
    """Drops the first ranks.

    Args:
        skip: Ranks to drop.
    """

    name = "rank"

    def __init__(self, inputs: FilterInputs, *, skip: int) -> None:
        super().__init__(inputs)
        self.skip = skip

    def keep_of(self, found: Found, left: Places) -> Places:  # noqa: ARG002
        return [place for place in left if place >= self.skip]


class _Margin(Filter):
    """Drops hits above a limit that depends on the positive's score."""

    def limit(self, score: float) -> float:
        raise NotImplementedError

    def keep_of(self, found: Found, left: Places) -> Places:
        limit, scores = self.limit(found.positive_score), found.scores
        return [place for place in left if scores[place] <= limit]

    def reason(self, found: Found, place: int) -> str:
        return f"scores {found.scores[place]:.4g}, and the limit is {self.limit(found.positive_score):.4g}"


class AbsoluteMargin(_Margin):
    """Drops hits that score less than a margin below the positive.

    Args:
        margin: Minimum score difference to the positive for a hit to be kept.
    """

    name = "absolute margin"

    def __init__(self, inputs: FilterInputs, *, margin: float) -> None:
        super().__init__(inputs)
        self.margin = margin

    def limit(self, score: float) -> float:
        return score - self.margin


class RelativeMargin(_Margin):
    """Drops hits that score more than a fraction of the positive's score.

    Args:
        share: The fraction, such as 0.95.
    """

    name = "relative margin"

    def __init__(self, inputs: FilterInputs, *, share: float) -> None:
        super().__init__(inputs)
        self.share = share

    def limit(self, score: float) -> float:
        return score - (1 - self.share) * abs(score)


class SameDocument(Filter):
    """Drops passages of a positive's document.

    Args:
        way: "recorded", "title", or a regular expression that matches a document's name in an id; see `MiningOptions`.
    """

    name = "document of a positive"

    def __init__(self, inputs: FilterInputs, *, way: str) -> None:
        super().__init__(inputs)
        pattern = document_pattern(way)

        def document(identifier: str) -> str | None:
            if way == RECORDED:
                cut = inputs.passages(identifier).cut
                return None if cut is None else cut.document
            if pattern is None:
                return normal_form(inputs.passages(identifier).title) or None
            match = pattern.match(identifier)
            return None if match is None else match[1 if pattern.groups else 0]

        self.document = lru_cache(1 << 16)(document)

    def keep_of(self, found: Found, left: Places) -> Places:
        documents = {self.document(positive) for positive in found.positives} - {None}
        if not documents:
            return left
        return [place for place in left if self.document(found.ids[place]) not in documents]

    def reason(self, found: Found, place: int) -> str:
        return f"document '{self.document(found.ids[place])}'"


class _NearDuplicate(Filter):
    """Base class of the near-duplicate filters.

    Args:
        threshold: Minimum Jaccard coefficient of word 5-grams.
    """

    def __init__(self, inputs: FilterInputs, *, threshold: float) -> None:
        super().__init__(inputs)
        self.threshold = threshold
        self.shingles = inputs.shingles if isinstance(inputs, _Inputs) else shingles_of(inputs.passages)
        self._like: dict[tuple[str, int], tuple[str, float]] = {}

    def keep(self, part: Sequence[Found], left: Sequence[Places]) -> list[Places]:
        self._like = {}
        return super().keep(part, left)

    def reason(self, found: Found, place: int) -> str:
        other, share = self._like[found.question.query.id, place]
        return f"shares {share:.0%} of its 5-grams with '{other}'"

    def _drop(self, hits: Found, place: int, other: str, share: float) -> None:
        self._like[hits.question.query.id, place] = (other, share)


class LikePositive(_NearDuplicate):
    """Drops near duplicates of a positive."""

    name = "near duplicate of a positive"

    def keep_of(self, found: Found, left: Places) -> Places:
        texts = [self.shingles(found.ids[place]) for place in left]
        best = [("", 0.0)] * len(left)
        for positive in sorted(found.positives):
            like = likeness(texts, self.shingles(positive))
            best = [(positive, new) if new > old[1] else old for new, old in zip(like, best, strict=True)]
        for place, (positive, share) in zip(left, best, strict=True):
            if share >= self.threshold:
                self._drop(found, place, positive, share)
        return [place for place, (_, share) in zip(left, best, strict=True) if share < self.threshold]


class LikeBetter(_NearDuplicate):
    """Drops near duplicates of a higher-ranked hit that is kept."""

    name = "near duplicate of a better negative"

    def keep_of(self, found: Found, left: Places) -> Places:
        same = repeats([self.shingles(found.ids[place]) for place in left], self.threshold)
        for place, original in zip(left, same, strict=True):
            if original is not None:
                self._drop(found, place, found.ids[left[original[0]]], original[1])
        return [place for place, original in zip(left, same, strict=True) if original is None]


class Reranked(Filter):
    """Drops hits that a re-ranker scores too high, or too close to the positive; hits without a score are kept.

    Args:
        above: Drop hits that the re-ranker scores above this.
        margin: Keep hits that the re-ranker scores at least this much below the positive.
    """

    name = "re-ranker"

    def __init__(self, inputs: FilterInputs, *, above: float | None = None, margin: float | None = None) -> None:
        super().__init__(inputs)
        if inputs.scores is None:
            msg = "the filter 'reranked' needs a re-ranker's scores. Give a re-ranker with --reranker DIR."
            raise OptionError(msg)
        self.above, self.margin, self.scores = above, margin, inputs.scores
        self._known: dict[tuple[str, str], float | None] = {}

    def keep(self, part: Sequence[Found], left: Sequence[Places]) -> list[Places]:
        pairs = []
        for hits, places in zip(part, left, strict=True):
            if places:
                pairs += [(hits, hits.ids[place]) for place in places]
                pairs += [(hits, positive) for positive in sorted(hits.positives)] if self.margin is not None else []
        names = [(hits.question.query.id, passage) for hits, passage in pairs]
        self._known = dict(zip(names, self.scores(pairs), strict=True))
        return super().keep(part, left)

    def keep_of(self, found: Found, left: Places) -> Places:
        limit = self._limit(found)
        scored = ((place, self._score(found, found.ids[place])) for place in left)
        return [place for place, score in scored if score is None or limit is None or score <= limit]

    def _score(self, hits: Found, passage: str) -> float | None:
        return self._known.get((hits.question.query.id, passage))

    def _limit(self, hits: Found) -> float | None:
        limits = [] if self.above is None else [self.above]
        if self.margin is not None:
            scores = [score for positive in hits.positives if (score := self._score(hits, positive)) is not None]
            limits += [min(scores) - self.margin] if scores else []
        return min(limits, default=None)

    def reason(self, found: Found, place: int) -> str:
        score, limit = self._score(found, found.ids[place]), self._limit(found)
        return f"the re-ranker gives it {score:.4g}, and the limit is {limit:.4g}"


def make_filters(options: MiningOptions, passages: Passages, scores: PairScores | None = None) -> list[Filter]:
    """Create the filters that the options select, in order."""
    inputs = _Inputs(passages, scores)
    filters: list[Filter] = []
    for name, arguments in _selected(options):
        step: Filter = registry.create("filter", name, inputs, **arguments)
        step.name = step.name or name
        if any(other.name == step.name for other in filters):
            msg = f"the filter '{step.name}' is listed twice. List it once."
            raise OptionError(msg)
        filters.append(step)
    return filters


def _selected(options: MiningOptions) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names and options of the filters, in order."""
    if options.drop_positives:
        yield "known_positive", {}
        yield "positive_copy", {}
    if options.same_document is not None:
        yield "same_document", {"way": options.same_document}
    if options.near_duplicates is not None:
        yield "like_positive", {"threshold": options.near_duplicates}
    if options.drop_answers or options.positives == "retrieved":
        yield "answer", {}
    if options.skip_top:
        yield "rank", {"skip": options.skip_top}
    if options.margin_absolute is not None:
        yield "absolute_margin", {"margin": options.margin_absolute}
    if options.margin_relative is not None:
        yield "relative_margin", {"share": options.margin_relative}
    for text in options.filters:
        name, arguments, _ = read_call(text)
        yield name, arguments
    if options.near_duplicates is not None:
        yield "like_better", {"threshold": options.near_duplicates}
    if options.reranker is not None:
        yield "reranked", {"above": options.reranker_above, "margin": options.reranker_margin}


@dataclass(frozen=True)
class Filtered:
    """The hits of a question after filtering.

    Attributes:
        hits: The hits, with the positive that they were compared with.
        dropped: For each filter, the positions of the hits that it dropped.
        negatives: The positions of the negatives.
        mined: The result to write.
    """

    hits: Found
    dropped: Sequence[Places]
    negatives: Sequence[int]
    mined: Mined


def _check_places(step: Filter, remaining: object, left: Sequence[Places]) -> None:
    """Refuse a filter's result unless it is a subsequence of the places left for each question."""
    if not isinstance(remaining, Sequence) or isinstance(remaining, str) or len(remaining) != len(left):
        problem = f"keep() returns {shown(remaining)} for {len(left)} questions, and should return places for each"
        raise registry.wrong_result("filter", step, problem)
    for kept, places in zip(remaining, left, strict=True):
        rest = iter(places)
        if not isinstance(kept, Sequence) or isinstance(kept, str) or not all(place in rest for place in kept):
            problem = f"it keeps {shown(kept)} of the places {shown(places)}, and should keep some, ascending"
            raise registry.wrong_result("filter", step, problem)


def mine_part(part: Sequence[Found], options: MiningOptions, filters: Sequence[Filter]) -> list[Filtered]:
    """Filter the hits of a part's questions, and choose negatives from the remaining hits."""
    if options.positives == "retrieved":
        # The best hit that contains an answer is the positive.
        holding = [
            [document for document, holds_answer in zip(hits.ids, hits.holds or (), strict=False) if holds_answer]
            for hits in part
        ]
        part = [replace(hits, positives=frozenset(ids[:1])) for hits, ids in zip(part, holding, strict=True)]
    survivors: list[Places] = [list(range(len(hits.ids))) for hits in part]
    dropped: list[list[Places]] = [[] for _ in part]
    for step in filters:
        remaining = step.keep(part, survivors)
        _check_places(step, remaining, survivors)
        for before, after, by_filter in zip(survivors, remaining, dropped, strict=True):
            by_filter.append([] if len(before) == len(after) else sorted(set(before).difference(after)))
        survivors = remaining
    outcomes = []
    for hits, places, dropped_places in zip(part, survivors, dropped, strict=True):
        negatives = places[: options.negatives]
        if options.sample == "random" and len(negatives) < len(places):
            draw = random.Random(f"mine {options.seed} {hits.question.query.id}")
            negatives = sorted(draw.sample(places, options.negatives))
        ids = tuple(hits.ids[place] for place in negatives)
        positive = next(iter(hits.positives), None) if options.positives == "retrieved" else None
        dropped_question = options.positives == "retrieved" and positive is None
        outcomes.append(Filtered(hits, dropped_places, negatives, Mined(ids, positive, dropped=dropped_question)))
    return outcomes
