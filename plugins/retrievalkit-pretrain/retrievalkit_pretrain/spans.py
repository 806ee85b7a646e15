"""Documents -> sentences -> spans, and the context partners of a span, for contextual pre-training.

A span is a sequence of sentences, appended until their tokens exceed a target length. All parts of a document are
ranges of its sentences, so a partner may overlap the span or be longer than it. The caller seeds the random generator
(CoT-MAE: Wu et al. 2022, and its released code).
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable, Sequence

from retrievalkit.data.tokenized_text import Document

NEIGHBOURHOOD = 100
"""Maximum distance of a randomly sampled partner, in spans."""


def token_ends(piece_ends: Sequence[int], ends: Sequence[int]) -> list[int]:
    """Return the end of each sentence, in tokens; sentences without tokens are left out.

    Args:
        piece_ends: The end of each token, in characters, ascending.
        ends: The end of each sentence, in characters.
    """
    counts = [bisect_right(piece_ends, end) for end in ends]
    return [count for before, count in zip([0, *counts], counts, strict=False) if count > before]


def draw_spans(ends: Sequence[int], max_length: int, draw: random.Random, *, short: float = 0.15) -> list[range]:
    """Cut a document into spans: sentences are appended until they exceed the target; the rest is the last span.

    Args:
        ends: The end of each sentence, in tokens.
        max_length: The target length, in tokens.
        draw: The random generator.
        short: The probability, for each span, of a target drawn uniformly from 2 ... max_length.
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
    """Sample the span before or after the anchor."""
    neighbours = [number for number in (anchor - 1, anchor + 1) if 0 <= number < len(document.spans)]
    return document.spans[draw.choice(neighbours)]


def random_sampled(document: Document, anchor: int, draw: random.Random) -> range:
    """Sample any other span at most `NEIGHBOURHOOD` spans away."""
    first, last = max(0, anchor - NEIGHBOURHOOD), min(len(document.spans) - 1, anchor + NEIGHBOURHOOD)
    number = draw.randrange(first, last)  # counted without the anchor
    return document.spans[number + (number >= anchor)]


def overlap(document: Document, anchor: int, draw: random.Random) -> range:
    """Sample the anchor's last r sentences and the following ones, until they exceed the maximum length.

    r is uniform in 1 ... half of the anchor's sentences. For the last span of a document, the partner is its
    first r sentences and the preceding ones.
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
"""Partner samplers for a span (the anchor, by number) in a document of at least two spans."""
