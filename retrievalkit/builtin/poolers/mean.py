"""The mean of the token states as the text's vector."""

from __future__ import annotations

import torch
from torch import Tensor

from retrievalkit.builtin.poolers.single_vector import SingleVector


class Mean(SingleVector):
    """One vector a text: the mean over its real tokens, [CLS]- and [SEP]-like ones included."""

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The masked mean."""
        return masked_mean(hidden, mask)


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of the states (batch, tokens, width) where the mask (batch, tokens) is not 0; zeros for an empty row.

    Summed in float32 at least, since bf16 would lose the small states of a long text.
    """
    real = mask.bool()
    dtype = torch.promote_types(states.dtype, torch.float32)
    # Filled, not multiplied: what stands at padding may be anything, infinity too.
    total = states.masked_fill(~real[:, :, None], 0.0).sum(dim=1, dtype=dtype)  # (batch, width)
    return total / real.sum(dim=1, keepdim=True).clamp(min=1)
