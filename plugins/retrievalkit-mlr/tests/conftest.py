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
    """Random token states (layers 0 to 4, width 3) for texts of given lengths.

    `special` says which texts begin with a [CLS]-like token: all, none, or one flag each.
    """

    def make(
        lengths: Sequence[int],
        *,
        special: bool | Sequence[bool] = True,
        padded_to: int | None = None,
        left: bool = False,
    ) -> TokenStates:
        n_tokens = padded_to or max(lengths)
        flags = [special] * len(lengths) if isinstance(special, bool) else list(special)
        # What stands at padding must not matter, so it is large.
        layers = {layer: torch.full((len(lengths), n_tokens, 3), 1e4) for layer in range(5)}
        mask = torch.zeros(len(lengths), n_tokens, dtype=torch.long)
        special_mask = torch.zeros(len(lengths), n_tokens, dtype=torch.bool)
        for row, length in enumerate(lengths):
            start = n_tokens - length if left else 0
            mask[row, start : start + length] = 1
            special_mask[row, start] = flags[row]
            special_mask[row, start + length - 1] = True
            generator = torch.Generator().manual_seed(length)
            for layer in layers.values():
                layer[row, start : start + length] = torch.randn(length, 3, generator=generator)
        return TokenStates(layers, mask, torch.zeros_like(mask), special_mask)

    return make
