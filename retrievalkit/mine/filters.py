"""The filters that hits pass through before they become negatives.

In order, they drop: known positives, copies of a positive's text, passages of its document, its near duplicates,
passages that contain the answer, the first ranks, scores too near the positive's, near duplicates of a better negative,
and last, because it is the most expensive, hits that a re-ranker considers relevant. Each filter sees only the hits
that the previous ones kept.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from retrievalkit.data.corpus import Passage
from retrievalkit.mine.options import Found, Mined, MiningOptions, choose, document_of, document_pattern
from retrievalkit.mine.shingles import likeness, repeats, shingles_of

if TYPE_CHECKING:
    from retrievalkit.mine.shingles import Shingles

Passages = Callable[[str], Passage]
Places = list[int]
PairScores = Callable[[Sequence[tuple[Found, str]]], Sequence[float | None]]
"""Scores of (question, passage id) pairs; None for a pair without a score."""


class Filter:
    """Drops hits of questions.

    Args:
        name: Its name in the audit.
    """

    def __init__(self, name: str) -> None:
        self.name = name

    def keep(self, part: Sequence[Found], left: Sequence[Places]) -> list[Places]:
        """For each question of a part, the places of the remaining hits to keep."""
        return [self.keep_of(found, places) for found, places in zip(part, left, strict=True)]

    def keep_of(self, found: Found, left: Places) -> Places:
        """The places of the hits to keep for a question."""
        raise NotImplementedError

    def reason(self, found: Found, place: int) -> str:  # noqa: ARG002 - for filters with a reason beyond their name
        """The reason why a hit of the last part was dropped; "" if the filter's name is enough."""
        return ""


class _UnwantedIds(Filter):
    """Drops passages with certain ids."""

    def __init__(self, name: str, ids: Callable[[Found], frozenset[str]]) -> None:
        super().__init__(name)
        self.ids = ids

    def keep_of(self, found: Found, left: Places) -> Places:
        unwanted, ids = self.ids(found), found.ids
        return left if unwanted.isdisjoint(ids) else [place for place in left if ids[place] not in unwanted]


class _Answer(Filter):
    def keep_of(self, found: Found, left: Places) -> Places:
        holds = found.holds
        return left if holds is None else [place for place in left if not holds[place]]


class _Rank(Filter):
    def __init__(self, name: str, skip: int) -> None:
        super().__init__(name)
        self.skip = skip

    def keep_of(self, found: Found, left: Places) -> Places:  # noqa: ARG002
        return [place for place in left if place >= self.skip]


class _Margin(Filter):
    """Drops hits above a limit that depends on the positive's score."""

    def __init__(self, name: str, limit: Callable[[float], float]) -> None:
        super().__init__(name)
        self.limit = limit

    def keep_of(self, found: Found, left: Places) -> Places:
        limit, scores = self.limit(found.positive_score), found.scores
        return [place for place in left if scores[place] <= limit]

    def reason(self, found: Found, place: int) -> str:
        return f"scores {found.scores[place]:.4g}, and the limit is {self.limit(found.positive_score):.4g}"


class _SameDocument(Filter):
    """Drops passages of a positive's document."""

    def __init__(self, name: str, way: str, passages: Passages) -> None:
        super().__init__(name)
        pattern = document_pattern(way)

        def title(identifier: str) -> str | None:
            return " ".join(passages(identifier).title.split()).casefold() or None

        self.document = lru_cache(1 << 16)(
            title if pattern is None else lambda identifier: document_of(pattern, identifier)
        )

    def keep_of(self, found: Found, left: Places) -> Places:
        documents = {self.document(positive) for positive in found.positives} - {None}
        if not documents:
            return left
        return [place for place in left if self.document(found.ids[place]) not in documents]

    def reason(self, found: Found, place: int) -> str:
        return f"document '{self.document(found.ids[place])}'"


class _NearDuplicate(Filter):
    """Base of the filters for near duplicates.

    Args:
        name: Its name in the audit.
        threshold: The least fraction of shared 5-grams of near duplicates.
        shingles: Passage id -> its shingles.
    """

    def __init__(self, name: str, threshold: float, shingles: Callable[[str], Shingles]) -> None:
        super().__init__(name)
        self.threshold = threshold
        self.shingles = shingles
        self._like: dict[tuple[str, int], tuple[str, float]] = {}

    def keep(self, part: Sequence[Found], left: Sequence[Places]) -> list[Places]:
        self._like = {}
        return super().keep(part, left)

    def reason(self, found: Found, place: int) -> str:
        other, share = self._like[found.question.query.id, place]
        return f"shares {share:.0%} of its 5-grams with '{other}'"

    def _drop(self, found: Found, place: int, other: str, share: float) -> None:
        self._like[found.question.query.id, place] = (other, share)


class _LikePositive(_NearDuplicate):
    def keep_of(self, found: Found, left: Places) -> Places:
        texts = [self.shingles(found.ids[place]) for place in left]
        best = [("", 0.0)] * len(left)
        for positive in sorted(found.positives):
            like = likeness(texts, self.shingles(positive), self.threshold)
            best = [(positive, new) if new > old[1] else old for new, old in zip(like, best, strict=True)]
        for place, (positive, share) in zip(left, best, strict=True):
            if share >= self.threshold:
                self._drop(found, place, positive, share)
        return [place for place, (_, share) in zip(left, best, strict=True) if share < self.threshold]


