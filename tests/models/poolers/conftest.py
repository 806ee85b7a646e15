"""Fixture: random token states."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from retrievalkit.contracts import TokenStates


@pytest.fixture
def make_states() -> Callable[..., TokenStates]:
    """Function that returns random token states (layers 0 to 3, width 4) of texts, padded right or left."""

    def make(lengths: Sequence[int], *, padded_to: int | None = None, left: bool = False) -> TokenStates:
        n_tokens = padded_to or max(lengths)
        # Values at padding must not matter, so they are large.
        layers = {layer: torch.full((len(lengths), n_tokens, 4), 1e4) for layer in range(4)}
        mask = torch.zeros(len(lengths), n_tokens, dtype=torch.long)
        for row, length in enumerate(lengths):
            real = slice(n_tokens - length, None) if left else slice(0, length)
            mask[row, real] = 1
            generator = torch.Generator().manual_seed(length)
            for layer in layers.values():
                layer[row, real] = torch.randn(length, 4, generator=generator)
        return TokenStates(layers, mask, torch.zeros_like(mask), torch.zeros_like(mask, dtype=torch.bool))

    return make
