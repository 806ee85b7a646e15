"""Token states made by hand, and tiny models of two architectures."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import retrievalkit_testing as testing
import torch

from retrievalkit.contracts import EncoderInfo, TokenStates


@pytest.fixture
def info() -> EncoderInfo:
    """An encoder of 4 layers and width 3."""
    return EncoderInfo(width=3, layers=4, vocabulary_size=50)


@pytest.fixture
def make_states() -> Callable[..., TokenStates]:
    """Random token states (layers 0 to 4, width 3) for texts of given lengths, `extra` viewers among their tokens."""

    def make(
        lengths: Sequence[int], *, extra: int | None = 2, first: int = 0, padded_to: int | None = None
    ) -> TokenStates:
        n_tokens = padded_to or max(lengths)
        # What stands at padding must not matter, so it is large.
        layers = {layer: torch.full((len(lengths), n_tokens, 3), 1e4) for layer in range(5)}
        mask = torch.zeros(len(lengths), n_tokens, dtype=torch.long)
        for row, length in enumerate(lengths):
            mask[row, :length] = 1
            generator = torch.Generator().manual_seed(length)
            for layer in layers.values():
                layer[row, :length] = torch.randn(length, 3, generator=generator)
        special = torch.zeros_like(mask, dtype=torch.bool)
        special[:, 0] = True
        positions = None if extra is None else torch.arange(first, first + extra).repeat(len(lengths), 1)
        return TokenStates(layers, mask, torch.zeros_like(mask), special, positions)

    return make


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a BERT of two layers, width 32."""
    return testing.tiny_model(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="session")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a RoBERTa of two layers, width 32, whose positions begin behind its padding id."""
    return testing.tiny_model(tmp_path_factory.mktemp("roberta"), architecture="roberta")
