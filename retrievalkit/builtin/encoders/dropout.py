"""Dropout that costs little on a CPU: masks from a fast generator.

On a CPU torch draws one random number per value of a mask, which takes a third of a training step. Here one 64-bit
draw serves four values. The probability is rounded to 1/65536, and kept values are scaled by the rounded probability,
so that the expectation is unchanged. Masks are seeded from torch's random state: a seed, or a state that gradient
caching restores, gives the same masks again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

_RANGE = 1 << 16


def drop_mask(shape: Sequence[int], probability: float) -> Tensor:
    """A bool tensor on the CPU that is True with the probability, rounded to 1/65536."""
    count = math.prod(shape)
    words = generator().random_raw((count + 3) // 4)
    draws = torch.from_numpy(words.view(np.int16))[:count]  # uniform over -32768 ... 32767
    return (draws < _threshold(probability) - _RANGE // 2).view(tuple(shape))


def generator() -> np.random.SFC64:
    """A fast generator, seeded from torch's random state."""
    return np.random.SFC64(int(torch.randint(0, 2**62, (1,))))


def keep_scale(probability: float) -> float:
    """The factor for kept values that leaves the expectation unchanged."""
    return _RANGE / (_RANGE - _threshold(probability))


def _threshold(probability: float) -> int:
    return round(probability * _RANGE)


class FastDropout(nn.Dropout):
    """`nn.Dropout` with masks of `drop_mask` on a CPU, and torch's own elsewhere."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as the base class calls it
        """The input with values dropped, in training mode."""
        if not self.training or self.p in (0.0, 1.0) or input.device.type != "cpu":
            return super().forward(input)
        return torch.where(drop_mask(input.shape, self.p), 0.0, input * keep_scale(self.p))


def use_fast_dropout(model: nn.Module) -> None:
    """Replace a model's dropout modules."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, FastDropout(child.p))
