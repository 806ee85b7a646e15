"""The largest value of each dimension over the token states as the text's vector."""

from __future__ import annotations

import torch
from torch import Tensor

from retrievalkit.builtin.poolers.single_vector import SingleVector


class Max(SingleVector):
    """One vector per text: in each dimension the maximum over its real tokens, special tokens included."""

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The masked maximum; zeros for a text without any token."""
        return masked_max(hidden, mask)


def masked_max(states: Tensor, mask: Tensor) -> Tensor:
    """The maximum of the states (batch, tokens, width) at which the mask (batch, tokens) is not 0; zeros for none."""
    real = mask.bool()
    largest = states.masked_fill(~real[:, :, None], -torch.inf).amax(dim=1)  # (batch, width)
    return largest.masked_fill(~real.any(dim=1, keepdim=True), 0.0)
