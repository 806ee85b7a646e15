"""The built-in poolers `cls`, `mean`, `max` and `last`."""

from __future__ import annotations

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, TokenStates
from retrievalkit.errors import UnsupportedError

INFO = EncoderInfo(width=4, layers=3, vocabulary_size=10)
NAMES = ["cls", "mean", "max", "last"]
every_pooler = pytest.mark.parametrize("name", NAMES)


def test_each_takes_what_its_name_says(make_states):
    """`cls` the first real token, `last` the last, `mean` and `max` all real ones."""
    states = make_states([3, 5])
    hidden = states.layers[3]
    expected = {
        "cls": torch.stack([hidden[0, 0], hidden[1, 0]]),
        "last": torch.stack([hidden[0, 2], hidden[1, 4]]),
        "mean": torch.stack([hidden[0, :3].mean(0), hidden[1].mean(0)]),
        "max": torch.stack([hidden[0, :3].amax(0), hidden[1].amax(0)]),
    }
    for name, vectors in expected.items():
        made = registry.create("pooler", name, INFO)(states, "document").vectors
        torch.testing.assert_close(made, vectors[:, None])


def test_masked_mean_golden():
    """The mean leaves padding out, and a row without any token gives zeros."""
    hidden = torch.tensor([[[1.0, 2.0], [3.0, 4.0], [100.0, 100.0]], [[0.0, 0.0], [0.0, 0.0], [0.0, 0.0]]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    states = TokenStates({1: hidden}, mask, mask, mask.bool())
    made = registry.create("pooler", "mean", EncoderInfo(2, 1, 10))(states, "query")
    assert made.vectors.tolist() == [[[2.0, 3.0]], [[0.0, 0.0]]]


def test_max_of_a_text_without_tokens_is_zero():
    """And what stands at padding, infinity too, is never the maximum."""
    hidden = torch.tensor([[[-1.0, 2.0], [float("inf"), float("inf")]], [[5.0, 5.0], [5.0, 5.0]]])
    mask = torch.tensor([[1, 0], [0, 0]])
    made = registry.create("pooler", "max", EncoderInfo(2, 1, 10))(TokenStates({1: hidden}, mask, mask, mask), "query")
    assert made.vectors.tolist() == [[[-1.0, 2.0]], [[0.0, 0.0]]]


def test_mean_ignores_infinite_padding():
    """Whatever stands at padding, infinity too, does not reach the mean or its gradient."""
    hidden = torch.tensor([[[1.0, 2.0], [float("inf"), float("nan")]]], requires_grad=True)
    mask = torch.tensor([[1, 0]])
    made = registry.create("pooler", "mean", EncoderInfo(2, 1, 10))(TokenStates({1: hidden}, mask, mask, mask), "query")
    made.vectors.sum().backward()
    assert made.vectors.tolist() == [[[1.0, 2.0]]]
    assert hidden.grad.tolist() == [[[1.0, 1.0], [0.0, 0.0]]]


def test_mean_of_half_precision_is_summed_in_float32():
    """Many small states in bf16 keep their mean."""
    hidden = torch.full((1, 3001, 1), 0.01, dtype=torch.bfloat16)
    mask = torch.ones(1, 3001, dtype=torch.long)
    made = registry.create("pooler", "mean", EncoderInfo(1, 1, 10))(TokenStates({1: hidden}, mask, mask, mask), "query")
    torch.testing.assert_close(made.vectors.squeeze(), hidden[0, 0, 0].float())


@every_pooler
def test_normalize_gives_length_one(name, make_states):
    """`normalize` scales vectors to length 1 and keeps their direction; it is off by default."""
    plain = registry.create("pooler", name, INFO)(make_states([3, 5]), "document").vectors
    unit = registry.create("pooler", name, INFO, normalize=True)(make_states([3, 5]), "document").vectors
    torch.testing.assert_close(unit.norm(dim=-1), torch.ones(2, 1))
    torch.testing.assert_close(unit * plain.norm(dim=-1, keepdim=True), plain)
    assert not torch.allclose(plain.norm(dim=-1), torch.ones(2, 1))


@every_pooler
def test_layer_is_asked_for_and_used(name, make_states):
    """`layer` changes which states are wanted and taken, counted from either end."""
    states = make_states([3, 5])
    pooler = registry.create("pooler", name, INFO, layer=1)
    assert pooler.needs.layers_of("document", INFO) == (1,)
    only = TokenStates({1: states.layers[1]}, states.attention_mask, states.input_ids, states.special_mask)
    assert not torch.equal(
        pooler(only, "query").vectors, registry.create("pooler", name, INFO)(states, "query").vectors
    )
    same = registry.create("pooler", name, INFO, layer=-3)
    assert torch.equal(pooler(only, "query").vectors, same(only, "query").vectors)


@every_pooler
def test_a_layer_that_the_encoder_lacks(name):
    """A layer that is not there is refused before anything is encoded, with those that are."""
    with pytest.raises(UnsupportedError, match=r"layer 4 was asked for.* to 3 "):
        registry.create("pooler", name, INFO, layer=4)
