"""Products in int8: the arithmetic that is promised, only where asked for, and right on older processors too."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.nn import functional

from retrievalkit.errors import UnsupportedError
from retrievalkit.models.encoders import int8, packed
from retrievalkit.models.encoders.packed import use_packed_layers
from retrievalkit.models.retriever import Retriever

needs_int8 = pytest.mark.skipif(not int8.works(), reason="torch has no products in int8 for this processor")


def reference(states, weight, bias, largest=127):
    """The equations at the top of the module, in float64."""
    x, w = states.double(), weight.double()
    low, high = x.amin(1, keepdim=True), x.amax(1, keepdim=True)
    scale = (high - low) / 255
    size = w.abs().amax(1, keepdim=True) / largest
    q, r = torch.floor((x - low) / scale + 0.5), (w / size).round()
    return (low + scale * q) @ (size * r).T + bias.double()


def linear(bias=True):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(48, 32, bias=bias))
    use_packed_layers(layer)
    return layer[0].eval()


def in_int8(function, *arguments):
    with torch.inference_mode(), int8.multiplied():
        return function(*arguments)


@needs_int8
def test_a_product_with_worked_numbers():
    """The token 0, 2.55, 1.02 has steps of 0.01: 0, 255, 102; the weights 127, -127, 1 are whole."""
    weights = int8.quantised(torch.tensor([[127.0, -127.0, 1.0]]), torch.tensor([0.5]))
    found = int8.product(torch.tensor([[0.0, 2.55, 1.02]]), weights)
    torch.testing.assert_close(found, torch.tensor([[-2.55 * 127 + 1.02 + 0.5]]))


@needs_int8
@pytest.mark.parametrize("bias", [True, False])
def test_a_product_is_that_of_the_equations(bias):
    layer, states = linear(bias), torch.randn(37, 48) * torch.logspace(-3, 3, 37)[:, None] + 0.3
    made = in_int8(layer, states.view(1, 37, 48))
    assert made.shape == (1, 37, 32)
    expected = reference(states, layer.weight, layer.bias if bias else torch.zeros(32), int8._largest())
    torch.testing.assert_close(made[0].double(), expected, rtol=2e-3, atol=1e-5)


@needs_int8
@pytest.mark.parametrize("value", [0.0, 3.5, -1e-20, 1e20])
def test_a_token_of_equal_numbers_keeps_them(value):
    layer, states = linear(), torch.full((2, 48), value)
    narrow = int8.quantised(layer.weight, layer.bias)
    expected = value * narrow.sums + narrow.bias
    torch.testing.assert_close(in_int8(layer, states)[0], expected, rtol=1e-4, atol=1e-6)


@needs_int8
@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_what_is_not_finite_stays_so(number):
    states = torch.randn(2, 48)
    states[1, 3] = number
    made = in_int8(linear(), states)
    assert made[0].isfinite().all()
    assert not made[1].isfinite().any()


@needs_int8
def test_tokens_that_are_shared_are_quantised_once(monkeypatch):
    layer, states = linear(), torch.randn(5, 48)
    expected = in_int8(layer, states)
    with int8.same_tokens():
        first = in_int8(layer, states)
        monkeypatch.setattr(torch, "maximum", None)  # which quantising calls
        assert torch.equal(in_int8(layer, states), first)
        assert torch.equal(first, expected)
    monkeypatch.undo()
    assert not torch.equal(in_int8(layer, states + 1), expected)


@needs_int8
def test_a_token_does_not_depend_on_its_batch():
    layer, states = linear(), torch.randn(9, 48)
    states[4] *= 1000
    torch.testing.assert_close(in_int8(layer, states)[:2], in_int8(layer, states[:2]), rtol=1e-5, atol=1e-6)


def test_elsewhere_the_layers_are_torchs_own():
    layer, states = linear(), torch.randn(5, 48)
    expected = functional.linear(states, layer.weight, layer.bias)
    with torch.inference_mode():
        assert torch.equal(layer(states), expected)
    with int8.multiplied():
        assert torch.equal(layer(states), expected)


_ON_OLDER = """
import sys, torch
sys.path.insert(0, sys.argv[1])
import test_int8 as tests
torch.manual_seed(0)
layer, states = tests.linear(), torch.randn(64, 48)
layer.weight.data[:, :40] = 0.5   # pairs of large products, which 16 bits do not hold
states[:, 8:40] = 3.0
made, largest = tests.in_int8(layer, states), tests.int8._largest()
expected = tests.reference(states, layer.weight.detach(), layer.bias.detach(), largest)
print(largest, float((made - expected).abs().max() / expected.abs().max()))
"""


@needs_int8
@pytest.mark.parametrize(
    ("instructions", "largest"), [pytest.param("AVX512_CORE_VNNI", "127", marks=pytest.mark.slow), ("AVX2", "63")]
)
def test_older_processors_multiply_right(instructions, largest):
    """The library of the products is held to the instructions of processors without AMX, and without VNNI."""
    if not torch.cpu._is_vnni_supported():
        pytest.skip("this processor lacks VNNI itself")
    environment = os.environ | {"ONEDNN_MAX_CPU_ISA": instructions}
    words = [sys.executable, "-c", _ON_OLDER, os.path.dirname(__file__)]
    found = subprocess.run(words, env=environment, capture_output=True, text=True, check=True, timeout=120)
    kept, error = found.stdout.split()
    assert kept == largest
    assert float(error) < 1e-5


@needs_int8
def test_a_model_is_nearer_to_float32_than_two_decimal_digits(tiny_model):
    retriever = Retriever.create(tiny_model, pooler="mean").eval()
    texts = [("", "peru"), ("A title", "the capital of peru is lima " * 9)]
    exact, made = (retriever.encode(texts, "document", precision=name).vectors for name in ("fp32", "int8"))
    assert not torch.equal(made, exact)
    assert functional.cosine_similarity(made, exact, dim=-1).min() > 0.995


def test_without_such_products_it_is_refused(tiny_model, monkeypatch):
    retriever = Retriever.create(tiny_model, pooler="mean").eval()
    monkeypatch.setattr("retrievalkit.models.encoders.transformer.works", lambda: False)
    with pytest.raises(UnsupportedError, match=r"no products in int8.*fp32"):
        retriever.encode([("", "peru")], "query", precision="int8")


def test_the_norms_are_float32(tiny_model):
    with torch.inference_mode(), int8.multiplied():
        assert not packed.in_bf16(torch.ones(2, 3))
