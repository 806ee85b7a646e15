"""Mining in parts: questions are searched and filtered part by part, and each finished part is written to a file.

A killed run resumes after its last complete part. Parts always contain the same questions, and questions are always
searched in the same batches, so an interruption does not change the result.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path

from retrievalkit import storage
from retrievalkit.contracts import Found, PairScores, Question
from retrievalkit.data.answers import answer_hits
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.same_text import normal_form
from retrievalkit.errors import InputError
from retrievalkit.mining.audit import Audit
from retrievalkit.mining.filters import Filtered, make_filters, mine_part
from retrievalkit.mining.options import Mined, MiningOptions
from retrievalkit.mining.sources import Hits, Search
from retrievalkit.reporting import notices
from retrievalkit.reporting.progress import ProgressBar
from retrievalkit.reporting.terminal import counted

PART = 512
HITS_AT_ONCE, PART_HITS = 1 << 21, 1 << 19
_SEARCH_BATCH = 1_024  # queries that `search` encodes at a time
_CACHED_PARTS = 4
_PART_BYTES = 1 << 30


@dataclass(frozen=True)
class Mining:
    """A mining run and its inputs."""

    questions: Sequence[Question]
    corpus: Corpus
    options: MiningOptions
    source: str
    scores: PairScores | None = None

    def applicable(self) -> Mining:
        """Return this mining run with the options that apply to its questions.

        If no question has answers, the search for answers is skipped with a note, so that a recipe serves collections
        with and without answers.
        """
        if not self.options.needs_answers or any(question.query.answers for question in self.questions):
            return self
        positives_note = ""
        if self.options.positives == "retrieved":
            if not all(question.positives for question in self.questions):
                msg = "positives 'retrieved' needs answers, but the examples have none. Add answers, or set 'keep'."
                raise InputError(msg)
            positives_note = "positives are taken from the examples, and "
        notices.note(
            f"No question has answers ('answers' is empty): {positives_note}no passage is dropped for containing one."
        )
        return replace(self, options=replace(self.options, positives="keep"))

    def run(self, search: Search, folder: Path) -> MinedParts:
        """Mine all questions, except those in parts that already exist in the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        filters = make_filters(self.options, self.corpus.get, self.scores)
        size = part_size(self.options.depth)
        mined = MinedParts(folder, self.questions, Audit.of([], filters, questions=0), size)
        done = mined.complete()
        with ProgressBar("mine", len(self.questions), unit="questions", done=done * size) as bar:
            for number, part in self._parts(search, done, bar):
                outcomes = mine_part(part, self.options, filters)
                audit = Audit.of(outcomes, filters, questions=len(self.questions), seed=self.options.seed)
                mined.write(number, outcomes, audit)
                bar.advance(len(part))
        return mined

    def _parts(self, search: Search, done: int, bar: ProgressBar) -> Iterator[tuple[int, list[Found]]]:
        """Yield the parts after the first `done`, with their numbers and hits; several parts are searched together."""
        at_once, size = searched_at_once(self.options.depth), part_size(self.options.depth)
        if done * size >= len(self.questions):
            return
        first = done * size // at_once * at_once
        # The search is lazy, so that only the hits of one round are in memory.
        hits = search(self.questions[first:], self.options.depth, at_once)
        for start in range(first, len(self.questions), at_once):
            batch = self.questions[start : start + at_once]
            bar.update(label=f"search for {counted(len(batch), 'questions')}")
            part_hits = self._with_answers(list(itertools.islice(hits, len(batch))), batch)
            bar.update(label="mine")
            for offset in range(0, len(batch), size):
                number = (start + offset) // size
                if number >= done:
                    yield number, part_hits[offset : offset + size]
        next(hits, None)  # the search reports its notes at the end

    def _with_answers(self, hits: Sequence[Hits], batch: Sequence[Question]) -> list[Found]:
        documents = {document for ids, _ in hits for document in ids}
        if unknown := self.corpus.missing(documents):
            raise self.corpus.unknown(min(unknown), file=self.source)
        queries = [question.query for question in batch]
        answers = {query.id: query.answers for query in queries if self.options.needs_answers and query.answers}
        holds: dict[str, list[bool]] = {}
        if answers:
            run = {query.id: list(zip(*ranking, strict=True)) for query, ranking in zip(queries, hits, strict=True)}
            # Fetching a few passages by id is faster than reading a large corpus.
            few = 4 * len(documents) < len(self.corpus)
            texts: Iterator[Passage] | Corpus = map(self.corpus.get, sorted(documents)) if few else self.corpus
            holds = answer_hits(run, answers, texts, depth=self.options.depth)
        return [
            Found(question, ids, scores, holds.get(question.query.id), question.positives)
            for question, (ids, scores) in zip(batch, hits, strict=True)
        ]


class MinedParts:
    """Mined negatives in a folder of parts of `size` questions; only a few parts are in memory at a time.

    The audits of the parts are added to `audit`.
    """

    def __init__(self, folder: Path, questions: Sequence[Question], audit: Audit, size: int = PART) -> None:
        self.folder = folder
        self.size = size
        self.audit = audit
        self._places = {normal_form(question.query.text): place for place, question in enumerate(questions)}
        self._part = lru_cache(_CACHED_PARTS)(self._read)

    def __getitem__(self, question: str) -> Mined:
        """Return the result of a question by its normal form."""
        number, place = divmod(self._places[question], self.size)
        return self._part(number).mined[place]

    def complete(self) -> int:
        """Count the consecutive parts that are already written, and add them to the audit."""
        number = 0
        while self._file(number).exists():
            self.audit.add(self._read(number).audit)
            number += 1
        return number

    def write(self, number: int, outcomes: Sequence[Filtered], audit: Audit) -> None:
        """Write a part and add it to the audit."""
        part = _Part([outcome.mined for outcome in outcomes], audit)
        storage.write_json(self._file(number), asdict(part), indent=None)
        self.audit.add(audit)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06}.json"

    def _read(self, number: int) -> _Part:
        do = "Remove the folder, and mine again."
        return storage.read_document(self._file(number), _Part, do=do, most=_PART_BYTES)


@dataclass(frozen=True)
class _Part:
    """Schema of a part's file."""

    mined: list[Mined]
    audit: Audit


def part_size(depth: int) -> int:
    """Return the number of questions per part: fewer if each has many hits."""
    return _halved(PART, depth, PART_HITS)


def searched_at_once(depth: int) -> int:
    """Return the number of questions to search together: a multiple of the part size, bounded by the hits in memory."""
    unit = max(PART, _SEARCH_BATCH)
    return HITS_AT_ONCE // depth // unit * unit or max(part_size(depth), _halved(unit, depth, HITS_AT_ONCE))


def _halved(questions: int, depth: int, most: int) -> int:
    """Halve a number of questions until they have at most `most` hits; at least 1 remains."""
    while questions > 1 and questions * depth > most:
        questions //= 2
    return questions
