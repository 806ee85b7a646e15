"""The contract of filters of mined negatives, and their input: questions with their hits."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from retrievalkit.data.corpus import Passage
    from retrievalkit.data.queries import Query

Places = list[int]
"""Hits of a question as places in its ranking (from 0), ascending."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question, with the data of all examples that have the same text (`data.same_text`).

    Attributes:
        query: The smallest id with its text, and the answers.
        ids: All ids of the query in the examples.
        positives: Ids of the known positives.
        copies: Ids of other passages with the same text as a positive.
    """

    query: Query
    ids: tuple[str, ...]
    positives: frozenset[str]
    copies: frozenset[str] = frozenset()


@dataclass(frozen=True)
class Found:
    """The hits of a question, and the positives to compare them with.

    Methods refer to a hit by its place in the ranking, counted from 0.

    Attributes:
        question: The question.
        ids: Ids of the retrieved passages, best first.
        scores: Scores of the passages.
        holds: For each passage, True if it contains an answer; None = unchecked.
        positives: Ids of the question's positives, or of the mined positive.
    """

    question: Question
    ids: Sequence[str]
    scores: Sequence[float]
    holds: Sequence[bool] | None = None
    positives: frozenset[str] = field(default_factory=frozenset)

    @classmethod
    def of(cls, question: Question, hits: Sequence[tuple[str, float]], holds: Sequence[bool] | None = None) -> Found:
        """Create the hits of a question from a run."""
        ids = [passage_id for passage_id, _ in hits]
        return cls(question, ids, [score for _, score in hits], holds, question.positives)

    @property
    def positive_score(self) -> float:
        """The lowest score of the positives; a missing positive gets the last hit's score, an upper bound."""
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


PairScores = Callable[[Sequence[tuple[Found, str]]], Sequence[float | None]]
"""Scores of (question, passage id) pairs; None for a pair without a score."""


@dataclass(frozen=True)
class FilterInputs:
    """Inputs of a filter in addition to the hits.

    Attributes:
        passages: Id -> passage, with `title` and `text`.
        scores: The re-ranker of `--reranker`, or None.
    """

    passages: Callable[[str], Passage]
    scores: PairScores | None = None


class Filter:
    """Base class of filters, which drop hits of questions; the remaining hits become negatives.

    A filter sees only the hits kept by earlier filters. Its result may depend only on the question, its hits and the
    passages: a killed mining run resumes with other questions.

    Args:
        inputs: The passages, and the scores of a re-ranker. Options are additional keyword-only arguments.

    Attributes:
        name: Name in the audit; "" = the registered name.
        needs_answers: True if it needs `Found.holds`: which hits contain an answer to the question.
    """

    name: str = ""
    needs_answers: ClassVar[bool] = False

    def __init__(self, inputs: FilterInputs) -> None:
        self.inputs = inputs

    def keep(self, part: Sequence[Found], left: Sequence[Places]) -> list[Places]:
        """Return the places of the remaining hits to keep for each question of a part, ascending.

        Override it if computing many questions at a time is faster.

        Args:
            part: The questions with all their hits.
            left: The places of each question's remaining hits.
        """
        return [self.keep_of(found, places) for found, places in zip(part, left, strict=True)]

    def keep_of(self, found: Found, left: Places) -> Places:
        """Return the places of the remaining hits to keep for a question."""
        raise NotImplementedError

    def reason(self, found: Found, place: int) -> str:  # noqa: ARG002 - for filters with a reason beyond their name
        """Return why a hit of the last part was dropped, for the audit; "" if the filter's name is enough."""
        return ""
