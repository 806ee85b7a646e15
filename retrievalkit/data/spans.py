"""Documents -> sentences -> spans, and the partners of a span: the texts of contextual pre-training.

A span is a sequence of sentences, appended until their tokens exceed a target length. All parts of a document are
ranges of its sentences, so that a partner may overlap a span or be longer than it. The caller seeds the random
generator (CoT-MAE: Wu et al. 2022, and its released code).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from retrievalkit.data.tokenized_text import Pieces

NEIGHBOURHOOD = 100
"""The maximum distance of a randomly sampled partner, in spans."""


class Sliceable(Protocol):
    """Pieces in memory or on disk that can be sliced."""

    def __len__(self) -> int:
        """The number of tokens."""

    def __getitem__(self, part: slice) -> Pieces:
        """A slice of the tokens."""


@dataclass(frozen=True)
class Document:
    """A document cut into sentences and spans.

    Attributes:
        pieces: All tokens of the document.
        ends: Where each sentence ends, in tokens.
        spans: The spans, as ranges of sentences.
        max_length: The longest target length of its spans, in tokens.
    """

    pieces: Sliceable
    ends: Sequence[int]
    spans: Sequence[range]
    max_length: int

    def text(self, sentences: range) -> Pieces:
        """The tokens of a range of sentences."""
        return self.pieces[self._start(sentences.start) : self._start(sentences.stop)]

    def length(self, sentences: range) -> int:
        """How many tokens a range of sentences has."""
        return self._start(sentences.stop) - self._start(sentences.start)

    def _start(self, sentence: int) -> int:
        return int(self.ends[sentence - 1]) if sentence else 0


def sentence_ends(text: str, language: str = "en") -> list[int]:
    """Where each sentence of a text ends, in characters; the space after a sentence belongs to it."""
    import sentencex

    # Piece by piece, as the time grows with the square of a quotation that is never closed.
    ends: list[int] = []
    start, piece = 0, 1 << 14
    while start < len(text):
        sentences = sentencex.segment(language, text[start : start + piece])
        if start + piece < len(text) and len(sentences) > 1:
            sentences.pop()  # it may go on
        for sentence in sentences:
            start += len(sentence)
            ends.append(start)
    return ends


def token_ends(piece_ends: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Where each sentence ends in tokens; sentences without a token are left out.

    Args:
        piece_ends: Where in the text each token ends, ascending.
        ends: Where in the text each sentence ends.
    """
    counts = [bisect_right(piece_ends, end) for end in ends]
    return [count for before, count in zip([0, *counts], counts, strict=False) if count > before]


def draw_spans(ends: Sequence[int], max_length: int, draw: random.Random, *, short: float = 0.15) -> list[range]:
    """Cut a document into spans: sentences are appended until their length exceeds the target; the rest is a span too.

    Args:
        ends: Where each sentence ends, in tokens.
        max_length: The target length, in tokens.
        draw: The random generator.
        short: With this probability, drawn anew for each span, the target is uniform in 2 ... max_length.
    """
    spans: list[range] = []
    first = start = 0
    target = _target(max_length, draw, short)
    for sentence, end in enumerate(ends):
        if end - start > target:
            spans.append(range(first, sentence + 1))
            first, start = sentence + 1, int(end)
            target = _target(max_length, draw, short)
    return spans if first == len(ends) else [*spans, range(first, len(ends))]


def _target(max_length: int, draw: random.Random, short: float) -> int:
    return draw.randint(2, max_length) if draw.random() < short else max_length


def nearby(document: Document, anchor: int, draw: random.Random) -> range:
    """The span before or after the anchor."""
    neighbours = [number for number in (anchor - 1, anchor + 1) if 0 <= number < len(document.spans)]
    return document.spans[draw.choice(neighbours)]


def random_sampled(document: Document, anchor: int, draw: random.Random) -> range:
    """Any other span that is at most `NEIGHBOURHOOD` spans away."""
    first, last = max(0, anchor - NEIGHBOURHOOD), min(len(document.spans) - 1, anchor + NEIGHBOURHOOD)
    number = draw.randrange(first, last)  # among the spans without the anchor
    return document.spans[number + (number >= anchor)]


def overlap(document: Document, anchor: int, draw: random.Random) -> range:
    """The anchor's last r sentences and those that follow, until the length exceeds the maximum.

    r is uniform in 1 ... half of the anchor's sentences. Nothing follows the last span: its partner is its
    first r sentences and those that precede them.
    """
    span = document.spans[anchor]
    shared = draw.randint(1, max(1, len(span) // 2))
    if anchor < len(document.spans) - 1:
        part = range(span.stop - shared, span.stop)
        while part.stop < len(document.ends) and document.length(part) <= document.max_length:
            part = range(part.start, part.stop + 1)
        return part
    part = range(span.start, span.start + shared)
    while part.start > 0 and document.length(part) <= document.max_length:
        part = range(part.start - 1, part.stop)
    return part


PARTNERS: dict[str, Callable[[Document, int, random.Random], range]] = {
    "nearby": nearby,
    "random_sampled": random_sampled,
    "overlap": overlap,
}
"""Samplers of a partner for a span (the anchor, by number) in a document of at least two spans."""
