"""Passages cut into parts, each a passage of its own: sentences, a number of equal parts, or windows of some words.

MVR's Table 5 compares several vectors of a document with those of its sentences and of its 4 or 8 equal parts. The
parts of passage ID are ID#1, ID#2 ... with its title. A part is a positive of a query if its passage was, and it
contains an answer; if no part does, or no answer is known, all are. All parts of a negative are negatives.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Literal

from retrievalkit.data.answers import AnswerMatcher
from retrievalkit.data.corpus import Passage
from retrievalkit.data.examples import Examples
from retrievalkit.data.qrels import Qrels
from retrievalkit.data.runs import Hits
from retrievalkit.data.spans import sentence_ends
from retrievalkit.errors import DataError
from retrievalkit.reporting import notices

_WORD = re.compile(r"\S+")
PART = re.compile(r"(.+)#([1-9][0-9]*)", re.DOTALL)
"""The id of a part: that of its passage, and its number."""

Parts = Callable[[str], Sequence[Passage]]
"""The id of a passage -> its parts."""


def windows(text: str, size: int, stride: int | None = None, by: Literal["words", "sentences"] = "words") -> list[str]:
    """Windows of `size` words or sentences, each of which begins `stride` after the one before (None = `size`).

    The last ends with the text, and may be shorter; a blank text has none.
    """
    spans = [one.span() for one in _WORD.finditer(text)]
    if by == "sentences":
        ends = sentence_ends(text)
        cut = ((text[start:end].strip(), start) for start, end in zip([0, *ends], ends, strict=False))
        spans = [(first := text.index(one, start), first + len(one)) for one, start in cut if one]
    step = stride or size
    # The last begins where the one before it has not reached the end of the text.
    firsts = range(0, max(len(spans) - size + step, min(len(spans), 1)), step)
    return [text[spans[a][0] : spans[min(a + size, len(spans)) - 1][1]] for a in firsts]


def equal_parts(text: str, count: int) -> list[str]:
    """A text in parts whose numbers of words differ by one at most; fewer parts than `count` if it has fewer words."""
    words = [match.span() for match in _WORD.finditer(text)]
    count = min(count, len(words))
    firsts = [number * len(words) // count for number in range(count + 1)] if count else []
    return [text[words[a][0] : words[b - 1][1]] for a, b in pairwise(firsts)]


def parts_of(passage: Passage, cut: Callable[[str], list[str]]) -> list[Passage]:
    """The parts of a passage; a passage without text is its own part."""
    texts = cut(passage.text) or [""]
    return [replace(passage, id=f"{passage.id}#{number}", text=text) for number, text in enumerate(texts, 1)]


def _relevant(parts: Sequence[Passage], answers: Sequence[str]) -> Sequence[Passage]:
    matcher = AnswerMatcher(answers)
    return [part for part in parts if answers and matcher.matches(part.text)] or parts


def judged_parts(qrels: Qrels, parts: Parts, answers: Mapping[str, Sequence[str]]) -> Qrels:
    """The judgements of the parts."""
    return {
        query: {
            part.id: grade
            for document, grade in judged.items()
            for part in (_relevant(parts(document), answers.get(query, ())) if grade > 0 else parts(document))
        }
        for query, judged in qrels.items()
    }


def examples_of_parts(examples: Examples, parts: Parts) -> Examples:
    """The examples with the parts of their documents."""
    if scored := sum(row.teacher is not None for row in examples.rows):
        notices.note(
            f"A teacher's scores, which are of whole passages, are left out; so many examples had some: {scored:,}."
        )
    rows = [
        replace(
            row,
            positives=tuple(part.id for one in row.positives for part in _relevant(parts(one), row.answers)),
            negatives=tuple(part.id for one in row.negatives for part in parts(one)),
            teacher=None,
        )
        for row in examples.rows
    ]
    return replace(examples, rows=rows)


def merged(run: Iterable[tuple[str, Hits]], source: object) -> Iterator[tuple[str, Hits]]:
    """A run of parts as one of their passages, each with the score of its best part."""
    for query, hits in run:
        best: dict[str, float] = {}
        for part, score in hits:
            if (match := PART.fullmatch(part)) is None:
                msg = f"document '{part}' is no part of a passage, such as ID#1. Give a run of parts."
                raise DataError(msg, file=source)
            best.setdefault(match[1], score)
        yield query, list(best.items())
