"""The properties of a pretrainer's gradients, resumed training, saved encoder and options."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retrievalkit import registry
from retrievalkit.contracts import Pretrainer, Progress
from retrievalkit.errors import UnsupportedError
from retrievalkit.testing.option_effects import expect_effects
from retrievalkit.testing.pretrainer_cases import PRETRAINERS, PretrainerCase, Values, tensors_of
from retrievalkit.testing.properties import expect_close, expect_equal, fail


@PRETRAINERS.property(after=("value",))
def gradient(case: PretrainerCase) -> None:
    """Gradients reach every weight of the encoder on which the loss depends."""
    made = case.pretrainer()
    values = case.batch(made)
    total = case.loss(made, values).total
    if total.requires_grad:
        torch.autograd.backward(total)
    weights = dict(made.encoder.named_parameters())
    if all(one.grad is None for one in weights.values()):
        fail("no gradient reaches the encoder", expected="a gradient", found="none", method="forward")
    for name, one in weights.items():
        if one.requires_grad and (one.grad is None or not one.grad.any()):
            change = _change_by(case, made, values, one)
            if change > 1e-6 * abs(total.item()):
                found = f"none, where other values change the loss by {change:.3g}"
                problem = f"no gradient reaches '{name}' of the encoder"
                fail(problem, expected="a gradient", found=found, method="forward")


def _change_by(case: PretrainerCase, made: Pretrainer, values: Values, weight: Tensor) -> float:
    """How much the loss changes with other values of a weight."""
    before = weight.detach().clone()
    with torch.no_grad():
        first = float(case.loss(made, values).total)
        weight += 0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(6))
        second = float(case.loss(made, values).total)
        weight.copy_(before)
    return abs(second - first)


@PRETRAINERS.property(after=("value", "gradient"))
def parameters_trained(case: PretrainerCase) -> None:
    """Every parameter of its own, such as those of a decoder, gets a gradient."""
    made = case.pretrainer()
    own = {name: one for name, one in made.named_parameters() if not name.startswith("encoder.")}
    if not own:
        msg = "it has no parameters besides the encoder's."
        raise UnsupportedError(msg)
    torch.autograd.backward(case.loss(made, case.batch(made)).total)
    for name, one in own.items():
        if one.requires_grad and one.grad is None:
            problem = f"the parameter '{name}' gets no gradient, and is never trained"
            fail(problem, expected="a gradient", found="none", source=rf"self\.{name.partition('.')[0]}\b.*=")


@PRETRAINERS.property(after=("value", "gradient"))
def falls_under_training(case: PretrainerCase) -> None:
    """The loss of a batch falls when it is trained on."""
    made = case.pretrainer()
    values = case.batch(made)
    before, error = case.mean_loss(made, values)
    _train(made, values, range(25))
    after, other = case.mean_loss(made.eval(), values)
    if after > before - 0.02 * abs(before) + 2 * (error + other):
        problem = "25 steps of training on a batch do not make its loss fall"
        fail(problem, expected=f"below {before:.4g}", found=after, difference=after - before, method="forward")
    if after < 0 and made.counts(values):
        problem = "the loss is negative, which no mean over predicted tokens is: its sign is wrong"
        fail(problem, expected="0 or above", found=after, method="forward")


@PRETRAINERS.property(after=("value", "same_twice", "gradient"))
def resumed(case: PretrainerCase) -> None:
    """A training that was interrupted ends with the same bytes as one that was not."""
    through, first, second = case.pretrainer(), case.pretrainer(), case.pretrainer()
    values = case.batch(through)
    _train(through, values, range(4))
    state = _train(first, values, range(2))
    second.load_state_dict(first.state_dict())
    _train(second, values, range(2, 4), state)
    expected = through.state_dict()
    for name, one in second.state_dict().items():
        problem = f"'{name}' is another one after an interrupted training: it depends on what is not saved"
        expect_equal(problem, one, expected[name], method="forward")


@PRETRAINERS.property(after=("samples",))
def saved_and_loaded(case: PretrainerCase) -> None:
    """The encoder that is saved, and its vocabulary head if it is needed, are those that were trained."""
    made = case.pretrainer()
    with torch.no_grad():
        for one in made.parameters():
            one.add_(0.05 * torch.randn(one.shape, generator=torch.Generator().manual_seed(7)))
    encoder = copy.deepcopy(made.encoder)
    with tempfile.TemporaryDirectory() as folder:
        made.save(Path(folder))
        # Without `new_vocabulary_head`: the head has to be there.
        loaded = registry.create("encoder", "transformer", folder)
        loaded.prepare(made.needs)
    texts = encoder.collate([made.vocabulary.wrap(made.vocabulary.ordinary[-8:])], "document")
    with torch.no_grad():
        trained, *others = (one.eval()(texts, [one.info.layers]) for one in (encoder, made.encoder, loaded))
        for one in others:
            expect_close("saving and loading change the encoder", one.last, trained.last, method="save")
            if made.needs.vocabulary_head:
                logits = [states.head(states.last) for states in (one, trained)]
                expect_close("saving and loading change the vocabulary head", *logits, method="save")


@PRETRAINERS.property(after=("value", "same_twice", "draws_from_generator"), once=True)
def options_effective(case: PretrainerCase) -> None:
    """Every option changes samples, masks, the loss or its gradient."""
    expect_effects(registry.get("pretrainer", case.name), case.options, lambda options: _behaviour(case, options))


def _behaviour(case: PretrainerCase, options: Mapping[str, Any]) -> list[Any]:
    made = case.create(options).eval()
    values = case.batch(made)
    found = case.loss(made, values)
    if found.total.requires_grad:
        torch.autograd.backward(found.total)
    counts = [made.samples(one) for one in case.documents]
    gradients = [one.grad for one in made.parameters()]
    return [counts, *tensors_of(values).values(), found.total.detach(), sorted(found.terms), *gradients]


def _train(made: Pretrainer, values: Values, steps: range, state: dict[str, Any] | None = None) -> dict[str, Any]:
    """Train on a batch; returns the state of the optimiser."""
    optimizer = torch.optim.Adam(made.parameters(), lr=5e-3)
    if state is not None:
        optimizer.load_state_dict(copy.deepcopy(state))
    made.train()
    for number in steps:
        optimizer.zero_grad()
        torch.manual_seed(number)
        torch.autograd.backward(made(values, Progress(number, 0.0, 25)).total)
        optimizer.step()
    return copy.deepcopy(optimizer.state_dict())
