"""Norms of BERT-like models with bf16 output on a processor, so that hidden states between layers are bf16.

Under automatic mixed precision alone, norms return float32: each of the following linear layers casts it again, and its
gradients back. Encoding with a MiniLM takes a seventh longer then, and a training step 3 %.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


def use_narrow_norms(model: nn.Module) -> None:
    """Make the norms of a BERT-like model return bf16 under automatic mixed precision in bf16.

    Other models add to hidden states that no norm has scaled, and rounding errors would accumulate.
    """
    for module in list(model.modules()):
        for name, child in module.named_children():
            if type(child) is nn.LayerNorm and name == "LayerNorm":
                child.__class__ = NarrowLayerNorm


class NarrowLayerNorm(nn.LayerNorm):
    """`nn.LayerNorm` that computes in float32 and returns bf16 under a processor's mixed precision in bf16."""

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002 - as the base class calls it
        """Return the normalised input."""
        mixed = input.device.type == "cpu" and torch.is_autocast_enabled("cpu")
        if not mixed or torch.get_autocast_dtype("cpu") != torch.bfloat16:
            return super().forward(input)
        if input.dtype != torch.bfloat16:
            return super().forward(input).to(torch.bfloat16)
        # Automatic mixed precision would make a float32 copy of the input.
        return torch.native_layer_norm(input, list(self.normalized_shape), self.weight, self.bias, self.eps)[0]
