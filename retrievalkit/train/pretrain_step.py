"""The steps of a pre-training: which samples they have, how these become batches, and one step on the Trainer."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from retrievalkit.contracts import Pretrainer, Progress
from retrievalkit.model.precision import autocast
from retrievalkit.train.pretrain_tokens import TokenStore
from retrievalkit.train.trainer import RetrieverTrainer


class Samples:
    """All samples of a corpus, in another order in each epoch.

    Args:
        store: The corpus.
        pretrainer: Says what a sample is.
        seed: Of the order and of all draws.
    """

    def __init__(self, store: TokenStore, pretrainer: Pretrainer, seed: int) -> None:
        self.store = store
        self.pretrainer = pretrainer
        self.seed = seed

    def __len__(self) -> int:
        return self.store.counts["samples"]

    def order(self, epoch: int) -> np.ndarray:
        """The positions of all samples in the order of an epoch; four bytes each."""
        positions = np.arange(len(self), dtype=np.uint32 if len(self) < 1 << 32 else np.uint64)
        np.random.default_rng([self.seed, epoch]).shuffle(positions)
        return positions

    def draw(self, position: int, epoch: int) -> Any:
        """A sample as the epoch has it."""
        document, number = self.store.find(position)
        source = random.Random(f"sample {self.seed} {epoch} {position}")
        return self.pretrainer.sample(self.store.document(document), number, source)


@dataclass(frozen=True)
class Step:
    """A step that is ready for the model: batches that are computed one after the other.

    Attributes:
        batches: As the pretrainer made them.
        shares: Which share of the step's samples each batch has.
    """

    batches: Sequence[Mapping[str, Any]]
    shares: Sequence[float]

    def to(self, device: torch.device) -> Step:
        """The same step on another device."""
        return Step([{name: value.to(device) for name, value in batch.items()} for batch in self.batches], self.shares)


class Collator:
    """Makes a Step of the positions of its samples.

    Args:
        sampler: Draws the samples.
        pretrainer: Makes batches of them.
        micro_batch_size: Samples of a batch; None = all of a step.
    """

    def __init__(self, sampler: Samples, pretrainer: Pretrainer, micro_batch_size: int | None) -> None:
        self.sampler = sampler
        self.pretrainer = pretrainer
        self.micro_batch_size = micro_batch_size

    def __call__(self, keys: Sequence[tuple[int, int]]) -> Step:
        """The step of some (epoch, position) pairs."""
        parts = list(self._parts(keys))
        return Step([self._batch(part) for part in parts], [len(part) / len(keys) for part in parts])

    def _parts(self, keys: Sequence[tuple[int, int]]) -> Iterator[Sequence[tuple[int, int]]]:
        size = self.micro_batch_size or len(keys)
        return (keys[start : start + size] for start in range(0, len(keys), size))

    def _batch(self, keys: Sequence[tuple[int, int]]) -> Mapping[str, Any]:
        epoch, first = keys[0]
        source = random.Random(f"batch {self.sampler.seed} {epoch} {first}")
        return self.pretrainer.collate([self.sampler.draw(int(position), epoch) for epoch, position in keys], source)


class PretrainingTrainer(RetrieverTrainer):
    """The trainer of retrievers with another step, for a `Pretrainer` instead of a retriever and its loss."""

    def training_step(self, model: nn.Module, inputs: dict[str, Any], num_items_in_batch: Any = None) -> Tensor:  # noqa: ARG002
        """Forward and backward of one step, batch by batch; the loss is the mean over its samples."""
        pretrainer: Pretrainer = self.model  # type: ignore[assignment]
        pretrainer.train()
        step: Step = inputs["step"]
        progress = Progress(self.state.global_step, float(self.state.epoch or 0.0), self.state.max_steps)
        sums: dict[str, Tensor] = {}
        for batch, share in zip(step.batches, step.shares, strict=True):
            with autocast(self.precision, self.args.device):
                value = pretrainer(batch, progress)
            self.accelerator.backward(value.total * share)
            for name, term in (*value.terms.items(), ("loss", value.total)):
                sums[name] = sums.get(name, 0.0) + term.detach().float() * share
        for name, total in sums.items():
            self._terms.setdefault(name, []).append(total)
        return sums["loss"]
