"""Pretrainers with tiny encoders, their batches and the losses of these."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from retrievalkit import registry
from retrievalkit.contracts import Batch, Encoder, LossValue, Needs, Pretrainer, Progress
from retrievalkit.data.corpus import Passage
from retrievalkit.data.spans import Document
from retrievalkit.errors import UnsupportedError
from retrievalkit.testing.collection import COUNTRIES
from retrievalkit.testing.models import kit_models
from retrievalkit.testing.option_effects import required_values
from retrievalkit.testing.properties import Kit
from retrievalkit.training.token_store import Cutter

Values = dict[str, Any]


_START = Progress(0, 0.0, 10)


_DRAWS = 12
"""Losses of which a mean is taken where a pretrainer draws in `forward`."""


_ENCODERS: dict[tuple[str, int, str], Encoder] = {}
"""Encoders by model, length and what they were prepared for: they are made once in a process."""


class PretrainerCase:
    """A pretrainer with one encoder.

    Args:
        name: Registered name of the pretrainer.
        model: The encoder's model.
        label: Names the model in messages.
        max_length: Most tokens of a text.
        options: Of the pretrainer.
    """

    def __init__(self, name: str, model: str, label: str, max_length: int, options: Mapping[str, Any]) -> None:
        self.name = name
        self.model = model
        self.label = label
        self.max_length = max_length
        self.options = options
        self._made = self.create(options)
        self.documents = self._documents()

    def create(self, options: Mapping[str, Any]) -> Pretrainer:
        """The pretrainer with some options and a new encoder, with the same random weights each time."""
        needs: Needs = registry.get("pretrainer", self.name).needs  # type: ignore[attr-defined]
        key = (self.model, self.max_length, repr(needs))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(5)
            if key not in _ENCODERS:
                encoder = registry.create(
                    "encoder", "transformer", self.model, document_length=self.max_length, new_vocabulary_head=True
                )
                encoder.prepare(needs)
                _ENCODERS[key] = encoder
            torch.manual_seed(6)
            made: Pretrainer = registry.create(
                "pretrainer", self.name, copy.deepcopy(_ENCODERS[key]), self.max_length, **options
            )
        return made

    def pretrainer(self) -> Pretrainer:
        """The pretrainer as it was made, in eval mode: a copy."""
        return copy.deepcopy(self._made).eval()

    def stirred(self) -> Pretrainer:
        """A copy with larger weights, in which attention makes a difference, as in a model that was trained."""
        made = self.pretrainer()
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for one in made.parameters():
                one.add_(0.2 * torch.randn(one.shape, generator=generator))
        return made

    def batch(self, made: Pretrainer, seed: int = 0, count: int = 4) -> Values:
        """A batch of the first samples, drawn from a generator with that seed."""
        return self.collated(made, [count], seed)[0]

    def collated(self, made: Pretrainer, sizes: list[int], seed: int = 0) -> list[Values]:
        """Batches of the first samples, collated one after the other from one generator."""
        draw = random.Random(seed)
        # Of several documents, which differ in length.
        drawn = [made.sample(document, 0, draw) for document in self.documents[1:]][: sum(sizes)]
        return [dict(made.collate([drawn.pop(0) for _ in range(size)], draw)) for size in sizes]

    def loss(self, made: Pretrainer, values: Mapping[str, Any], seed: int = 0) -> LossValue:
        """The loss of a batch."""
        torch.manual_seed(seed)
        found: LossValue = made(values, _START)
        return found

    def mean_loss(
        self, made: Pretrainer, values: Mapping[str, Any], weights: Mapping[str, float] | None = None
    ) -> tuple[float, float]:
        """The loss without a graph, and the standard error of it: 0 unless the pretrainer draws in `forward`.

        Args:
            made: The pretrainer.
            values: The batch.
            weights: What each addend is multiplied by; None = the loss as it is.
        """
        seen = []
        for seed in range(_DRAWS):
            with torch.no_grad():
                found = self.loss(made, values, seed)
            addends = found.addends if weights is not None else {"": found.total}
            seen.append(sum((weights or {"": 1.0})[name] * float(one) for name, one in addends.items()))
            if seed == 1 and seen[0] == seen[1]:
                return seen[0], 0.0
        return float(np.mean(seen)), float(np.std(seen) / _DRAWS**0.5)

    def _documents(self) -> list[Document]:
        """A document without text, and some of twenty sentences, with words of several tokens."""
        countries = [line.replace("-", " ") for line in COUNTRIES.split("|")]
        passages = [
            Passage(str(row), "", " ".join(f"{one}. The xyzzy is {one}." for one in countries[row : row + 10]))
            for row in range(4)
        ]
        # Half as long, so that there is room for more padding.
        cutter = Cutter(self._made.vocabulary, self.max_length // 2)
        return list(cutter.cut(0, [Passage("empty", "", ""), *passages]))


def _cases(name: str, *, model: str | None = None, max_length: int = 24, **options: Any) -> Iterator[PretrainerCase]:
    """The pretrainer with a model, or with each tiny one that has what it needs."""
    options = {**required_values(registry.get("pretrainer", name), options), **options}
    if model is not None:
        yield PretrainerCase(name, model, Path(model).name, max_length, options)
        return
    refusals, models = [], kit_models()
    for label, folder in models.items():
        try:
            yield PretrainerCase(name, folder, label, max_length, options)
        except UnsupportedError as error:
            refusals.append(error)
    if len(refusals) == len(models):
        raise refusals[0]


PRETRAINERS: Kit[PretrainerCase] = Kit("pretrainer", _cases)


def tensors_of(values: Mapping[str, Any]) -> dict[str, Tensor]:
    """Every tensor of a batch by name; those of a Batch as NAME.FIELD."""
    found: dict[str, Tensor] = {}
    for name, one in values.items():
        if isinstance(one, Tensor):
            found[name] = one
        elif isinstance(one, Batch):
            parts = {part.name: getattr(one, part.name) for part in fields(one)}
            found |= {f"{name}.{part}": tensor for part, tensor in parts.items() if tensor is not None}
    return found
