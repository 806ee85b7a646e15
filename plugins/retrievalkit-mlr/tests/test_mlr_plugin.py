"""What the plugin registers, and that looking at it imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import Loss, Pooler
from retrievalkit.errors import OptionError, UnsupportedError

POOLERS = ["multi_layer", "self_contrastive", "layer_average", "scalar_mix"]
every_pooler = pytest.mark.parametrize("name", POOLERS)


def test_everything_is_registered():
    """The four poolers and the loss are found by name, brought by this distribution."""
    for name in POOLERS:
        assert registry.component("pooler", name).distribution == "retrievalkit-mlr"
        assert issubclass(registry.get("pooler", name), Pooler)
    assert issubclass(registry.get("loss", "self_contrastive"), Loss)


def test_the_plugin_is_cold():
    """Importing the plugin and listing names imports no torch."""
    code = (
        "import sys, retrievalkit_mlr; from retrievalkit import registry; registry.names('pooler');"
        "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'numpy')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@every_pooler
def test_every_option_is_described(name):
    """`rkit plugins show` has a sentence for each option."""
    options = registry.options(registry.get("pooler", name))
    assert set(options) == {"layers", "tokens", "token", "normalize"}
    assert all(option.description for option in options.values())
    assert all(one.description for one in registry.options(registry.get("loss", "self_contrastive")).values())


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
