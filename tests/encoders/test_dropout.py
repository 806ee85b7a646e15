"""Dropout on a CPU: the masks are as frequent and as reproducible as torch's, and attention with them is attention."""

from __future__ import annotations

import pytest
import torch
import transformers
from torch import nn

from retrievalkit.encoders.dropout import FastDropout, attention, drop_mask, keep_scale, use_fast_dropout


def test_masks_have_the_probability_asked_for():
    torch.manual_seed(0)
    mask = drop_mask((1000, 1000), 0.1)
    assert mask.shape == (1000, 1000)
    # Four standard deviations of a million draws.
    assert float(mask.float().mean()) == pytest.approx(0.1, abs=4 * (0.1 * 0.9 / 1e6) ** 0.5)


def test_masks_are_independent_between_neighbours():
    torch.manual_seed(0)
    mask = drop_mask((400_000,), 0.5).float() - 0.5
    for distance in (1, 2, 3, 4):
        assert abs(float((mask[distance:] * mask[:-distance]).mean())) < 0.25 * 4 / 400_000**0.5


def test_masks_follow_torchs_random_state():
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first, second = drop_mask((50,), 0.5), drop_mask((50,), 0.5)
    torch.set_rng_state(state)
    assert torch.equal(drop_mask((50,), 0.5), first)
    assert not torch.equal(first, second)


def test_kept_values_are_scaled_so_that_the_mean_stays():
    torch.manual_seed(0)
    dropout = FastDropout(0.3).train()
    values = dropout(torch.ones(1_000_000))
    assert float(values.mean()) == pytest.approx(1.0, abs=0.005)
    dropped, kept = sorted(values.unique().tolist())
    assert dropped == 0.0
    assert kept == pytest.approx(1 / 0.7, rel=1e-4)


def test_nothing_is_dropped_in_eval_mode_or_with_probability_zero():
    values = torch.randn(10)
    assert torch.equal(FastDropout(0.5).eval()(values), values)
    assert torch.equal(FastDropout(0.0).train()(values), values)


def test_gradients_flow_through_kept_values_only():
    torch.manual_seed(0)
    values = torch.randn(1000, requires_grad=True)
    dropped = FastDropout(0.5).train()(values)
    dropped.sum().backward()
    assert torch.equal(values.grad == 0, dropped == 0)


@pytest.mark.parametrize("masked", [False, True])
def test_attention_with_dropout_is_softmax_attention_with_a_mask(masked):
    """Against the plain expression, with the same mask drawn again."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 5, 4, dtype=torch.float64) for _ in range(3))
    mask = torch.ones(2, 1, 5, 5, dtype=torch.bool)
    mask[1, :, :, 3:] = False
    state = torch.get_rng_state()
    found, _ = attention(nn.Module(), query, key, value, mask if masked else None, dropout=0.4, scaling=0.7)
    torch.set_rng_state(state)
    scores = torch.einsum("bhid,bhjd->bhij", query, key) * 0.7
    if masked:
        scores[~mask.expand_as(scores)] = -torch.inf
    weights = scores.softmax(-1)
    dropped = drop_mask(weights.shape, 0.4)
    weights = weights * ~dropped * keep_scale(0.4)
    expected = torch.einsum("bhij,bhjd->bihd", weights, value)
    torch.testing.assert_close(found, expected)


def test_a_model_without_dropout_gives_the_same_states_and_gradients():
    config = transformers.BertConfig(
        vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    torch.manual_seed(0)
    plain = transformers.BertModel(config)
    fast = transformers.BertModel(config)
    fast.load_state_dict(plain.state_dict())
    use_fast_dropout(fast)
    assert sum(isinstance(module, FastDropout) for module in fast.modules()) > 0
    ids, mask = torch.randint(0, 50, (3, 7)), torch.ones(3, 7, dtype=torch.long)
    mask[1, 4:] = 0
    for model in (plain.eval(), fast.eval()):
        model(ids, mask).last_hidden_state[:, 0].square().sum().backward()
    torch.testing.assert_close(plain(ids, mask).last_hidden_state, fast(ids, mask).last_hidden_state)
    torch.testing.assert_close(
        plain.embeddings.word_embeddings.weight.grad, fast.embeddings.word_embeddings.weight.grad
    )
