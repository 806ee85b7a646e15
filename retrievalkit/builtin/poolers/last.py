"""The state of the last token as the text's vector: in a decoder-only model it alone has seen the whole text."""

from __future__ import annotations

import torch
from torch import Tensor

from retrievalkit.builtin.poolers.single_vector import SingleVector


class Last(SingleVector):
    """One vector a text: the state of its last real token, which is the end token where the tokenizer adds one."""

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The last real token's state."""
        n_texts, n_tokens = mask.shape
        last = n_tokens - 1 - mask.long().flip(1).argmax(dim=1)  # (batch,)
        return hidden[torch.arange(n_texts, device=mask.device), last]
