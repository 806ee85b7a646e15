"""The state of the first token as the text's vector: BERT's [CLS], as in DPR."""

from __future__ import annotations

import torch
from torch import Tensor

from retrievalkit.builtin.poolers.single_vector import SingleVector


class Cls(SingleVector):
    """One vector per text: the state of its first real token.

    For encoders that start each text with a [CLS]-like token. Without one (T5) the vector is the state of the first
    word piece, and in a decoder-only model that state has seen no other token: use `mean` or `last` for these.
    """

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The first real token's state."""
        return first_state(hidden, mask)


def first_state(states: Tensor, mask: Tensor) -> Tensor:
    """The state (batch, width) of each text's first token at which the mask (batch, tokens) is not 0."""
    first = mask.long().argmax(dim=1)  # (batch,), above 0 if padding is on the left
    return states[torch.arange(mask.shape[0], device=mask.device), first]
