"""Dropout that costs little on a CPU: masks from a fast generator, and attention that uses them.

On a CPU, torch draws one number a value for a mask, which takes a third of a training step.
Here one 64-bit draw serves four values. The probability is exact to 1/65536, and the kept values are scaled by what is
really drawn, so that the expectation is unchanged. Masks follow from torch's own random state: a seed, or a state that
gradient caching restores, gives the same masks again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import transformers
from torch import Tensor, nn
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_RANGE = 1 << 16
ATTENTION = "retrievalkit_cpu"


def drop_mask(shape: Sequence[int], probability: float) -> Tensor:
    """A bool tensor on the CPU that is True with the probability, rounded to 1/65536."""
    count = math.prod(shape)
    seed = int(torch.randint(0, 2**62, (1,)))
    words = np.random.SFC64(seed).random_raw((count + 3) // 4)
    draws = torch.from_numpy(words.view(np.int16))[:count]  # uniform over -32768 ... 32767
    return (draws < _threshold(probability) - _RANGE // 2).view(tuple(shape))


def keep_scale(probability: float) -> float:
    """What kept values are multiplied by, so that the expectation is unchanged."""
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
    """Replace a model's dropout modules, and its attention where that is torch's fused one, which is slow to drop."""
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.Dropout:
                setattr(module, name, FastDropout(child.p))
    configuration: Any = getattr(model, "config", None)
    if getattr(configuration, "_attn_implementation", None) == "sdpa":
        transformers.AttentionInterface.register(ATTENTION, attention)
        transformers.AttentionMaskInterface.register(ATTENTION, sdpa_mask)
        configuration._attn_implementation = ATTENTION


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attention as transformers calls it: torch's fused one, but with `drop_mask` where values are dropped on a CPU.

    Args:
        module: The attention layer.
        query: (batch, heads, tokens, width of a head).
        key: The same shape.
        value: The same shape.
        attention_mask: (batch, 1 or heads, tokens, tokens), True = attend, or to be added; None = no mask.
        dropout: Probability to drop an attention weight.
        scaling: Of the inner products; None = 1 / sqrt(width).
        **options: Whatever else transformers hands over.

    Returns:
        (batch, tokens, heads, width of a head), and None for the weights.
    """
    # Grouped heads, causal masks without a tensor, biases: left to transformers.
    plain = key.shape[1] == query.shape[1] and not getattr(module, "is_causal", False)
    if not dropout or query.device.type != "cpu" or not plain:
        result: tuple[Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
        return result
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query * scale) @ key.transpose(-1, -2)  # (batch, heads, tokens, tokens)
    if attention_mask is not None:
        masked = attention_mask.dtype == torch.bool
        scores = scores.masked_fill(~attention_mask, -torch.inf) if masked else scores + attention_mask
    weights = scores.softmax(dim=-1)
    weights = torch.where(drop_mask(weights.shape, dropout), 0.0, weights)
    # The scale goes to the smaller tensor.
    return ((weights @ value) * keep_scale(dropout)).transpose(1, 2).contiguous(), None
