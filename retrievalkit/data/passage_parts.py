"""Passages cut into parts, each a passage of its own: sentences, a number of equal parts, or windows of some words.

    rkit convert FOLDER corpus.jsonl --passages 100 --stride 50             documents in passages that overlap by half

MVR's Table 5 compares several vectors of a document with those of its sentences and of its 4 or 8 equal parts:

    rkit convert data parts --parts sentences                               passages and judgements
    rkit convert train.jsonl parts.jsonl --parts sentences --corpus data    examples
    rkit convert parts.trec passages.trec --merge-parts                     a run: a passage scores as its best part

The parts of passage ID are ID#1, ID#2 ... with its title. A part is a positive of a query if its passage was, and it
contains an answer; if no part does, or no answer is known, all are. All parts of a negative are negatives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Literal

from retrievalkit.data.answers import AnswerMatcher
from retrievalkit.data.columns import Columns
from retrievalkit.data.conversion import AS_IT_IS, Contents
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.examples import Examples, against_corpus, check_examples, read_examples
from retrievalkit.data.kinds import Kind
from retrievalkit.data.qrels import Qrels, read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.data.runs import Hits, open_run
from retrievalkit.data.sources import Part, open_source
from retrievalkit.data.spans import sentence_ends
from retrievalkit.errors import DataError, OptionError
from retrievalkit.reporting import notices

_WORD = re.compile(r"\S+")
PART = re.compile(r"(.+)#([1-9][0-9]*)", re.DOTALL)
"""The id of a part: that of its passage, and its number."""

_HELD = 1 << 16  # passages whose parts are kept in memory

PartsOf = Callable[[str], Sequence[Passage]]
"""The id of a passage -> its parts."""


def sentences(text: str) -> list[str]:
    """The sentences of an English text."""
    return [text[start:end] for start, end in _sentence_spans(text)]


def _sentence_spans(text: str) -> list[tuple[int, int]]:
    """Where each sentence begins and ends, in characters, without the blanks around it."""
    ends = sentence_ends(text)
    spans = []
    for start, end in zip([0, *ends], ends, strict=False):
        if sentence := text[start:end].strip():
            first = text.index(sentence, start)
            spans.append((first, first + len(sentence)))
    return spans


def equal_parts(text: str, count: int) -> list[str]:
    """A text in parts whose numbers of words differ by one at most; fewer parts than `count` if it has fewer words."""
    words = [match.span() for match in _WORD.finditer(text)]
    count = min(count, len(words))
    firsts = [number * len(words) // count for number in range(count + 1)] if count else []
    return [text[words[a][0] : words[b - 1][1]] for a, b in pairwise(firsts)]


@dataclass(frozen=True)
class Windows:
    """Passages of a number of words or sentences, each of which begins some after the one before.

    The last ends with the text, and may be shorter.

    Attributes:
        size: How many words or sentences a passage has.
        stride: How many after the one before it begins; None = `size`, so that they do not overlap.
        by: What is counted.
    """

    size: int
    stride: int | None = None
    by: Literal["words", "sentences"] = "words"

    def __post_init__(self) -> None:
        if self.stride is not None and not 1 <= self.stride <= self.size:
            msg = f"stride is {self.stride}, and should be 1 to {self.size} (passages), so that no word is lost."
            raise OptionError(msg)

    def cut(self, text: str) -> list[str]:
        """The passages of a text; none if it is blank."""
        spans = _sentence_spans(text) if self.by == "sentences" else [one.span() for one in _WORD.finditer(text)]
        step = self.stride or self.size
        # The last begins where the one before it has not reached the end of the text.
        firsts = range(0, max(len(spans) - self.size + step, min(len(spans), 1)), step)
        return [text[spans[a][0] : spans[min(a + self.size, len(spans)) - 1][1]] for a in firsts]


class Parts(Contents):
    """Passages cut into parts; judgements and examples name the parts.

    Args:
        parts: "sentences", the number of equal parts, from 2 on, or windows.
        columns: The fields of a passage that the user named.
    """

    def __init__(self, parts: str | Windows, columns: Columns | None = None) -> None:
        super().__init__(columns)
        self._option = "parts"
        if isinstance(parts, Windows):
            self._option = "passages"
            self.options = {"passages": parts.size, "stride": parts.stride or parts.size, "by": parts.by}
            self._cut: Callable[[str], list[str]] = parts.cut
            return
        if parts != "sentences" and not (parts.isascii() and parts.isdigit() and 2 <= int(parts) <= 1000):
            msg = f"parts is '{parts}', and should be 'sentences' or the number of equal parts, from 2 on."
            raise OptionError(msg)
        self.options = {"parts": parts}
        self._cut = sentences if parts == "sentences" else lambda text: equal_parts(text, int(parts))

    def check(self, kind: Kind, source: str | Path) -> None:
        """Refuse what has no passages."""
        if kind in ("run", "queries"):
            advice = "Leave it out." if kind == "queries" else "For a run of parts there is merge_parts."
            msg = f"{self._option} cuts passages, and '{source}' is read as {kind}. {advice}"
            raise OptionError(msg)

    def passages(self, source: str | Path) -> Iterator[Passage]:
        """The parts of all passages."""
        for passage in self.corpus(source):
            yield from self.of(passage)

    def of(self, passage: Passage) -> list[Passage]:
        """The parts of a passage; a passage without text is its own part."""
        texts = self._cut(passage.text) or [""]
        return [Passage(f"{passage.id}#{number}", passage.title, text) for number, text in enumerate(texts, 1)]

    def judgements(self, source: str | Path, split: str, corpus: str | Path | None) -> Qrels:
        """The judgements of the parts; answers are those of the queries beside the judgements, or in the corpus."""
        place = _place_of("passages", source, corpus)
        if place is None:
            msg = f"'{source}' names passages whose texts it does not hold. Give the corpus."
            raise OptionError(msg)
        asked = _place_of("queries", source, corpus)
        answers = {} if asked is None else {query.id: query.answers for query in read_queries(asked)}
        parts = self._parts_in(self.corpus(place))
        qrels: Qrels = {}
        for query, judged in read_qrels(source, split).items():
            found = _Relevant(answers.get(query, ()))
            qrels[query] = {
                part.id: grade
                for document, grade in judged.items()
                for part in (found.of(parts(document)) if grade > 0 else parts(document))
            }
        return qrels

    def examples(self, source: str | Path, split: str, corpus: str | Path | None) -> Examples:
        """The examples with parts for documents; with the texts of the parts if they come with the examples."""
        examples = read_examples(source, split=split)
        place = _place_of("passages", source, corpus)
        if place is not None:
            known = self.corpus(place)
            return _moved(replace(against_corpus(examples, known), passages={}), self._parts_in(known))
        check_examples(examples, None)
        parts = {one.id: self.of(one) for one in examples.passages.values()}
        passages = {part.id: part for cut in parts.values() for part in cut}
        return _moved(replace(examples, passages=passages), parts.__getitem__)

    def _parts_in(self, corpus: Corpus) -> PartsOf:
        return lru_cache(_HELD)(lambda document: self.of(corpus.get(document)))


class WholePassages(Contents):
    """A run of parts as one of their passages, each with the score of its best part."""

    def __init__(self) -> None:
        super().__init__()
        self.options = {"merge_parts": True}

    def check(self, kind: Kind, source: str | Path) -> None:
        """Refuse anything but a run."""
        if kind != "run":
            msg = f"merge_parts is for runs, and '{source}' is read as {kind}. Leave it out, or give the kind: run."
            raise OptionError(msg)

    def results(self, source: str | Path) -> Iterator[tuple[str, Hits]]:
        """The hits of each query; as many as there are different passages."""
        for query, hits in open_run(source).items():
            best: dict[str, float] = {}
            for part, score in hits:
                if (found := PART.fullmatch(part)) is None:
                    msg = f"document '{part}' is no part of a passage, such as ID#1. Give a run of parts."
                    raise DataError(msg, file=source)
                best.setdefault(found[1], score)
            yield query, list(best.items())


def contents_of(
    parts: str | None, *, merge: bool = False, windows: Windows | None = None, columns: Columns | None = None
) -> Contents:
    """What `--parts`, `--merge-parts`, `--passages` and the names of fields read of a source."""
    if parts is not None and windows is not None:
        msg = "parts and passages both cut passages. Give one of them; `by` counts passages in sentences."
        raise OptionError(msg)
    cut = parts if windows is None else windows
    if merge and (cut is not None or columns is not None):
        option = "parts" if parts is not None else "passages" if windows else "text_field"
        does = "names the text of" if option == "text_field" else "cuts"
        msg = f"{option} {does} passages, and merge_parts takes the parts of a run for passages. Give one of them."
        raise OptionError(msg)
    if merge:
        return WholePassages()
    if cut is None:
        return AS_IT_IS if columns is None else Contents(columns)
    return Parts(cut, columns)


class _Relevant:
    """Which parts of a relevant passage are relevant to a query with these answers."""

    def __init__(self, answers: Iterable[str]) -> None:
        known = list(answers)
        self._matcher = AnswerMatcher(known) if known else None

    def of(self, parts: Sequence[Passage]) -> Sequence[Passage]:
        """Those with an answer, or all if none has one or no answer is known."""
        if self._matcher is None:
            return parts
        return [part for part in parts if self._matcher.matches(part.text)] or parts


def _moved(examples: Examples, parts: PartsOf) -> Examples:
    """The examples with the parts of their documents."""
    scored = sum(row.teacher is not None for row in examples.rows)
    if scored:
        notices.note(
            f"A teacher's scores, which are of whole passages, are left out; so many examples had some: {scored:,}."
        )
    rows = []
    for row in examples.rows:
        found = _Relevant(row.answers)
        positives = tuple(part.id for document in row.positives for part in found.of(parts(document)))
        negatives = tuple(part.id for document in row.negatives for part in parts(document))
        rows.append(replace(row, positives=positives, negatives=negatives, teacher=None))
    return replace(examples, rows=rows)


def _place_of(part: Part, source: str | Path, corpus: str | Path | None) -> str | Path | None:
    """Where the passages or queries of a source are: in the corpus that was given, or beside it."""
    if corpus is not None and (part == "passages" or _is_beside(part, corpus)):
        return corpus
    return source if _is_beside(part, source) else None


def _is_beside(part: Part, source: str | Path) -> bool:
    # A single file holds one kind of data.
    return not Path(source).is_file() and open_source(source).holds(part)
