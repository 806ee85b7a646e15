"""The properties of a pooler's gradients, state and options."""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn

from retrievalkit import registry
from retrievalkit.contracts import SIDES, Pooler, Side
from retrievalkit.errors import UnsupportedError
from retrievalkit.model.retriever import Retriever
from retrievalkit.testing.option_effects import expect_effects
from retrievalkit.testing.pooler_cases import LONG, POOLERS, TEXTS, PoolerCase, objective, pooled, values_of
from retrievalkit.testing.properties import expect_close, expect_equal, fail


@POOLERS.property(after=("output", "finite"))
def gradient(case: PoolerCase) -> None:
    """Gradients reach the encoder, from each side and layer on which the output depends."""
    reached = False
    for side in SIDES:
        states = case.states(side, training=True)
        leaves = {number: one.requires_grad_() for number, one in states.layers.items()}
        total = objective(case.pooler().train()(states, side))
        if total.requires_grad:
            torch.autograd.backward(total)
        for number, leaf in leaves.items():
            has_gradient = leaf.grad is not None and bool(leaf.grad.any())
            reached = reached or has_gradient
            if not has_gradient and (change := _change_by(case, side, number)):
                fail(
                    f"{side}: no gradient reaches layer {number} of the encoder, on which the output depends",
                    expected="a gradient",
                    found=f"none, where another state changes the output by {change:.3g}",
                    method="forward",
                )
    if not reached:
        fail("no gradient reaches the encoder, from either side", method="forward")


def _change_by(case: PoolerCase, side: Side, layer: int) -> float:
    """How much the output of a side in training changes with slightly other states of one layer."""
    seen = []
    for size in (0.0, 1e-3):
        states = case.states(side, training=True)
        noise = torch.randn(states.layers[layer].shape, generator=torch.Generator().manual_seed(0))
        states.layers[layer].add_(size * noise)
        torch.manual_seed(0)
        seen.append(values_of(pooled(case.pooler().train(), states, side)))
    same_shape = seen[0].shape == seen[1].shape
    return (seen[1] - seen[0]).abs().max().item() if same_shape else float("inf")


@POOLERS.property(after=("output", "finite", "gradient"))
def parameters_trained(case: PoolerCase) -> None:
    """Every parameter gets a gradient."""
    pooler = _stirred(case.pooler()).train()
    parameters = {name: one for name, one in pooler.named_parameters() if one.requires_grad}
    if not parameters:
        msg = "it has no parameters."
        raise UnsupportedError(msg)
    for side in SIDES:
        states = case.states(side, training=True)
        for one in states.layers.values():
            one.requires_grad_()
        total = objective(pooler(states, side))
        if total.requires_grad:
            torch.autograd.backward(total)
    for name, one in parameters.items():
        if one.grad is None or not one.grad.any():
            found = "none" if one.grad is None else "0 everywhere"
            last = name.rpartition(".")[0] or name
            fail(
                f"the parameter '{name}' gets no gradient, and is never trained",
                expected="a gradient",
                found=found,
                source=rf"self\.{last.partition('.')[0]}\b.*=",
            )


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice"))
def indexed_as_scored(case: PoolerCase) -> None:
    """What is indexed, in eval mode, is what the loss scores, in training mode."""
    training = case.pooler().train()
    for module in training.modules():
        if isinstance(module, nn.Dropout | nn.Dropout1d | nn.AlphaDropout):
            module.p = 0.0
    if any(isinstance(one, nn.BatchNorm1d) for one in training.modules()):
        msg = "in training it depends on the batch (BatchNorm)."
        raise UnsupportedError(msg)
    for side in SIDES:
        seen = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            states = case.states(side, training=True)
            seen.append(pooled(copy.deepcopy(training), states, side).as_indexed())
        scored, other = (values_of(one) for one in seen)
        indexed = values_of(pooled(case.pooler(), case.states(side), side).as_indexed())
        if scored.shape != other.shape or not torch.equal(scored, other):
            msg = "in training it draws at random."
            raise UnsupportedError(msg)
        if scored.numel() != indexed.numel():
            # Such as by dropping tokens, which training weighs.
            msg = "it indexes other vectors than it trains."
            raise UnsupportedError(msg)
        problem = f"{side}: what is indexed is not what the loss scores"
        expect_close(problem, indexed, scored, method="forward")


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice"), once=True)
def saved_and_loaded(case: PoolerCase) -> None:
    """Saved and loaded it gives equal bytes, whatever the parameters have become."""
    retriever = case.retriever()
    _stirred(retriever.pooler)
    _expect_restored(retriever, "saving and loading change the output")


