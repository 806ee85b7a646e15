"""What the plugin registers, and that looking at it imports nothing heavy."""

from __future__ import annotations

import pytest
import torch

from retrievalkit import registry
from retrievalkit.errors import OptionError, UnsupportedError

POOLERS = ["multi_layer", "self_contrastive", "layer_average", "scalar_mix"]
every_pooler = pytest.mark.parametrize("name", POOLERS)


@every_pooler
@pytest.mark.parametrize("given", ["2,4", [4, 2], "-1,-3", (2, -1)])
def test_layers_in_any_order_and_form(name, given, info, make_states):
    """Layers may come as text or list, from either end, in any order: the last layer is first inside."""
    states = make_states([4, 6])
    made = registry.create("pooler", name, info, layers=given)
    expected = registry.create("pooler", name, info, layers=[2, 4])(states, "document").vectors
    assert made.source.layers == (4, 2)
    assert torch.equal(made(states, "document").vectors, expected)


@every_pooler
def test_default_is_the_papers_pair(name, info):
    """Without options, layers L-2 and L: 10 and 12 of 12."""
    assert registry.create("pooler", name, info).source.layers == (4, 2)


@every_pooler
@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layers": "2,9"}, UnsupportedError, "layer 9 .* 0 .embeddings. to 4"),
        ({"layers": "-9,-1"}, UnsupportedError, "layer -9 "),
        ({"layers": "4,-1"}, OptionError, "layers=4,-1 names one layer twice"),
        ({"layers": ""}, OptionError, "names no layer"),
        ({"layers": "2,4", "tokens": 8}, OptionError, "layers=2,4 and tokens=8 are both set"),
        ({"tokens": 0}, OptionError, "tokens is 0"),
        ({"tokens": "some"}, OptionError, "'some'"),
        ({"token": "second"}, OptionError, "'second'"),
        ({"layer": 3}, OptionError, "did you mean 'layers'"),
    ],
)
def test_wrong_options(name, options, error, message, info):
    """What cannot be is refused when the pooler is made, with the value and what is known."""
    with pytest.raises(error, match=message):
        registry.create("pooler", name, info, **options)


def test_self_contrastive_wants_the_last_layer(info):
    """Layers without the last one leave nothing to keep; the message shows how to add it."""
    with pytest.raises(UnsupportedError, match=r"last layer \(4\).*layers=1,2,-1"):
        registry.create("pooler", "self_contrastive", info, layers="2,1")


def test_scalar_mix_wants_a_number_of_vectors(info):
    """As many weights as tokens cannot be learned."""
    with pytest.raises(OptionError, match="tokens=all"):
        registry.create("pooler", "scalar_mix", info, tokens="all")


@pytest.mark.parametrize(("option", "value"), [("temperature", 0), ("temperature", -1), ("regularization", -0.1)])
def test_wrong_loss_options(option, value):
    """Values that make no loss are refused by name."""
    with pytest.raises(OptionError, match=option):
        registry.create("loss", "self_contrastive", **{option: value})
