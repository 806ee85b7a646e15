"""The pooler `projected`: poolings side by side, and linear layers above them."""

from __future__ import annotations

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, TokenStates
from retrievalkit.errors import OptionError

INFO = EncoderInfo(width=2, layers=1, vocabulary_size=9)
STATES = torch.tensor([[[1.0, 2.0], [3.0, -4.0], [5.0, 9.0]], [[2.0, 2.0], [9.0, 9.0], [9.0, 9.0]]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])


def pooled(**options):
    states = TokenStates({1: STATES}, MASK, MASK, torch.zeros_like(MASK, dtype=torch.bool))
    return registry.create("pooler", "projected", INFO, **options)(states, "document").vectors[:, 0]


@pytest.mark.parametrize(
    ("pooling", "first", "second"),
    [
        ("cls", [1, 2], [2, 2]),
        ("max", [5, 9], [2, 2]),
        ("mean", [3, 7 / 3], [2, 2]),
        ("sqrt_mean", [9 / 3**0.5, 7 / 3**0.5], [2, 2]),
        ("weighted_mean", [22 / 6, 21 / 6], [2, 2]),
        ("last", [5, 9], [2, 2]),
    ],
)
def test_each_pooling_by_hand(pooling, first, second):
    torch.testing.assert_close(pooled(pooling=(pooling,)), torch.tensor([first, second], dtype=torch.float32))


def test_poolings_are_joined_in_the_order_given():
    assert pooled(pooling=("last", "cls"))[0].tolist() == [5, 9, 1, 2]


def test_normalised():
    assert pooled(pooling=("cls",), normalize=True)[1].tolist() == pytest.approx([0.5**0.5] * 2)


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_and_their_functions(bias):
    """tanh(W x + b) and then a layer without a function."""
    options = {"pooling": ("cls", "max"), "dimensions": (3, 2), "activations": ("tanh", "identity"), "bias": bias}
    pooler = registry.create("pooler", "projected", INFO, **options)
    one, two = pooler.layers
    inputs = torch.tensor([1.0, 2.0, 5.0, 9.0])
    expected = two.weight @ torch.tanh(one.weight @ inputs + (one.bias if bias else 0)) + (two.bias if bias else 0)
    found = pooler(TokenStates({1: STATES}, MASK, MASK, MASK.bool()), "query").vectors[0, 0]
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("options", [{"pooling": ()}, {"dimensions": (3,), "activations": ("tanh", "tanh")}])
def test_options_that_do_not_fit_are_refused(options):
    with pytest.raises(OptionError, match="pooler 'projected' has"):
        registry.create("pooler", "projected", INFO, **options)
