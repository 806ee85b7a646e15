"""Which hits of a question become its hard negatives: filters in a row, then a choice.

The filters, in their order: known positives, copies of a positive's text, passages that hold the answer, the first
ranks, scores too near the positive's.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, get_args

from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.examples import Example
from retrievalkit.data.queries import Query
from retrievalkit.errors import OptionError

Sample = Literal["top", "random"]
Positives = Literal["keep", "retrieved"]
Merge = Literal["concatenate", "pool"]


@dataclass(frozen=True, kw_only=True)
class MiningOptions:
    """Which of the hits become negatives, and how they are joined to another set.

    Args:
        depth: How many hits of each question are looked at, positives included.
        negatives: How many are kept.
        skip_top: Drop the hits with the first so many ranks, which may be unlabelled positives.
        drop_answers: Drop passages that hold the question's answer (DPR's rule, see `data.answers`).
        drop_positives: Drop the question's known positives, of all examples with its text, and copies of their text.
        margin_absolute: Keep hits that score at least so much less than the positive.
        margin_relative: Keep hits that score at most so large a share of the positive's score, such as 0.95 (below a
            score of 0: less by the same share of its size). With several positives the lowest score counts, and one
            that was not among the hits counts with the last hit's score.
        sample: Keep the "top" of what the filters leave, or a "random" choice of it, in rank order.
        seed: Of the choice, which depends on nothing else but the question's id.
        positives: "keep" those of the examples; or, as MLR's released code has it, "retrieved": the best hit that
            holds an answer is the positive, only hits without an answer are negatives, and a question without such a
            hit is dropped.
        keep: Of each set that is merged, the first so many negatives; None = all.
        merge: "concatenate": the other set's examples, then the mined ones, as separate examples; "pool": one example
            a question, with the negatives of both.
    """

    depth: int = 200
    negatives: int = 100
    skip_top: int = 0
    drop_answers: bool = False
    drop_positives: bool = True
    margin_absolute: float | None = None
    margin_relative: float | None = None
    sample: Sample = "top"
    seed: int = 42
    positives: Positives = "keep"
    keep: int | None = None
    merge: Merge = "concatenate"

    @property
    def needs_answers(self) -> bool:
        """Whether hits are searched for the answers."""
        return self.drop_answers or self.positives == "retrieved"

    def check(self, *, merging: bool) -> None:
        """Refuse values that make no sense.

        Args:
            merging: Whether there is another set.

        Raises:
            OptionError: Names the option.
        """
        least = {"depth": 1, "negatives": 1, "skip_top": 0} | ({"keep": 1} if self.keep is not None else {})
        for name, low in least.items():
            if getattr(self, name) < low:
                msg = f"{name} is {getattr(self, name)}, and must be at least {low}."
                raise OptionError(msg)
        for name, choices in {"sample": Sample, "positives": Positives, "merge": Merge}.items():
            if getattr(self, name) not in get_args(choices):
                msg = f"{name} is '{getattr(self, name)}', and must be one of {', '.join(get_args(choices))}."
                raise OptionError(msg)
        if self.skip_top >= self.depth:
            msg = f"skip_top {self.skip_top} leaves nothing of depth {self.depth}. Raise --depth, or skip less."
            raise OptionError(msg)
        if self.margin_relative is not None and not 0 < self.margin_relative <= 1:
            msg = f"margin_relative is {self.margin_relative}, and must be above 0 and at most 1, such as 0.95."
            raise OptionError(msg)
        if not merging and (self.keep is not None or self.merge != "concatenate"):
            msg = "keep and merge say how sets are merged, and there is no other set. Give it with --merge-with."
            raise OptionError(msg)


@dataclass(frozen=True)
class Question:
    """A distinct query text, with what all examples of that text know.

    Attributes:
        query: Its first id, the text, and the answers.
        ids: All ids that examples have for it.
        positives: Ids of its known positives.
        copies: Ids of other passages with the text of one of them.
    """

    query: Query
    ids: tuple[str, ...]
    positives: frozenset[str]
    copies: frozenset[str] = frozenset()


class Hit(NamedTuple):
    """A passage that was found: its score, its rank from 1, and whether it holds an answer (None = not looked at)."""

    document_id: str
    score: float
    rank: int
    holds_answer: bool | None = None


@dataclass(frozen=True)
class Found:
    """The hits of a question, best first, and the positives that their scores are compared with."""

    question: Question
    hits: Sequence[Hit]
    positives: frozenset[str]

    @classmethod
    def of(cls, question: Question, hits: Sequence[tuple[str, float]], holds: Sequence[bool] | None = None) -> Found:
        """A question with its hits of a run, where it may be known which of them hold an answer."""
        flags = [None] * len(hits) if holds is None else holds
        rows = zip(hits, flags, strict=True)
        found = [Hit(one, score, rank, flag) for rank, ((one, score), flag) in enumerate(rows, 1)]
        return cls(question, found, question.positives)

    @property
    def positive_score(self) -> float:
        """The lowest score of the positives; one that was not found scores at most as the last hit, which counts."""
        scores = {hit.document_id: hit.score for hit in self.hits}
        last = self.hits[-1].score if self.hits else 0.0
        return min((scores.get(one, last) for one in self.positives), default=last)


@dataclass(frozen=True)
class Mined:
    """What mining gives a question: negatives, best first, and the positive if that was mined too."""

    negatives: tuple[str, ...]
    positive: str | None = None
    dropped: bool = False


@dataclass(frozen=True)
class Filter:
    """Drops hits: made ready for the hits of a question, it says of each whether it is dropped."""

    name: str
    drops: Callable[[Found], Callable[[Hit], bool]]


def make_filters(options: MiningOptions) -> list[Filter]:
    """The filters that the options ask for, in their order."""
    filters: list[Filter] = []
    if options.drop_positives:
        filters += [Filter("known positive", _known_positive), Filter("copy of a positive", _copy)]
    if options.needs_answers:
        filters.append(Filter("holds the answer", lambda _: lambda hit: bool(hit.holds_answer)))
    if options.skip_top:
        filters.append(Filter("rank", lambda _: lambda hit: hit.rank <= options.skip_top))
    if (margin := options.margin_absolute) is not None:
        filters.append(Filter("absolute margin", _above(lambda score: score - margin)))
    if (share := options.margin_relative) is not None:
        filters.append(Filter("relative margin", _above(lambda score: score - (1 - share) * abs(score))))
    return filters


def _known_positive(found: Found) -> Callable[[Hit], bool]:
    known = found.question.positives | found.positives
    return lambda hit: hit.document_id in known


def _copy(found: Found) -> Callable[[Hit], bool]:
    return lambda hit: hit.document_id in found.question.copies


def _above(highest: Callable[[float], float]) -> Callable[[Found], Callable[[Hit], bool]]:
    def drops(found: Found) -> Callable[[Hit], bool]:
        limit = highest(found.positive_score)
        return lambda hit: hit.score > limit

    return drops


def mine_question(
    found: Found,
    options: MiningOptions,
    filters: Sequence[Filter],
    dropped: Callable[[str, Found, Sequence[Hit]], object] = lambda *_: None,
) -> Mined:
    """Put a question's hits through the filters and choose its negatives.

    Args:
        found: The hits.
        options: How many negatives, and which positive.
        filters: As `make_filters` gave them.
        dropped: Told of each filter's name, the question, and what the filter dropped.
    """
    positive = None
    if options.positives == "retrieved":
        positive = next((hit.document_id for hit in found.hits if hit.holds_answer), None)
        found = replace(found, positives=frozenset(one for one in [positive] if one is not None))
    left: Sequence[Hit] = found.hits
    for one in filters:
        drops = one.drops(found)
        kept: list[Hit] = []
        gone: list[Hit] = []
        for hit in left:
            (gone if drops(hit) else kept).append(hit)
        dropped(one.name, found, gone)
        left = kept
    negatives = tuple(hit.document_id for hit in choose(left, options, found.question.query.id))
    return Mined(negatives, positive, dropped=options.positives == "retrieved" and positive is None)


def choose(hits: Sequence[Hit], options: MiningOptions, query_id: str) -> Sequence[Hit]:
    """The first of the hits, or a random choice of them in rank order."""
    if options.sample == "top" or len(hits) <= options.negatives:
        return hits[: options.negatives]
    places = random.Random(f"mine {options.seed} {query_id}").sample(range(len(hits)), options.negatives)
    return [hits[place] for place in sorted(places)]


def group_questions(rows: Sequence[Example], corpus: Corpus | None = None) -> list[Question]:
    """The distinct questions of examples; with a corpus, copies of their positives are looked for in it."""
    grouped: dict[str, list[Example]] = {}
    for row in rows:
        grouped.setdefault(row.query, []).append(row)
    copies = find_copies({one for row in rows for one in row.positives}, corpus) if corpus is not None else {}
    return [_question(examples, copies) for examples in grouped.values()]


def _question(examples: Sequence[Example], copies: Mapping[str, frozenset[str]]) -> Question:
    positives = frozenset(one for example in examples for one in example.positives)
    answers = tuple(dict.fromkeys(answer for example in examples for answer in example.answers))
    return Question(
        query=Query(examples[0].query_id, examples[0].query, answers),
        ids=tuple(dict.fromkeys(example.query_id for example in examples)),
        positives=positives,
        copies=frozenset(copy for one in positives for copy in copies.get(one, ())) - positives,
    )


def find_copies(document_ids: set[str], corpus: Corpus) -> dict[str, frozenset[str]]:
    """Document id -> all ids with its text. Reads the corpus twice, so as to hold only the few that are wanted."""
    digests = {passage.id: text_digest(passage) for passage in corpus if passage.id in document_ids}
    alike: dict[bytes, set[str]] = {digest: set() for digest in digests.values()}
    for passage in corpus:
        if (digest := text_digest(passage)) in alike:
            alike[digest].add(passage.id)
    return {one: frozenset(alike[digest]) for one, digest in digests.items()}


def text_digest(passage: Passage) -> bytes:
    """A digest of a passage's text, whatever its white space; of its title where it has no text."""
    text = " ".join(passage.text.split()) or f"\n{passage.title}"
    return hashlib.blake2b(text.encode(), digest_size=16).digest()