class _LikeBetter(_NearDuplicate):
    """Drops near duplicates of a better hit that is kept."""

    def keep_of(self, found: Found, left: Places) -> Places:
        same = repeats([self.shingles(found.ids[place]) for place in left], self.threshold)
        for place, original in zip(left, same, strict=True):
            if original is not None:
                self._drop(found, place, found.ids[left[original[0]]], original[1])
        return [place for place, original in zip(left, same, strict=True) if original is None]


class _Reranker(Filter):
    """Drops hits that a re-ranker scores too high, or too near the positive; a hit without a score is kept."""

    def __init__(self, name: str, options: MiningOptions, scores: PairScores) -> None:
        super().__init__(name)
        self.above, self.margin = options.reranker_above, options.reranker_margin
        self.scores = scores
        self._known: dict[tuple[str, str], float | None] = {}

    def keep(self, part: Sequence[Found], left: Sequence[Places]) -> list[Places]:
        pairs = []
        for found, places in zip(part, left, strict=True):
            if places:
                pairs += [(found, found.ids[place]) for place in places]
                pairs += [(found, positive) for positive in sorted(found.positives)] if self.margin is not None else []
        names = [(found.question.query.id, passage) for found, passage in pairs]
        self._known = dict(zip(names, self.scores(pairs), strict=True))
        return super().keep(part, left)

    def keep_of(self, found: Found, left: Places) -> Places:
        limit = self._limit(found)
        scored = ((place, self._score(found, found.ids[place])) for place in left)
        return [place for place, score in scored if score is None or limit is None or score <= limit]

    def _score(self, found: Found, passage: str) -> float | None:
        return self._known.get((found.question.query.id, passage))

    def _limit(self, found: Found) -> float | None:
        limits = [] if self.above is None else [self.above]
        if self.margin is not None:
            scores = [score for positive in found.positives if (score := self._score(found, positive)) is not None]
            limits += [min(scores) - self.margin] if scores else []
        return min(limits, default=None)

    def reason(self, found: Found, place: int) -> str:
        score, limit = self._score(found, found.ids[place]), self._limit(found)
        return f"the re-ranker gives it {score:.4g}, and the limit is {limit:.4g}"


def make_filters(
    options: MiningOptions, passages: Passages | None = None, scores: PairScores | None = None
) -> list[Filter]:
    """The filters that the options select, in order.

    Args:
        options: Which hits to drop.
        passages: Id -> passage, for the filters that need titles or texts.
        scores: The re-ranker, if the options name one.
    """
    filters: list[Filter] = []
    shingles = None if passages is None else shingles_of(passages)
    if options.drop_positives:
        filters.append(_UnwantedIds("known positive", lambda found: found.question.positives | found.positives))
        filters.append(_UnwantedIds("copy of a positive", lambda found: found.question.copies))
    if options.same_document is not None:
        assert passages is not None
        filters.append(_SameDocument("document of a positive", options.same_document, passages))
    if (threshold := options.near_duplicates) is not None:
        assert shingles is not None
        filters.append(_LikePositive("near duplicate of a positive", threshold, shingles))
    if options.needs_answers:
        filters.append(_Answer("holds the answer"))
    if options.skip_top:
        filters.append(_Rank("rank", options.skip_top))
    if (margin := options.margin_absolute) is not None:
        filters.append(_Margin("absolute margin", lambda score: score - margin))
    if (share := options.margin_relative) is not None:
        filters.append(_Margin("relative margin", lambda score: score - (1 - share) * abs(score)))
    if threshold is not None:
        assert shingles is not None
        filters.append(_LikeBetter("near duplicate of a better negative", threshold, shingles))
    if options.reranker is not None:
        assert scores is not None
        filters.append(_Reranker("re-ranker", options, scores))
    return filters


@dataclass(frozen=True)
class Filtered:
    """The hits of a question after filtering.

    Attributes:
        found: The hits, with the positive that they were compared to.
        dropped: For each filter, the places of the hits that it dropped.
        negatives: The places of the negatives.
        mined: The result to write.
    """

    found: Found
    dropped: Sequence[Places]
    negatives: Sequence[int]
    mined: Mined


def mine_part(part: Sequence[Found], options: MiningOptions, filters: Sequence[Filter]) -> list[Filtered]:
    """Filter the hits of the questions of a part, and choose negatives from the remaining ones.

    Args:
        part: The questions with their hits.
        options: How many negatives, and which positive.
        filters: Those of `make_filters`.
    """
    part = [_with_positive(found) if options.positives == "retrieved" else found for found in part]
    left: list[Places] = [list(range(len(found.ids))) for found in part]
    dropped: list[list[Places]] = [[] for _ in part]
    for step in filters:
        remaining = step.keep(part, left)
        for before, after, by_filter in zip(left, remaining, dropped, strict=True):
            by_filter.append([] if len(before) == len(after) else sorted(set(before).difference(after)))
        left = remaining
    outcomes = []
    for found, places, dropped_places in zip(part, left, dropped, strict=True):
        kept = choose(places, options, found.question.query.id)
        ids = tuple(found.ids[place] for place in kept)
        positive = next(iter(found.positives), None) if options.positives == "retrieved" else None
        lost = options.positives == "retrieved" and positive is None
        outcomes.append(Filtered(found, dropped_places, kept, Mined(ids, positive, dropped=lost)))
    return outcomes


def _with_positive(found: Found) -> Found:
    """The hits, with the best one that contains an answer as the positive."""
    holds = found.holds or ()
    return replace(found, positives=frozenset([document for document, held in zip(found.ids, holds) if held][:1]))  # noqa: B905
