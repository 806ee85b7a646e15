"""Token states made by hand."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from retrievalkit.contracts import EncoderInfo, TokenStates


@pytest.fixture
def info() -> EncoderInfo:
    """An encoder of 4 layers and width 3."""
    return EncoderInfo(width=3, layers=4, vocabulary_size=50)


@pytest.fixture
def make_states() -> Callable[..., TokenStates]:
    """Random token states (layers 0 to 4, width 3) for texts of given lengths; `special`: which begin with [CLS]."""

    def make(lengths: Sequence[int], *, special: Sequence[bool] = (True, True), padded_to: int = 6) -> TokenStates:
        mask = (torch.arange(padded_to) < torch.tensor(lengths)[:, None]).long()
        generator = torch.Generator().manual_seed(0)
        # What stands at padding must not matter, so it is large.
        layers = {
            layer: torch.randn(len(lengths), padded_to, 3, generator=generator).masked_fill(mask[:, :, None] == 0, 1e4)
            for layer in range(5)
        }
        special_mask = torch.zeros_like(mask, dtype=torch.bool)
        special_mask[:, 0] = torch.tensor(special)
        return TokenStates(layers, mask, torch.zeros_like(mask), special_mask)

    return make
