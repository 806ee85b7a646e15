"""Norms that keep hidden states in bf16, only in mixed precision, with a result near that of float32."""

from __future__ import annotations

import torch
import transformers
from torch.nn import functional

from retrievalkit.models.encoders.narrow_norms import use_narrow_norms
from retrievalkit.models.precision import autocast

CPU = torch.device("cpu")
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}


def bert():
    torch.manual_seed(0)
    return transformers.BertModel(transformers.BertConfig(**SIZES, vocab_size=100), add_pooling_layer=False).eval()


def test_a_bert_in_bf16_is_near_float32_and_equal_in_float32():
    ids, plain, model = torch.randint(0, 100, (4, 20)), bert(), bert()
    use_narrow_norms(model)
    with torch.inference_mode():
        expected = plain(ids).last_hidden_state
        assert torch.equal(model(ids).last_hidden_state, expected)
        with autocast("bf16", CPU):
            states = model(ids).last_hidden_state
    assert states.dtype == torch.bfloat16
    assert functional.cosine_similarity(states.float(), expected, dim=-1).min() > 0.9995


def gradients(model, ids, precision):
    """Return the dtype of the states, and the gradients of all weights in a single vector."""
    with autocast(precision, CPU):
        states = model(ids).last_hidden_state
    states.float().square()[:, 0, :8].sum().backward()
    return states.dtype, torch.cat([weight.grad.flatten() for weight in model.parameters()])


def test_gradients_in_bf16_are_near_those_in_float32():
    ids, plain, model, exact = torch.randint(0, 100, (4, 20)), bert(), bert(), bert()
    use_narrow_norms(model)
    dtype, narrow = gradients(model, ids, "bf16")
    assert dtype == torch.bfloat16
    _, expected = gradients(plain, ids, "fp32")
    assert functional.cosine_similarity(narrow, expected, dim=0) > 0.999
    use_narrow_norms(exact)
    assert torch.equal(gradients(exact, ids, "fp32")[1], expected)


def test_states_stay_float32_in_models_with_unnormalised_sums():
    model = transformers.ModernBertModel(transformers.ModernBertConfig(**SIZES, vocab_size=100, pad_token_id=0))
    use_narrow_norms(model)
    with autocast("bf16", CPU):
        assert model(torch.randint(0, 100, (2, 9))).last_hidden_state.dtype == torch.float32
