"""Attention with dropout on a CPU equals torch's, and in bf16 the plain expression up to rounding."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional

from dropout_masks import drop_mask, seeded
from retrievalkit.models.encoders import attention as module
from retrievalkit.models.encoders.attention import attention


class Layer(nn.Module):
    is_causal = False


def inputs(*shape, **options):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(*shape, generator=generator, **options) for _ in range(3)]


def masks(form, texts, tokens, dtype):
    """Return a mask in a form of transformers, and as an additive mask; the second text has three tokens."""
    keep = torch.ones(texts, 1, tokens, tokens, dtype=torch.bool)
    keep[1, :, :, 3:] = False
    added = torch.zeros(keep.shape, dtype=dtype).masked_fill(~keep, -torch.inf)
    one_row = keep[:, :, :1].expand(-1, -1, tokens, -1)
    return {"none": None, "bool": keep, "one row": one_row, "added": added}[form], added if form != "none" else 0.0


@pytest.mark.parametrize("form", ["none", "bool", "added"])
def test_attention_is_the_softmax_of_inner_products_with_dropout(form):
    query, key, value = inputs(2, 4, 5, 8, dtype=torch.float64)
    mask, added = masks(form, 2, 5, torch.float64)
    output, weights = seeded(attention, Layer(), query, key, value, mask, dropout=0.25)
    assert weights is None

    shares = (query @ key.mT / 8**0.5 + added).softmax(-1)
    shares = shares.masked_fill(seeded(drop_mask, shares.shape, 0.25), 0.0) / 0.75
    torch.testing.assert_close(output, (shares @ value).transpose(1, 2))


@pytest.mark.parametrize("rate", [0.0, 0.25])
def test_attention_without_dropout_or_with_a_causal_mask_equals_torchs(rate):
    query, key, value = inputs(2, 4, 5, 8)
    layer = Layer()
    layer.is_causal = bool(rate)
    output, _ = seeded(attention, layer, query, key, value, None, dropout=rate)
    expected = seeded(functional.scaled_dot_product_attention, query, key, value, dropout_p=rate, is_causal=bool(rate))
    torch.testing.assert_close(output, expected.transpose(1, 2))


@pytest.mark.parametrize("form", ["none", "bool", "one row", "added"])
@pytest.mark.parametrize("group", [1, 1 << 19], ids=["text by text", "all texts at once"])
def test_bf16_attention_and_its_gradients_are_near_the_plain_expression(form, group, monkeypatch):
    """The tolerance suits bf16; a wrong sign or factor would exceed it by far."""
    monkeypatch.setattr(module, "_GROUP", group)
    query, key, value, outer = inputs(3, 2, 16, 8) + inputs(3, 16, 2, 8)[:1]
    mask, added = masks(form, 3, 16, torch.float32)
    narrow = [tensor.bfloat16().requires_grad_() for tensor in (query, key, value)]
    output, _ = seeded(attention, Layer(), *narrow, mask, dropout=0.25)
    output.backward(outer.bfloat16())

    # A mask for each group of texts, in order.
    size = min(3, -(-group // 512))
    torch.manual_seed(0)
    kept = 1 - torch.cat([drop_mask((size, 2, 16, 16), 0.25).float() for _ in range(3 // size)])
    wide = [tensor.detach().float().requires_grad_() for tensor in narrow]
    shares = (wide[0] @ wide[1].mT / 8**0.5 + added).softmax(-1) * kept / 0.75
    expected = (shares @ wide[2]).transpose(1, 2)
    expected.backward(outer)
    torch.testing.assert_close(output.float(), expected, atol=0.03, rtol=0.03)
    for tensor, other in zip(narrow, wide, strict=True):
        torch.testing.assert_close(tensor.grad.float(), other.grad, atol=0.05, rtol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_query_without_a_key_has_finite_gradients(dtype):
    query, key, value = (tensor.requires_grad_() for tensor in inputs(2, 4, 5, 8, dtype=dtype))
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[1, :, 3:] = False
    output, _ = attention(Layer(), query, key, value, mask, dropout=0.1)
    output[:, :3].square().sum().backward()
    assert all(tensor.grad.isfinite().all() for tensor in (query, key, value))


def test_bf16_attention_depends_on_torchs_random_state():
    query, key, value = inputs(2, 2, 16, 8, dtype=torch.bfloat16)
    first, other, again = (
        seeded(attention, Layer(), query, key, value, None, dropout=0.5, seed=seed)[0] for seed in (1, 2, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("form", ["none", "bool", "added"])
@pytest.mark.parametrize("tokens", [15, 16, 17])
def test_padding_of_keys_to_whole_tiles_changes_nothing(form, tokens):
    query, key, value = inputs(3, 2, tokens, 8, dtype=torch.bfloat16)
    mask, added = masks(form, 3, tokens, torch.bfloat16)
    output, _ = attention(Layer(), query, key, value, mask)
    shares = (query.float() @ key.float().mT / 8**0.5 + added).softmax(-1)
    torch.testing.assert_close(output.float(), (shares @ value.float()).transpose(1, 2), atol=0.02, rtol=0.02)


def test_only_torchs_fused_attention_is_replaced():
    for kind, expected in (("sdpa", module.ATTENTION), ("eager", "eager")):
        config = transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9)
        model = transformers.BertModel._from_config(config, attn_implementation=kind)
        module.use_fast_attention(model)
        assert model.config._attn_implementation == expected


def test_position_biases_of_t5_get_gradients(tiny_t5):
    model = transformers.AutoModelForTextEncoding.from_pretrained(tiny_t5).train()
    module.use_fast_attention(model)
    states = model(input_ids=torch.tensor([[5, 6, 7, 8]])).last_hidden_state
    torch.autograd.backward((states * torch.randn(states.shape[-1])).sum())
    bias = model.get_submodule("encoder.block.0.layer.0.SelfAttention.relative_attention_bias").weight
    assert bias.grad is not None
    assert bias.grad.any()
