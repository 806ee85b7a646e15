"""Whole-word masking for masked language modelling: masked tokens, their replacements and labels.

Words are drawn in random order until their tokens reach the masking ratio; a word that would exceed it is skipped. Of
the drawn tokens, 80 % become [MASK], 10 % a random token, and 10 % stay unchanged (Devlin et al. 2019).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from retrievalkit.data.tokenized_text import Pieces, Vocabulary
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring.lexical import UNLABELLED

_MASKED, _RANDOM = 0.8, 0.9


def mask_budget(length: int, ratio: float) -> int:
    """Return the number of tokens to mask: length times ratio, rounded, at least one."""
    return max(1, round(length * ratio))


@dataclass(frozen=True)
class Masker:
    """Masker of whole words or single tokens.

    Attributes:
        vocabulary: The vocabulary of the encoder.
        ratio: Fraction of a text's tokens to mask, not counting special tokens.
        whole_words: True to mask all tokens of a word together.
    """

    vocabulary: Vocabulary
    ratio: float
    whole_words: bool = True

    def __post_init__(self) -> None:
        if self.vocabulary.mask is None:
            msg = "tokens should be masked, but the tokenizer has no mask token. Choose a masked language model."
            raise UnsupportedError(msg)

    def __call__(self, pieces: Pieces, draw: random.Random) -> tuple[list[int], list[int]]:
        """Mask a text: returns its ids with special tokens, and labels: the original token, or `UNLABELLED`."""
        ids = self.vocabulary.wrap([int(token) for token in pieces.ids])
        labels = [UNLABELLED] * len(ids)
        for position in self.choose(pieces, draw):
            place = position + len(self.vocabulary.before)
            labels[place] = ids[place]
            chance = draw.random()
            if chance < _MASKED:
                assert self.vocabulary.mask is not None
                ids[place] = self.vocabulary.mask
            elif chance < _RANDOM:
                ids[place] = draw.choice(self.vocabulary.ordinary)
        return ids, labels

    def choose(self, pieces: Pieces, draw: random.Random) -> list[int]:
        """Draw the positions to mask; none if every word is longer than the budget."""
        words = (
            pieces.words() if self.whole_words else [range(position, position + 1) for position in range(len(pieces))]
        )
        draw.shuffle(words)
        positions: list[int] = []
        budget = mask_budget(len(pieces), self.ratio)
        for word in words:
            if len(word) <= budget:
                positions += word
                budget -= len(word)
            if not budget:
                break
        return positions


def pad_labels(rows: Sequence[Sequence[int]]) -> Tensor:
    """(texts, tokens) long: the labels of a batch, right-padded to the longest text like `Encoder.collate`."""
    longest = max([1, *map(len, rows)])
    return torch.tensor([[*row, *[UNLABELLED] * (longest - len(row))] for row in rows])


def count_labels(labels: Tensor) -> int:
    """Return the number of tokens to predict."""
    return int((labels != UNLABELLED).sum())
