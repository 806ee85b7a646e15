"""The state of the first token as the text's vector, as DPR takes BERT's [CLS]."""

from __future__ import annotations

import torch
from torch import Tensor

from retrievalkit.builtin.poolers.single_vector import SingleVector


class Cls(SingleVector):
    """One vector a text: the state of its first real token.

    For encoders that put a [CLS]-like token in front of each text. One that does not (T5) gives the state of the first
    word piece, and a decoder-only one a state that has seen nothing else: take `mean` or `last` for these.
    """

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The first real token's state."""
        first = mask.long().argmax(dim=1)  # (batch,), not 0 where padding is on the left
        return hidden[torch.arange(len(mask), device=mask.device), first]
