"""A text as the tokens of a vocabulary, and which of them begin a word: what pre-training cuts, pairs and masks."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Pieces:
    """A text, or a part of one, as tokens without special ones.

    Attributes:
        ids: The tokens.
        starts: For each token, whether it begins a word.
    """

    ids: Sequence[int]
    starts: Sequence[bool]

    def __len__(self) -> int:
        return len(self.ids)

    def __getitem__(self, part: slice) -> Pieces:
        return Pieces(self.ids[part], self.starts[part])

    def words(self) -> list[range]:
        """The positions of each word's tokens; where the text begins inside a word, that rest is a word."""
        first = [position for position, starts in enumerate(self.starts) if starts or not position]
        return [range(start, stop) for start, stop in zip(first, [*first[1:], len(self)], strict=True)] if first else []

    def cut(self, limit: int, draw: random.Random) -> Pieces:
        """At most `limit` tokens in a row; where there are more, all places are equally likely."""
        if len(self) <= limit:
            return self
        start = draw.randint(0, len(self) - limit)
        return self[start : start + limit]


@dataclass(frozen=True)
class Vocabulary:
    """What pre-training has to know of an encoder's tokens.

    Attributes:
        split: Texts -> for each its pieces, uncut, and where in the text each of them ends (in characters).
        before: The special tokens in front of a text, such as [CLS].
        after: The special tokens behind it, such as [SEP].
        mask: The [MASK]-like token, or None.
        ordinary: All tokens that are not special.
    """

    split: Callable[[Sequence[str]], Sequence[tuple[Pieces, Sequence[int]]]]
    before: Sequence[int]
    after: Sequence[int]
    mask: int | None
    ordinary: Sequence[int]

    def wrap(self, ids: Sequence[int]) -> list[int]:
        """The tokens of a text with the special tokens around it."""
        return [*self.before, *ids, *self.after]

    @property
    def special_tokens(self) -> int:
        """How many special tokens are around a text."""
        return len(self.before) + len(self.after)
