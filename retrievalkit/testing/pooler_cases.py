"""Poolers with tiny encoders, what these give them, and what is expected of every output."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from retrievalkit import registry
from retrievalkit.contracts import SIDES, Encoder, Needs, Pooler, Representation, Side, Text, TokenStates
from retrievalkit.errors import UnsupportedError
from retrievalkit.model.retriever import Retriever
from retrievalkit.testing.models import kit_models
from retrievalkit.testing.option_effects import required_values
from retrievalkit.testing.properties import Kit, fail
from retrievalkit.testing.token_states import copied

TEXTS: tuple[Text, ...] = (
    ("", "what is the capital of france"),
    ("Peru", "The seat of government is the city of Lima."),
    ("", "the city of rome"),
    ("", "which language is spoken in iceland and which currency do people use in the city"),
)


LONG: Text = ("Peru", "the seat of government is the city of lima , and people pay with the sol . " * 5)


class PoolerCase:
    """A pooler on one encoder.

    Args:
        name: Registered name of the pooler.
        model: The encoder's model.
        label: Names the model in messages.
        options: Of the pooler.
    """

    def __init__(self, name: str, model: str, label: str, options: Mapping[str, Any]) -> None:
        self.name = name
        self.model = model
        self.label = label
        self.options = options
        self._towers: dict[str, Encoder] = {}
        self._states: dict[Any, TokenStates] = {}
        self._made, self._tower = self.parts(options)

    def parts(self, options: Mapping[str, Any]) -> tuple[Pooler, Encoder]:
        """The pooler with some options, made anew, and an encoder that was prepared for what it needs; in eval mode."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            pooler: Pooler = registry.create("pooler", self.name, self._encoder("").info, **options)
            tower = self._encoder(f"{pooler.needs} {pooler.eval().needs}", pooler.train().needs)
            pooler.bind(tower)
        return pooler.eval(), tower

    def _encoder(self, key: str, needs: Needs | None = None) -> Encoder:
        if key not in self._towers:
            if (self.model, key) not in _ENCODERS:
                made: Encoder = registry.create("encoder", "transformer", self.model)
                if needs is not None:
                    made.prepare(needs)
                _ENCODERS[self.model, key] = made.eval()
            self._towers[key] = copy.deepcopy(_ENCODERS[self.model, key])
        return self._towers[key]

    def retriever(self) -> Retriever:
        """A whole retriever with the pooler, in eval mode: a copy."""
        return copy.deepcopy(self._retriever)

    @cached_property
    def _retriever(self) -> Retriever:
        return self.created()

    def created(self, **settings: Any) -> Retriever:
        """A whole retriever with the pooler, made anew."""
        retriever = Retriever.create(self.model, pooler=self.name, pooler_options=self.options, **settings)
        return retriever.to("cpu").eval()

    def pooler(self) -> Pooler:
        """The pooler, as it was made, in eval mode: a copy."""
        return copy.deepcopy(self._made)

    def states(self, side: Side, texts: Sequence[Text] = TEXTS, *, training: bool = False) -> TokenStates:
        """What the encoder, in eval mode, gives to the pooler in eval or training mode: a copy."""
        return self.states_for(self._made, self._tower, side, texts, training=training)

    def states_for(
        self, pooler: Pooler, tower: Encoder, side: Side, texts: Sequence[Text], *, training: bool
    ) -> TokenStates:
        """What an encoder gives to a pooler: a copy."""
        was_training = pooler.training
        layers = pooler.train(training).needs.layers_of(side, tower.info)
        pooler.train(was_training)
        key = (id(tower), layers, side, tuple(texts))
        if key not in self._states:
            batch = tower.collate(tower.tokenize(texts, side), side)
            with torch.no_grad():
                self._states[key] = tower(batch, layers)
        return copied(self._states[key])

    def padded_sides(self) -> Iterator[Side]:
        """The sides whose texts are padded: not those that are filled up with [MASK]-like tokens, which count.

        Raises:
            UnsupportedError: There are none.
        """
        sides = [side for side in SIDES if side not in self._made.needs.mask_filled]
        if not sides:
            msg = "no side is padded."
            raise UnsupportedError(msg)
        yield from sides


_ENCODERS: dict[tuple[str, str], Encoder] = {}
"""Encoders by model and by what they were prepared for: they are made once in a process."""


def _cases(name: str, *, model: str | None = None, **options: Any) -> list[PoolerCase]:
    """The pooler on a model, or on each tiny one that has what it needs."""
    options = {**required_values(registry.get("pooler", name), options), **options}
    if model is not None:
        return [PoolerCase(name, model, Path(model).name, options)]
    made, refusals = [], []
    for architecture, folder in kit_models().items():
        try:
            made.append(PoolerCase(name, folder, architecture, options))
        except UnsupportedError as error:
            refusals.append(error)
    if not made:
        raise refusals[0]
    return made


POOLERS: Kit[PoolerCase] = Kit("pooler", _cases)


def pooled(pooler: Pooler, states: TokenStates, side: Side) -> Representation:
    """The output of a pooler, in the mode that it is in."""
    with torch.no_grad():
        found: Representation = pooler(states, side)
    return found


def values_of(representation: Representation) -> Tensor:
    """All values in float32, masked vectors left out."""
    vectors, mask, weights = representation.vectors, representation.vector_mask, representation.weights
    parts = [] if vectors is None else [vectors if mask is None else vectors[mask]]
    parts += [] if weights is None else [weights]
    return torch.cat([part.float().reshape(-1) for part in parts])


def expect_finite(where: str, representation: Representation) -> None:
    """Expect that each text has a vector or weights, and that all values are finite; `where` names the texts."""
    values = values_of(representation)
    wrong = values[~values.isfinite()]
    mask = representation.vector_mask
    if not len(values) or (mask is not None and not mask.any(dim=1).all()):
        fail(f"{where}: there is no vector", expected="at least one", found=0, method="forward")
    if len(wrong):
        found = f"{float(wrong[0])} ({len(wrong)} of {len(values)})"
        fail(f"{where}: some values are not finite", expected="numbers", found=found, method="forward")


def objective(representation: Representation) -> Tensor:
    """A number that depends on all values, each in another way."""
    values = values_of(representation)
    return (values * torch.randn(values.shape, generator=torch.Generator().manual_seed(1))).sum()
