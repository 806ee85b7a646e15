"""Gradient accumulation: a step computed in parts, with the loss and gradient of the whole step.

Every loss here is a mean over masked tokens, queries or pairs. So a part is weighted by its number of these units, not
by its number of samples, and each term of a loss by its own count. The result of a step therefore does not depend on
the micro batch size or the number of processes, and the parts of a process that runs out of memory are halved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor

from retrievalkit.contracts import LossValue, Progress
from retrievalkit.contracts.models import to_device
from retrievalkit.reporting import notices
from retrievalkit.training.collective import Collective, GradientSum
from retrievalkit.training.loop import Backward, Key, Training


@dataclass(frozen=True)
class Part:
    """A micro batch: samples of a step whose graph is in memory at a time.

    Attributes:
        batch: Inputs of the loss.
        size: Number of units (samples, queries or pairs) that the loss averages over.
        counts: Term -> number of units that this term averages over, where it differs.
    """

    batch: Mapping[str, Any]
    size: int
    counts: Mapping[str, int] = field(default_factory=dict)

    def to(self, device: torch.device) -> Self:
        """Return the same part on another device."""
        batch = {
            name: to_device(value, device) if isinstance(value, Tensor) else value.to(device)
            for name, value in self.batch.items()
        }
        return replace(self, batch=batch)

    def without_weight(self) -> Self:
        """Return the part with weight 0, for a process without samples that only needs the shapes."""
        return replace(self, size=0, counts=dict.fromkeys(self.counts, 0))


@dataclass(frozen=True)
class Parts:
    """A process's share of a step: parts of at most `size` samples, and the texts and samples of the whole step."""

    parts: Sequence[Part]
    texts: int
    keys: Sequence[Key]
    size: int | None

    def to(self, device: torch.device) -> Self:
        """Return the same parts on another device."""
        return replace(self, parts=[part.to(device) for part in self.parts])


class PartedTraining(Training):
    """A training whose steps are computed in parts of at most `size` samples; None = no limit."""

    size: int | None

    def loss(self, part: Part, progress: Progress) -> LossValue:
        """Return the loss of a part, at a point of the training."""
        raise NotImplementedError

    def divided(self, keys: Sequence[Key], part_of: Callable[[slice], Part]) -> Parts:
        """Return this process's parts of a step, each made of the samples in a slice of `keys`.

        Every process makes all parts in the same order: what `part_of` draws does not depend on the number of parts
        and processes.
        """
        shares = [[part_of(part) for part in share] for share in slices(len(keys), self.size, self.collective.size)]
        own = shares[self.collective.rank] or [part_of(slice(1)).without_weight()]
        return Parts(own, len(keys), keys, self.size)

    def evaluate(self, parts: Sequence[Part]) -> dict[str, Tensor]:
        """Return the terms of all parts together without dropout, "loss" last; the processes divide the parts."""
        own, was_training = parts[self.collective.rank :: self.collective.size], self.module.training
        device = next(self.module.parameters()).device
        self.module.eval()
        with torch.inference_mode():
            own = own or [parts[0].without_weight()]
            values = run_parts(own, lambda part: self.loss(part.to(device), Progress(0, 0.0, 1)), self.collective)
        self.module.train(was_training)
        return values

    def run(self, inputs: Parts, progress: Progress, backward: Backward, gradients: GradientSum) -> dict[str, Tensor]:
        """Compute the loss of the step, part by part."""
        if inputs.size != self.size:  # collated before the device ran out of memory
            inputs = self.collate(inputs.keys).to(next(self.module.parameters()).device)
        gradients.await_others()
        return run_parts(inputs.parts, lambda part: self.loss(part, progress), self.collective, backward, gradients)

    def reduce(self, inputs: Parts) -> Parts | None:
        """Halve the parts; None if they have a single sample."""
        own = list(slices(len(inputs.keys), self.size, self.collective.size))[self.collective.rank]
        largest = max((part.stop - part.start for part in own), default=1)
        if largest == 1:
            return None
        self.size = largest // 2
        self.entries = {**self.entries, "micro_batch_size": self.size}
        notices.note(
            "The device ran out of memory, so steps were computed in smaller parts from then on, with the same "
            "gradients. Set micro_batch_size to a size that fits."
        )
        return inputs


def run_parts(
    parts: Sequence[Part],
    loss_of: Callable[[Part], LossValue],
    collective: Collective,
    backward: Backward | None = None,
    gradients: GradientSum | None = None,
) -> dict[str, Tensor]:
    """Compute forward and, if set, backward of this process's parts, each weighted by its share of the whole step.

    Returns the terms of the whole step over all processes, its loss last.
    """
    # Units of the whole step: for the loss under "", and for each term with its own count.
    counts = {"": sum(part.size for part in parts)}
    counts |= {name: sum(part.counts[name] for part in parts) for name in parts[0].counts}
    totals = collective.add_up({name: torch.tensor(count, dtype=torch.float64) for name, count in counts.items()})
    sums: dict[str, Tensor] = {}
    for place, part in enumerate(parts, 1):
        value = loss_of(part)
        share = part.size / float(totals[""])
        shares = {name: count / max(1.0, float(totals[name])) for name, count in part.counts.items()}
        loss = value.total * share
        if value.addends:
            loss = torch.stack([addend * shares.get(name, share) for name, addend in value.addends.items()]).sum()
        if backward is not None and gradients is not None:
            with gradients.last_backward() if place == len(parts) else nullcontext():
                backward(loss)
        terms = {name: term.detach().float() * shares.get(name, share) for name, term in value.terms.items()}
        for name, number in (*terms.items(), ("loss", loss.detach().float())):
            sums[name] = sums[name] + number if name in sums else number
    return collective.add_up(sums)


def slices(count: int, size: int | None, processes: int) -> Iterator[list[slice]]:
    """Yield the parts of each process: slices of a step of `count` samples, each of at most `size`."""
    bounds = [count * rank // processes for rank in range(processes + 1)]
    for start, stop in pairwise(bounds):
        width = size or max(1, stop - start)
        yield [slice(first, min(first + width, stop)) for first in range(start, stop, width)]
