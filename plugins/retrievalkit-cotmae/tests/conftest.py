"""Token states made by hand, and a tiny model with its vocabulary head."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from retrievalkit.contracts import EncoderInfo, TokenStates, VocabularyHead

WIDTH, LAYERS, VOCABULARY = 4, 3, 11


@pytest.fixture(scope="session")
def info() -> EncoderInfo:
    """An encoder of 3 layers, width 4, and 11 terms."""
    return EncoderInfo(width=WIDTH, layers=LAYERS, vocabulary_size=VOCABULARY)


@pytest.fixture(scope="session")
def head() -> VocabularyHead:
    """A vocabulary head of random weights."""
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator)
    return VocabularyHead(torch.tanh, weight, torch.randn(VOCABULARY, generator=generator) / 2)


@pytest.fixture(scope="session")
def make_states(head: VocabularyHead) -> Callable[..., TokenStates]:
    """Random token states of all layers for texts of given lengths, [CLS] and [SEP] included; a length seeds its text.

    `gradient` makes the last layer's states a leaf.
    """

    def make(
        lengths: Sequence[int], *, padded_to: int | None = None, left: bool = False, gradient: bool = False
    ) -> TokenStates:
        n_tokens = padded_to or max(lengths)
        # What stands at padding must not matter, so it is large.
        layers = {layer: torch.full((len(lengths), n_tokens, WIDTH), 1e4) for layer in range(LAYERS + 1)}
        mask = torch.zeros(len(lengths), n_tokens, dtype=torch.long)
        special_mask = torch.zeros(len(lengths), n_tokens, dtype=torch.bool)
        for row, length in enumerate(lengths):
            start = n_tokens - length if left else 0
            mask[row, start : start + length] = 1
            special_mask[row, [start, start + length - 1]] = True
            generator = torch.Generator().manual_seed(length)
            for layer in layers.values():
                layer[row, start : start + length] = torch.randn(length, WIDTH, generator=generator)
        layers[LAYERS].requires_grad_(gradient)
        return TokenStates(layers, mask, torch.zeros_like(mask), special_mask, head=head)

    return make