@POOLERS.property(after=("output", "finite", "no_draws_in_eval", "same_twice", "saved_and_loaded"), once=True)
def trained_state_saved(case: PoolerCase) -> None:
    """What training changes besides parameters, such as a running mean, is saved too."""
    retriever = case.retriever()
    retriever.pooler.train()
    with torch.no_grad():
        for side in (*SIDES, *SIDES):
            retriever.pooler(case.states(side, training=True), side)
    retriever.eval()
    _expect_restored(retriever, "state that training changes is not saved (a buffer that is not persistent?)")


@POOLERS.property(after=("output", "finite", "gradient", "saved_and_loaded"), once=True)
def separate_towers(case: PoolerCase) -> None:
    """It works with an encoder for each side: gradients reach both, and both are saved."""
    retriever = case.created(separate_towers=True)
    _expect_restored(retriever, "with an encoder for each side, saving and loading change the output")
    retriever.train()
    for side in SIDES:
        tower = retriever.tower(side)
        total = objective(retriever(tower.collate(tower.tokenize(TEXTS, side), side), side))
        if total.requires_grad:
            torch.autograd.backward(total)
        elif any(_change_by(case, side, number) for number in case.states(side, training=True).layers):
            fail(f"with an encoder for each side no gradient reaches that of the {side} side")


@POOLERS.property(after=("output", "no_draws_in_eval", "same_twice"), once=True)
def options_effective(case: PoolerCase) -> None:
    """Every option changes an output or a gradient."""
    expect_effects(type(case.pooler()), case.options, lambda options: _behaviour(case, options))


def _behaviour(case: PoolerCase, options: Mapping[str, Any]) -> list[Any]:
    """All that a pooler does with some options: what it needs, asks for, returns, and the gradients of it."""
    asked: list[str] = []
    with _recorded(registry.get("encoder", "transformer"), asked):
        pooler, tower = case.parts(options)
    found: list[Any] = [tuple(asked), pooler.default_loss]
    for training in (False, True):
        pooler.train(training)
        found.append(repr(pooler.needs))
        for side in SIDES:
            states = case.states_for(pooler, tower, side, [*TEXTS, LONG, ("", "")], training=training)
            leaves = [one.requires_grad_() for one in states.layers.values()]
            torch.manual_seed(0)
            made = pooler(states, side)
            total = objective(made)
            if total.requires_grad:
                torch.autograd.backward(total)
            tensors = [one if one is None else one.detach() for one in (made.vectors, made.weights, made.vector_mask)]
            found += [made.kept, repr(made.parts), *tensors, *(one.grad for one in leaves)]
    return [*found, *(one.grad for one in pooler.parameters())]


@contextmanager
def _recorded(encoder: Any, asked: list[str]) -> Iterator[None]:
    """While this lasts, the files that a pooler asks its encoder for are noted."""
    original = encoder.file

    def file(self: Any, name: str) -> Path | None:
        asked.append(name)
        found: Path | None = original(self, name)
        return found

    encoder.file = file
    try:
        yield
    finally:
        encoder.file = original


def _stirred(pooler: Pooler) -> Pooler:
    """The pooler, its parameters changed a little: one that is loaded may start as this one did."""
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for one in pooler.parameters():
            one.add_(0.1 * torch.randn(one.shape, generator=generator))
    return pooler


def _expect_restored(retriever: Retriever, problem: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        retriever.save(folder)
        # With another seed, so that what is drawn and not stored is found missing.
        loaded = Retriever.load(folder, device="cpu", seed=1)
    for side in SIDES:
        expected, found = (values_of(one.encode(TEXTS, side)) for one in (retriever, loaded))
        expect_equal(f"{side}: {problem}", found, expected, source=r"register_buffer|nn\.Parameter|self\.\w+ = torch")
