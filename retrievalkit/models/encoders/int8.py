"""Matrix products in int8 on a processor: quantised as they come, with a scale for each token and each output.

    x = low + scale * q,  q in 0..255     for each token, from its least and greatest number
    w = size * r,  r in -127..127         for each output, from its greatest number
    w x + b = size * scale * (r q)  +  low * size * sum(r)  +  b

Everything between the products stays float32. Tokens are unsigned, because only such products are fast on processors
without AMX; there torch multiplies signed ones number by number, ten thousand times slower.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

_STEPS = 255
_TINY = 1e-30
# A token whose numbers differ by less than this part of their size has them all alike.
_SMALLEST_STEP = 1e-5
_ON = ContextVar("int8", default=False)


class Tokens(NamedTuple):
    """Tokens in int8: their steps (tokens, in) uint8, and the lowest number and the scale of each, (tokens, 1)."""

    steps: Tensor
    low: Tensor
    scale: Tensor


class Int8Weights(NamedTuple):
    """The weights of a linear layer: packed (in, out), and what belongs to each output, (out,)."""

    packed: Tensor
    sizes: Tensor
    zeros: Tensor
    sums: Tensor
    bias: Tensor


_SHARED: ContextVar[list[Tokens] | None] = ContextVar("shared", default=None)


@contextmanager
def multiplied() -> Iterator[None]:
    """The context in which linear layers that know int8 multiply in it."""
    before = _ON.set(True)
    try:
        yield
    finally:
        _ON.reset(before)


@contextmanager
def same_tokens() -> Iterator[None]:
    """The context in which all products have the same tokens, so that these are quantised once."""
    before = _SHARED.set([])
    try:
        yield
    finally:
        _SHARED.reset(before)


def in_int8(states: Tensor) -> bool:
    """Whether a layer multiplies in int8: inference on a processor, where it was asked for."""
    return _ON.get() and states.device.type == "cpu" and torch.is_inference_mode_enabled()


def quantised(weight: Tensor, bias: Tensor | None) -> Int8Weights:
    """Weights (out, in) in int8."""
    weight = weight.detach().float()
    sizes = (weight.abs().amax(dim=1) / _largest()).clamp_min(_TINY)  # (out,)
    rounded = (weight / sizes[:, None]).round().to(torch.int8)
    return Int8Weights(
        torch.ops.onednn.qlinear_prepack(rounded, None),
        sizes,
        torch.zeros(len(sizes), dtype=torch.int64),
        rounded.sum(dim=1) * sizes,
        torch.zeros(len(sizes)) if bias is None else bias.detach().float(),
    )


def product(states: Tensor, weights: Int8Weights) -> Tensor:
    """The linear layer of states (..., in): (..., out) float32."""
    tokens = _tokens(states.reshape(-1, states.shape[-1]).float())
    found = _multiplied(tokens.steps, weights)
    # Not addmm, which takes twice as long for a single column.
    made = torch.addcmul(weights.bias, tokens.low, weights.sums).addcmul_(found, tokens.scale)
    return made.view(*states.shape[:-1], -1)


def _tokens(rows: Tensor) -> Tokens:
    shared = _SHARED.get()
    if shared:
        return shared[0]
    low, high = rows.amin(dim=1, keepdim=True), rows.amax(dim=1, keepdim=True)  # (tokens, 1)
    least = torch.maximum(high.abs(), low.abs()) * _SMALLEST_STEP
    scale = torch.maximum((high - low) / _STEPS, least).clamp_min_(_TINY)
    # What is cut off behind the point was rounded up by a half before.
    steps = torch.addcmul(0.5 - low / scale, rows, 1 / scale).to(torch.uint8)
    tokens = Tokens(steps, low, scale)
    if shared is not None:
        shared.append(tokens)
    return tokens


def _multiplied(steps: Tensor, weights: Int8Weights) -> Tensor:
    """(tokens, out) float32: the products of tokens in uint8 with the weights, each output times its size."""
    found: Tensor = torch.ops.onednn.qlinear_pointwise(
        steps, 1.0, 0, weights.packed, weights.sizes, weights.zeros, None, 1.0, 0, torch.float32, "none", [], "none"
    )
    return found


@cache
def works() -> bool:
    """Whether this release of torch has the operations, which its compiler uses, for this processor."""
    try:
        return bool((_of_ones(1) == 8 * _STEPS).all())
    except (AttributeError, RuntimeError, TypeError):
        return False


@cache
def _largest() -> int:
    """The greatest weight: processors without VNNI add pairs of products up in 16 bits, which two large ones exceed."""
    return 127 if bool((_of_ones(127) == 8 * 127 * _STEPS).all()) else 63


def _of_ones(weight: int) -> Tensor:
    """What products of the greatest numbers of tokens with a weight make, added up over 8."""
    packed = torch.ops.onednn.qlinear_prepack(torch.full((16, 8), weight, dtype=torch.int8), None)
    ones, zeros = torch.ones(16), torch.zeros(16, dtype=torch.int64)
    steps = torch.full((4, 8), _STEPS, dtype=torch.uint8)
    return _multiplied(steps, Int8Weights(packed, ones, zeros, ones, ones))
