"""Fast dropout on a CPU: masks are looked up, not drawn.

On a CPU torch draws a random number for each value of a mask, which takes a third of a training step. Here a process
draws millions of decisions once, and each mask is a stretch of them that starts at a random place. The probability is
rounded to 1/65536, and kept values are scaled by the rounded probability, which leaves the expectation unchanged. The
places depend on torch's random state: equal seeds, or a state that gradient caching restores, give equal masks.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

_RANGE = 1 << 16
# A mask is a small part of the decisions, so masks seldom overlap much; longer masks combine several stretches.
_DRAWN = 1 << 23
_LONGEST = 1 << 20
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Places = list[tuple[slice, slice]]
"""For each stretch of a flat tensor's values, the stretch of decisions that applies to it."""


def places(count: int) -> Places:
    """Draw random places for a mask of `count` values from torch's random state."""
    edges = [*range(0, count, _LONGEST), count]
    starts = torch.randint(0, _DRAWN - _LONGEST, (len(edges),)).tolist()
    return [
        (slice(first, last), slice(start, start + last - first))
        for (first, last), start in zip(pairwise(edges), starts, strict=False)
    ]


def drop(values: Tensor, probability: float, at: Places, *, out: Tensor | None = None) -> Tensor:
    """Return the values, with 0 where the mask drops them."""
    decisions = _decisions(_threshold(probability), values.element_size())
    out = torch.empty_like(values) if out is None else out
    source, target = (tensor.view(-1).view(decisions.dtype) for tensor in (values, out))
    for stretch, drawn in at:
        # A bitwise product takes a fifth of the time of masked_fill_.
        torch.bitwise_and(source[stretch], decisions[drawn], out=target[stretch])
    return out


def keep_scale(probability: float) -> float:
    """Return the factor for kept values that leaves the expectation unchanged."""
    return _RANGE / (_RANGE - _threshold(probability))


def _threshold(probability: float) -> int:
    # At least 1 of 65536 decisions keeps its value: `keep_scale` divides by their share.
    return min(round(probability * _RANGE), _RANGE - 1)


@lru_cache(maxsize=4)
def _decisions(threshold: int, size: int) -> Tensor:
    """Draw the decisions, integers of `size` bytes: all bits set = kept, none = dropped."""
    words = np.random.SFC64(0).random_raw(_DRAWN // 4)  # four decisions each
    draws = torch.from_numpy(words.view(np.int16))  # uniform over -32768 ... 32767
    return (draws < threshold - _RANGE // 2).to(_BITS[size]).sub_(1)


class Dropped(torch.autograd.Function):
    """Values times a factor, with a mask of `places`; only the places are saved for the backward pass."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, probability: float, factor: float) -> Tensor:
        """Return the values with dropout."""
        ctx.probability, ctx.factor, ctx.places = probability, factor, places(values.numel())
        scaled = (values * factor).contiguous()
        return drop(scaled, probability, ctx.places, out=scaled)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradient of the values."""
        scaled = (gradient * ctx.factor).contiguous()
        return drop(scaled, ctx.probability, ctx.places, out=scaled), None, None


class FastDropout(nn.Dropout):
    """`nn.Dropout` with masks of `places` on a CPU; torch's dropout on other devices."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as the base class calls it
        """Return the input, with dropout in training mode."""
        if not self.training or self.p in (0.0, 1.0) or input.device.type != "cpu":
            return super().forward(input)
        dropped: Tensor = Dropped.apply(input, self.p, keep_scale(self.p))  # type: ignore[no-untyped-call]
        return dropped


def use_fast_dropout(model: nn.Module) -> None:
    """Replace a model's dropout modules."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, FastDropout(child.p))
