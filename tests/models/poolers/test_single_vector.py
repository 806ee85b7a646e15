"""Single-vector poolers: `cls`, `mean`, `max`, `last`, and `projected` with linear layers."""

from __future__ import annotations

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, TokenStates
from retrievalkit.errors import OptionError, UnsupportedError

INFO = EncoderInfo(width=2, layers=2, vocabulary_size=9)
NAN = float("nan")
# Values at padding must not matter, so they are NaN.
STATES = torch.tensor([[[1.0, 2.0], [3.0, -4.0], [5.0, 9.0]], [[2.0, -2.0], [NAN, NAN], [NAN, NAN]]])
MASK = torch.tensor([[1, 1, 1], [1, 0, 0]])
# For the first text; the second has a single token.
EXPECTED = {
    "cls": [1, 2],
    "max": [5, 9],
    "mean": [3, 7 / 3],
    "sqrt_mean": [9 / 3**0.5, 7 / 3**0.5],
    "weighted_mean": [22 / 6, 21 / 6],
    "last": [5, 9],
}


def pooled(name, hidden=STATES, mask=MASK, info=INFO, **options):
    states = TokenStates({info.layers: hidden, 1: hidden + 1}, mask, mask, mask.bool())
    return registry.create("pooler", name, info, **options)(states, "document").vectors[:, 0]


@pytest.mark.parametrize("pooling", EXPECTED)
@pytest.mark.parametrize("left", [False, True])
def test_each_pooling_by_hand(pooling, left):
    hidden, mask = (torch.cat([rows[:1], rows[1:].flip(1)]) if left else rows for rows in (STATES, MASK))
    expected = torch.tensor([EXPECTED[pooling], [2, -2]], dtype=torch.float32)
    torch.testing.assert_close(pooled("projected", hidden, mask, pooling=(pooling,)), expected)
    if pooling in ("cls", "max", "mean", "last"):
        torch.testing.assert_close(pooled(pooling, hidden, mask), expected)
        torch.testing.assert_close(pooled(pooling, hidden, mask, layer=1), expected + 1)
        torch.testing.assert_close(pooled(pooling, hidden, mask, layer=-2), expected + 1)
        unit = pooled(pooling, hidden, mask, normalize=True)
        torch.testing.assert_close(unit, expected / expected.norm(dim=1, keepdim=True))


@pytest.mark.parametrize("name", ["mean", "max"])
def test_a_text_without_tokens_is_zero_and_padding_has_no_gradient(name):
    hidden = STATES.clone().requires_grad_()
    vectors = pooled(name, hidden, torch.tensor([[0, 0, 0], [1, 0, 0]]))
    assert vectors.tolist() == [[0, 0], [2, -2]]
    vectors.sum().backward()
    assert hidden.grad.tolist() == [[[0, 0]] * 3, [[1, 1], [0, 0], [0, 0]]]


def test_mean_of_half_precision_is_summed_in_float32():
    """In bf16 the sum of many small states would lose most of them."""
    hidden, mask = torch.full((1, 3001, 1), 0.01, dtype=torch.bfloat16), torch.ones(1, 3001, dtype=torch.long)
    torch.testing.assert_close(pooled("mean", hidden, mask, EncoderInfo(1, 2, 9)).squeeze(), hidden[0, 0, 0].float())


@pytest.mark.parametrize("bias", [True, False])
def test_linear_layers_with_activations(bias):
    """tanh(W x + b) of concatenated poolings, then a layer without activation."""
    options = {"pooling": ("last", "cls"), "dimensions": (3, 2), "activations": ("tanh", "identity"), "bias": bias}
    pooler = registry.create("pooler", "projected", INFO, **options)
    first, second = pooler.layers
    inputs = torch.tensor([5.0, 9.0, 1.0, 2.0])
    hidden = torch.tanh(first.weight @ inputs + (first.bias if bias else 0))
    expected = second.weight @ hidden + (second.bias if bias else 0)
    vectors = pooler(TokenStates({2: STATES}, MASK, MASK, MASK.bool()), "query").vectors
    torch.testing.assert_close(vectors[0, 0], expected)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"pooling": ()}, OptionError, "pooler 'projected' has"),
        ({"dimensions": (3,), "activations": ("tanh", "tanh")}, OptionError, "pooler 'projected' has"),
        ({"layer": 4}, UnsupportedError, "layer 4 does not exist.* to 2,"),
    ],
)
def test_invalid_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        registry.create("pooler", "projected", INFO, **options)
