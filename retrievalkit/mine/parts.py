"""The mining itself: questions are searched and filtered part by part, and each part is written down as it is done.

A mining that was killed goes on behind its last whole part. Parts always hold the same questions, and questions are
always searched in the same company, so that the outcome is that of a mining which was not killed.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from retrievalkit import artifacts
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.errors import InputError
from retrievalkit.evaluate.answers import answer_hits
from retrievalkit.mine.audit import Audit
from retrievalkit.mine.filters import Filter, Filtered, PairScores, make_filters, mine_part
from retrievalkit.mine.options import Found, Mined, MiningOptions, Question
from retrievalkit.mine.sources import Hits, Search

PART = 512
HITS_AT_ONCE = 1 << 21
_COMPANY = 1_024  # what `search` encodes at once
_PARTS_HELD = 8


@dataclass(frozen=True)
class Mining:
    """Negatives of questions.

    Attributes:
        questions: To mine for.
        corpus: The passages.
        options: Which hits become negatives.
        source: What the passages are found by, for complaints.
        scores: The re-ranker, where the options ask for one.
    """

    questions: Sequence[Question]
    corpus: Corpus
    options: MiningOptions
    source: str
    scores: PairScores | None = None

    def check(self) -> None:
        """Refuse options that these questions cannot have.

        Raises:
            InputError: Answers are looked for, and no question has any.
        """
        if self.options.needs_answers and not any(question.query.answers for question in self.questions):
            what = "drop_answers" if self.options.drop_answers else "positives 'retrieved'"
            msg = f"{what} looks for the answers of the questions, and the examples have none ('answers' is empty)."
            raise InputError(msg)

    def run(self, search: Search, folder: Path) -> MinedParts:
        """Mine all questions; parts that are in the folder already are not mined again."""
        folder.mkdir(parents=True, exist_ok=True)
        filters = make_filters(self.options, self.corpus.get, self.scores)
        mined = MinedParts(folder, self.questions, self._audit(filters))
        done = mined.complete()
        with self._bar(done * PART) as bar:
            for number, part in self._parts(search, done, bar):
                outcomes = mine_part(part, self.options, filters)
                audit = self._audit(filters)
                audit.count(outcomes, filters)
                mined.write(number, outcomes, audit)
                bar.advance(bar.task_ids[0], len(part))
        return mined

    def _audit(self, filters: Sequence[Filter]) -> Audit:
        return Audit([one.name for one in filters], questions=len(self.questions), seed=self.options.seed)

    def _parts(self, search: Search, done: int, bar: Progress) -> Iterator[tuple[int, list[Found]]]:
        """The parts after the first ones, with their numbers and hits; many are searched for at once."""
        at_once = searched_at_once(self.options.depth)
        for start in range(0, len(self.questions), at_once):
            some = self.questions[start : start + at_once]
            if start + len(some) <= done * PART:
                continue
            bar.update(bar.task_ids[0], description=f"searching for {len(some):,} questions")
            found = self._search(search, some)
            bar.update(bar.task_ids[0], description="mining")
            for offset in range(0, len(some), PART):
                number = (start + offset) // PART
                if number >= done:
                    yield number, found[offset : offset + PART]

    def _search(self, search: Search, some: Sequence[Question]) -> list[Found]:
        hits = list(search(some, self.options.depth))
        wanted = {one for ids, _ in hits for one in ids}
        if unknown := self.corpus.missing(wanted):
            raise self.corpus.unknown(min(unknown), file=self.source)
        holds = self._holding(hits, some, wanted)
        return [
            Found(one, ids, scores, holds.get(one.query.id), one.positives)
            for one, (ids, scores) in zip(some, hits, strict=True)
        ]

    def _holding(self, hits: Sequence[Hits], some: Sequence[Question], wanted: set[str]) -> dict[str, list[bool]]:
        answers = {one.query.id: one.query.answers for one in some if self.options.needs_answers and one.query.answers}
        if not answers:
            return {}
        run = {one.query.id: list(zip(*found, strict=True)) for one, found in zip(some, hits, strict=True)}
        # Of a large corpus, it is faster to fetch the passages that were found than to read it.
        few = 4 * len(wanted) < len(self.corpus)
        texts: Iterator[Passage] | Corpus = map(self.corpus.get, sorted(wanted)) if few else self.corpus
        return answer_hits(run, answers, texts, depth=self.options.depth)

    def _bar(self, done: int) -> Progress:
        columns = (TextColumn("[bold]{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        bar.add_task("mining", total=len(self.questions), completed=done)
        return bar


class MinedParts:
    """What was mined, in a folder of parts, of which few are in memory at a time.

    Args:
        folder: The folder.
        questions: All, in order.
        audit: Has counted nothing yet.
    """

    def __init__(self, folder: Path, questions: Sequence[Question], audit: Audit) -> None:
        self.folder = folder
        self.audit = audit
        self._places = {one.query.text: place for place, one in enumerate(questions)}
        self._held: OrderedDict[int, list[Mined]] = OrderedDict()

    def __getitem__(self, text: str) -> Mined:
        number, place = divmod(self._places[text], PART)
        if number not in self._held:
            self._held[number] = [_mined(row) for row in self._read(number)["mined"]]
            if len(self._held) > _PARTS_HELD:
                self._held.popitem(last=False)
        return self._held[number][place]

    def complete(self) -> int:
        """How many parts are there already, without a gap; they are counted in the audit."""
        number = 0
        while self._file(number).exists():
            self.audit.add(self._read(number)["audit"])
            number += 1
        return number

    def write(self, number: int, outcomes: Sequence[Filtered], audit: Audit) -> None:
        """Write a part down and count it."""
        mined = [(one.mined.negatives, one.mined.positive, one.mined.dropped) for one in outcomes]
        state = audit.as_dict()
        artifacts.write_json(self._file(number), {"mined": mined, "audit": state}, indent=None)
        self.audit.add(state)

    def _file(self, number: int) -> Path:
        return self.folder / f"{number:06}.json"

    def _read(self, number: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._file(number).read_text(encoding="utf-8"))
        return found


def searched_at_once(depth: int) -> int:
    """How many questions are searched for at once, so that memory does not grow with them."""
    least = max(PART, _COMPANY)
    return max(1, HITS_AT_ONCE // depth // least) * least


def _mined(row: Sequence[Any]) -> Mined:
    negatives, positive, dropped = row
    return Mined(tuple(negatives), positive, dropped=dropped)
