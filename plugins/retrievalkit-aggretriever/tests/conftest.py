"""Token states made by hand, and a tiny model with its vocabulary head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from retrievalkit.contracts import EncoderInfo, TokenStates, VocabularyHead

WIDTH, LAYERS, VOCABULARY = 6, 3, 40


@pytest.fixture
def info() -> EncoderInfo:
    """An encoder of 3 layers, width 6, and 40 terms."""
    return EncoderInfo(width=WIDTH, layers=LAYERS, vocabulary_size=VOCABULARY)


@pytest.fixture
def make_states() -> Callable[..., TokenStates]:
    """Random token states, ids and a vocabulary head, for texts of given lengths; the same for each length."""

    def make(lengths: Sequence[int], *, padded_to: int | None = None, left: bool = False) -> TokenStates:
        n_tokens = padded_to or max(lengths)
        # What stands at padding must not matter, so it is large.
        layers = {layer: torch.full((len(lengths), n_tokens, WIDTH), 1e2) for layer in range(LAYERS + 1)}
        mask = torch.zeros(len(lengths), n_tokens, dtype=torch.long)
        special, ids = torch.zeros_like(mask, dtype=torch.bool), torch.zeros_like(mask)
        for row, length in enumerate(lengths):
            start = n_tokens - length if left else 0
            real = slice(start, start + length)
            generator = torch.Generator().manual_seed(length)
            for layer in layers.values():
                layer[row, real] = torch.randn(length, WIDTH, generator=generator)
            # Few different ids, so that a text has some of them twice.
            ids[row, real] = torch.randint(3, 9, (length,), generator=generator)
            mask[row, real] = 1
            special[row, start] = special[row, start + length - 1] = True
        return TokenStates(layers, mask, ids, special, head=make_head())

    return make


def make_head() -> VocabularyHead:
    """A head of a nonlinear map, a projection and a bias."""
    generator = torch.Generator().manual_seed(0)
    inner = torch.randn(WIDTH, WIDTH, generator=generator)
    weight, bias = torch.randn(VOCABULARY, WIDTH, generator=generator), torch.randn(VOCABULARY, generator=generator)
    return VocabularyHead(lambda hidden: torch.tanh(hidden @ inner.to(hidden.dtype)), weight, bias)
