"""Tokenised text with word boundaries: the unit that pre-training cuts, pairs and masks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text, or part of a text, as tokens without special tokens.

    Attributes:
        ids: The token ids.
        starts: For each token, True if it begins a word.
    """

    ids: Sequence[int]
    starts: Sequence[bool]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Pieces:
        return Pieces(self.ids[part], self.starts[part])

    def words(self) -> list[range]:
        """Return the token positions of each word; the rest of a cut word at the start counts as a word."""
        first = [position for position, starts in enumerate(self.starts) if starts or not position]
        return [range(start, stop) for start, stop in zip(first, [*first[1:], len(self)], strict=True)] if first else []

    def cut(self, limit: int, draw: random.Random) -> Pieces:
        """At most `limit` consecutive tokens, from a uniformly random start if there are more."""
        if len(self) <= limit:
            return self
        start = draw.randint(0, len(self) - limit)
        return self[start : start + limit]


class Sliceable(Protocol):
    """Pieces in memory or on disk that can be sliced."""

    def __len__(self) -> int:
        """Return the number of tokens."""

    def __getitem__(self, part: slice) -> Pieces:
        """Return a slice of the tokens."""


@dataclass(frozen=True)
class Document:
    """A document cut into sentences and spans.

    Attributes:
        pieces: All tokens of the document.
        ends: The end of each sentence, in tokens.
        spans: The spans, as ranges of sentences.
        max_length: The maximum target length of its spans, in tokens.
    """

    pieces: Sliceable
    ends: Sequence[int]
    spans: Sequence[range]
    max_length: int

    def text(self, sentences: range) -> Pieces:
        """Return the tokens of a range of sentences."""
        return self.pieces[self._start(sentences.start) : self._start(sentences.stop)]

    def length(self, sentences: range) -> int:
        """Return the number of tokens in a range of sentences."""
        return self._start(sentences.stop) - self._start(sentences.start)

    def _start(self, sentence: int) -> int:
        return int(self.ends[sentence - 1]) if sentence else 0


@dataclass(frozen=True)
class Vocabulary:
    """Vocabulary of an encoder, for pre-training.

    Attributes:
        split: Texts -> for each text, all its pieces, and the end of each token in the text (in characters).
        before: The special tokens before a text, such as [CLS].
        after: The special tokens after a text, such as [SEP].
        mask: The [MASK]-like token, or None.
        ordinary: All tokens that are not special.
    """

    split: Callable[[Sequence[str]], Sequence[tuple[Pieces, Sequence[int]]]]
    before: Sequence[int]
    after: Sequence[int]
    mask: int | None
    ordinary: Sequence[int]

    def wrap(self, ids: Sequence[int]) -> list[int]:
        """Return the tokens of a text, surrounded by the special tokens."""
        return [*self.before, *ids, *self.after]

    @property
    def special_tokens(self) -> int:
        """The number of special tokens around a text."""
        return len(self.before) + len(self.after)
