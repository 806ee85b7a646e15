"""The loss of predicted tokens is the cross-entropy, computed in small parts."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import cross_entropy, linear

from retrievalkit.contracts import VocabularyHead
from retrievalkit.scoring import lexical
from retrievalkit.scoring.lexical import UNLABELLED, token_loss, token_losses


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    """Three positions at a time."""
    monkeypatch.setattr(lexical, "CPU_LOSS_TILE", 33)


def inputs(dtype=torch.float64, bias=True):
    torch.manual_seed(0)
    hidden = torch.randn(3, 5, 4, dtype=dtype, requires_grad=True)
    weight = torch.randn(11, 4, dtype=dtype, requires_grad=True)
    offset = torch.randn(11, dtype=dtype, requires_grad=True) if bias else None
    labels = torch.randint(0, 11, (3, 5))
    labels[0, :3] = labels[2] = UNLABELLED
    return hidden, weight, offset, labels


IDENTITY = VocabularyHead(lambda states: states, torch.eye(3))


@pytest.mark.parametrize("head", [IDENTITY, torch.nn.Identity()], ids=["fused", "plain"])
@pytest.mark.parametrize(
    ("labels", "loss"),
    [
        ([UNLABELLED, 0, UNLABELLED, 2], 0.753109),
        # The logits at a position predict the token behind it: of the ids 2, 0, 1, 2; and with the last one padded.
        ([0, 1, 2, UNLABELLED], 1.6717),
        ([0, 1, UNLABELLED, UNLABELLED], 1.387778),
        ([UNLABELLED] * 4, 0.0),
    ],
    ids=str,
)
def test_worked_numbers(head, labels, loss):
    logits = torch.tensor([[[0.1, 0.2, 0.7], [1.0, 0.0, -1.0], [0.0, 2.0, 0.0], [0.5, 0.5, 0.5]]])
    assert token_loss(logits, head, torch.tensor([labels])).item() == pytest.approx(loss, abs=1e-6)


@pytest.mark.parametrize("bias", [True, False])
def test_the_fused_loss_and_its_gradients_equal_the_plain_loss(bias):
    hidden, weight, offset, labels = inputs(bias=bias)
    wanted = [one for one in (hidden, weight, offset) if one is not None]
    fused = 3 * token_loss(hidden, VocabularyHead(torch.tanh, weight, offset), labels)
    rows = labels != UNLABELLED
    plain = 3 * cross_entropy(linear(torch.tanh(hidden), weight, offset)[rows], labels[rows])
    torch.testing.assert_close(fused, plain)
    torch.testing.assert_close(torch.autograd.grad(fused, wanted), torch.autograd.grad(plain, wanted))


def test_frozen_weights_get_no_gradient():
    hidden, weight, offset, labels = inputs()
    loss = token_loss(hidden, VocabularyHead(torch.tanh, weight.detach(), offset.detach()), labels)
    loss.backward()
    assert hidden.grad is not None
    assert weight.grad is offset.grad is None
    assert not token_loss(hidden.detach(), VocabularyHead(torch.tanh, weight.detach()), labels).requires_grad


def test_without_labels_loss_and_gradient_are_zero():
    hidden, weight, offset, labels = inputs()
    loss = token_loss(hidden, VocabularyHead(torch.tanh, weight, offset), torch.full_like(labels, UNLABELLED))
    loss.backward()
    assert loss.item() == 0.0
    assert not hidden.grad.any()


def test_several_losses_equal_separate_losses():
    hidden, weight, offset, labels = inputs()
    head, others = VocabularyHead(torch.tanh, weight, offset), labels.flip(0)
    pairs = {"one": (hidden, labels), "same": (2 * hidden, labels), "other": (hidden, others)}
    found = token_losses(head, pairs | {"none": (hidden, torch.full_like(labels, UNLABELLED))})
    assert {name: loss.item() for name, loss in found.items()} == {
        "none": 0.0,
        **{name: token_loss(states, head, own).item() for name, (states, own) in pairs.items()},
    }


def test_half_precision_is_close_and_gradients_are_float32():
    hidden, weight, offset, labels = inputs(torch.float32)
    exact = token_loss(hidden, VocabularyHead(torch.tanh, weight, offset), labels)
    expected = torch.autograd.grad(exact, (hidden, weight, offset))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = token_loss(hidden, VocabularyHead(torch.tanh, weight, offset), labels)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, exact, rtol=2e-2, atol=2e-2)
    for found, gradient in zip(torch.autograd.grad(loss, (hidden, weight, offset)), expected, strict=True):
        assert found.dtype == torch.float32
        torch.testing.assert_close(found, gradient, rtol=5e-2, atol=2e-2)
