"""Whole words from WordPiece tokens, which have the prefix "##" if they continue a word."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from retrievalkit.contracts import Encoder
from retrievalkit.errors import UnsupportedError

CONTINUES = "##"


def continuing(encoder: Encoder) -> Tensor:
    """Return a mask (vocabulary,) of the tokens that continue a word.

    Raises:
        UnsupportedError: The vocabulary does not mark these tokens.
    """
    names = encoder.tokens(range(encoder.info.vocabulary_size))
    marked = torch.tensor([name.startswith(CONTINUES) for name in names])
    if not marked.any():
        msg = (
            f"pooler 'colberter' needs a WordPiece vocabulary, but no token of this encoder begins with '{CONTINUES}'."
        )
        msg += " Choose a model such as BERT, or set pooler.whole_words=false."
        raise UnsupportedError(msg)
    return marked


def word_numbers(input_ids: Tensor, mask: Tensor, continues: Tensor | None) -> Tensor:
    """Number the distinct words of each text from 0, in the order of their first occurrence.

    Args:
        input_ids: (batch, tokens).
        mask: (batch, tokens) bool, True at the tokens of the text.
        continues: (vocabulary,) bool, True for tokens that continue a word; None = every token is a distinct word.

    Returns:
        (batch, tokens) long: the number of each token's word, -1 outside the mask.
    """
    if continues is None:
        return (mask.long().cumsum(dim=1) - 1).masked_fill(~mask, -1)
    starts = ~continues[input_ids]
    rows = zip(input_ids.tolist(), mask.tolist(), starts.tolist(), strict=True)
    return torch.tensor([_numbers(*row) for row in rows], device=input_ids.device)


def _numbers(ids: Sequence[int], inside: Sequence[bool], starts: Sequence[bool]) -> list[int]:
    """Return the word number of each token of a text."""
    words: list[list[int]] = []
    before = False
    for place, here in enumerate(inside):
        if here and (starts[place] or not before):
            words.append([place])
        elif here:
            words[-1].append(place)
        before = here
    numbers: dict[tuple[int, ...], int] = {}
    numbered = [-1] * len(ids)
    for places in words:
        number = numbers.setdefault(tuple(ids[place] for place in places), len(numbers))
        for place in places:
            numbered[place] = number
    return numbered


def mean_by_word(vectors: Tensor, numbers: Tensor) -> tuple[Tensor, Tensor]:
    """Average the vectors of each word.

    Args:
        vectors: (batch, tokens, dim).
        numbers: (batch, tokens) long, from `word_numbers`.

    Returns:
        (batch, words, dim) float32 at least, zeros beyond a text's last word; and (batch, words) bool, True at words.
    """
    words = max(1, int(numbers.max()) + 1)
    wide = torch.promote_types(vectors.dtype, torch.float32)
    of_word = (numbers[:, None, :] == torch.arange(words, device=numbers.device)[None, :, None]).to(wide)
    counts = of_word.sum(dim=2)  # (batch, words)
    sums = of_word @ vectors.to(wide)  # (batch, words, dim)
    return sums / counts.clamp(min=1)[:, :, None], counts > 0
