"""Layers that compute in bf16 throughout: only where told to, near the float32 result, and never with old weights."""

from __future__ import annotations

import copy

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

from retrievalkit.models.encoders import packed
from retrievalkit.models.encoders.packed import NarrowLayerNorm, PackedLinear, use_packed_layers
from retrievalkit.models.precision import autocast

CPU = torch.device("cpu")

needs_packing = pytest.mark.skipif(not packed._packing_works(), reason="this processor or torch has no packed products")


def bf16(function, *arguments):
    with torch.inference_mode(), autocast("bf16", CPU):
        return function(*arguments)


def linear(bias=True):
    torch.manual_seed(0)
    layer = nn.Sequential(nn.Linear(48, 32, bias=bias))
    use_packed_layers(layer)
    return layer[0].eval()


def bert():
    torch.manual_seed(0)
    config = transformers.BertConfig(
        hidden_size=64, num_hidden_layers=2, num_attention_heads=2, intermediate_size=128, vocab_size=100
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()


@needs_packing
@pytest.mark.parametrize("bias", [True, False])
def test_a_packed_product_is_the_bf16_product(bias):
    layer, states = linear(bias), torch.randn(3, 5, 48)
    made = bf16(layer, states)
    assert made.dtype == torch.bfloat16
    narrow = [one if one is None else one.bfloat16().float() for one in (states, layer.weight, layer.bias)]
    torch.testing.assert_close(made.float(), functional.linear(*narrow), atol=0.01, rtol=0.01)


@pytest.mark.parametrize("context", ["float32", "gradients", "another device's precision"])
def test_elsewhere_the_layers_are_torchs_own(context):
    layer, norm, states = linear(), NarrowLayerNorm(48), torch.randn(5, 48)
    if context == "gradients":
        with autocast("bf16", CPU):
            assert layer(states).requires_grad
            assert norm(states).dtype == torch.float32
    elif context == "float32":
        with torch.inference_mode():
            assert torch.equal(layer(states), functional.linear(states, layer.weight, layer.bias))
    else:
        with torch.inference_mode(), torch.autocast("cuda", dtype=torch.bfloat16, enabled=False):
            assert norm(states).dtype == torch.float32


def double(layer, how):
    with torch.no_grad():
        if how == "in place":
            layer.weight.mul_(2)
        elif how == "loaded":
            layer.load_state_dict({name: value * 2 for name, value in layer.state_dict().items()})
        elif how == "another tensor":
            layer.weight = nn.Parameter(layer.weight * 2)
        elif how == "the bias":
            layer.bias.add_(1)
        else:
            layer.train().weight.data *= 2  # torch does not count this change
            layer.eval()


@pytest.mark.parametrize("how", ["in place", "loaded", "another tensor", "the bias", "trained"])
@needs_packing
def test_weights_that_changed_are_packed_again_and_never_saved_or_copied(how):
    layer, states = linear(), torch.randn(5, 48)
    before = bf16(layer, states)
    double(layer, how)
    after = bf16(layer, states)
    assert not torch.equal(before, after)
    fresh = copy.deepcopy(layer)
    assert fresh._packed is None
    assert torch.equal(after, bf16(fresh, states))
    assert sorted(layer.state_dict()) == ["bias", "weight"]


@needs_packing
def test_a_bert_is_nearer_to_float32_than_two_decimal_digits_and_gelu_is_taken_once():
    ids, plain, model = torch.randint(0, 100, (4, 20)), bert(), bert()
    use_packed_layers(model)
    assert isinstance(model.encoder.layer[0].attention.self.query, PackedLinear)
    with torch.inference_mode():
        expected = plain(ids).last_hidden_state
        assert torch.equal(model(ids).last_hidden_state, expected)
    made = bf16(model, ids).last_hidden_state
    assert made.dtype == torch.bfloat16
    assert functional.cosine_similarity(made.float(), expected, dim=-1).min() > 0.9995


def gradients(model, ids, precision):
    """Of the embeddings and of all weights, in one vector."""
    with autocast(precision, CPU):
        states = model(ids).last_hidden_state
    states.float().square()[:, 0, :8].sum().backward()
    return states.dtype, torch.cat([one.grad.flatten() for one in model.parameters()])


def test_training_keeps_bf16_between_the_layers_of_a_bert_and_its_gradients_point_where_those_of_float32_do():
    ids, plain, model = torch.randint(0, 100, (4, 20)), bert(), bert()
    use_packed_layers(model)
    dtype, made = gradients(model, ids, "bf16")
    assert dtype == torch.bfloat16
    _, expected = gradients(plain, ids, "fp32")
    assert functional.cosine_similarity(made, expected, dim=0) > 0.999
    exact = bert()
    use_packed_layers(exact)
    assert torch.equal(gradients(exact, ids, "fp32")[1], expected)


def test_training_keeps_float32_where_sums_of_hidden_states_are_not_normalised():
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
    config = transformers.ModernBertConfig(**sizes, vocab_size=100, pad_token_id=0)
    model = transformers.ModernBertModel(config)
    use_packed_layers(model)
    with autocast("bf16", CPU):
        assert model(torch.randint(0, 100, (2, 9))).last_hidden_state.dtype == torch.float32


def test_without_packed_products_a_model_computes_as_before(monkeypatch):
    monkeypatch.setattr(packed, "_packing_works", lambda: False)
    ids, plain, model = torch.randint(0, 100, (4, 20)), bert(), bert()
    use_packed_layers(model)
    assert torch.equal(bf16(model, ids).last_hidden_state, bf16(plain, ids).last_hidden_state)


def test_an_activation_other_than_the_exact_gelu_stays():
    config = bert().config
    config.hidden_act = "gelu_new"
    model = transformers.BertModel(config)
    use_packed_layers(model)
    assert not model.encoder.layer[0].intermediate.dense.gelu
