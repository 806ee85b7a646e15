"""Dropout whose masks are looked up: right in its probability and expectation, and repeated by a seed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dropout_masks import drop_mask, seeded
from retrievalkit.models.encoders import dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_the_share_of_dropped_values_is_the_probability(probability):
    share = seeded(drop_mask, (250_001,), probability).float().mean().item()
    assert abs(share - probability) < 5 * (probability * (1 - probability) / 250_001) ** 0.5


def test_neighbouring_values_are_dropped_independently():
    mask = seeded(drop_mask, (400_000,), 0.5).float() * 2 - 1
    for distance in (1, 2, 3, 4):
        assert abs((mask[:-distance] * mask[distance:]).mean().item()) < 5 / 400_000**0.5


def test_a_mask_longer_than_what_is_looked_up_at_once_is_right_in_all_its_parts():
    mask = seeded(drop_mask, (3, dropout._LONGEST + 5), 0.25).float()
    for part in mask.split(dropout._LONGEST // 2, dim=1):
        assert part.mean().item() == pytest.approx(0.25, abs=5 * (0.1875 / part.numel()) ** 0.5)


def test_masks_follow_from_torchs_random_state():
    state = torch.get_rng_state()
    first = drop_mask((1000,), 0.5)
    second = drop_mask((1000,), 0.5)
    torch.set_rng_state(state)
    assert torch.equal(drop_mask((1000,), 0.5), first)
    assert not torch.equal(first, second)


def test_kept_values_are_scaled_so_that_the_mean_stays():
    layer = dropout.FastDropout(0.3)
    made = seeded(layer, torch.ones(200_000))
    assert made.unique().tolist() == pytest.approx([0.0, 1 / 0.7], rel=1e-4)
    assert made.mean().item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_dropping_nothing_or_all_is_exact(probability):
    assert torch.equal(dropout.FastDropout(probability)(torch.ones(10)), torch.full((10,), 1 - probability))


def test_a_probability_that_rounds_to_1_still_keeps_something():
    made = seeded(dropout.FastDropout(1 - 1e-7), torch.ones(1 << 20))
    assert made.isfinite().all()
    assert 0 < made.count_nonzero() < 100


def test_gradients_pass_where_values_do():
    values = torch.ones(1000, requires_grad=True)
    made = dropout.FastDropout(0.5)(values)
    made.sum().backward()
    assert torch.equal(values.grad, made.detach())


def test_a_models_dropout_is_replaced_and_its_own_subclasses_are_not():
    class Special(nn.Dropout):
        pass

    model = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Dropout(0.2)), Special(0.3))
    dropout.use_fast_dropout(model)
    assert [type(one) for one in (model[0], model[1][0], model[2])] == [
        dropout.FastDropout,
        dropout.FastDropout,
        Special,
    ]
    assert (model[0].p, model[1][0].p) == (0.1, 0.2)
