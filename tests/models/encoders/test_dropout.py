"""Fast dropout with looked-up masks: probability, expectation, gradients and reproducibility."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dropout_masks import drop_mask, seeded
from retrievalkit.models.encoders import dropout


@pytest.mark.parametrize("probability", [0.1, 0.5, 0.9])
def test_values_are_dropped_with_the_probability(probability):
    share = seeded(drop_mask, (250_001,), probability).float().mean().item()
    assert abs(share - probability) < 5 * (probability * (1 - probability) / 250_001) ** 0.5


def test_all_parts_of_a_long_mask_have_the_probability():
    mask = seeded(drop_mask, (3, dropout._LONGEST + 5), 0.25).float()
    for part in mask.split(dropout._LONGEST // 2, dim=1):
        assert part.mean().item() == pytest.approx(0.25, abs=5 * (0.1875 / part.numel()) ** 0.5)


def test_masks_depend_on_torchs_random_state():
    state = torch.get_rng_state()
    first = drop_mask((1000,), 0.5)
    second = drop_mask((1000,), 0.5)
    torch.set_rng_state(state)
    assert torch.equal(drop_mask((1000,), 0.5), first)
    assert not torch.equal(first, second)


def test_kept_values_are_scaled_to_keep_the_mean():
    layer = dropout.FastDropout(0.3)
    dropped = seeded(layer, torch.ones(200_000))
    assert dropped.unique().tolist() == pytest.approx([0.0, 1 / 0.7], rel=1e-4)
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize("probability", [0.0, 1.0])
def test_probabilities_0_and_1_are_exact(probability):
    assert torch.equal(dropout.FastDropout(probability)(torch.ones(10)), torch.full((10,), 1 - probability))


def test_only_kept_values_get_gradients():
    values = torch.ones(1000, requires_grad=True)
    dropped = dropout.FastDropout(0.5)(values)
    dropped.sum().backward()
    assert torch.equal(values.grad, dropped.detach())


def test_dropout_modules_are_replaced_except_subclasses():
    class Special(nn.Dropout):
        pass

    model = nn.Sequential(nn.Dropout(0.1), nn.Sequential(nn.Dropout(0.2)), Special(0.3))
    dropout.use_fast_dropout(model)
    assert [type(module) for module in (model[0], model[1][0], model[2])] == [
        dropout.FastDropout,
        dropout.FastDropout,
        Special,
    ]
    assert (model[0].p, model[1][0].p) == (0.1, 0.2)
