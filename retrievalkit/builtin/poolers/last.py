"""The state of the last token as the text's vector: in a decoder-only model it alone has seen the whole text."""

from __future__ import annotations

import torch
from torch import Tensor

from retrievalkit.builtin.poolers.single_vector import SingleVector


class Last(SingleVector):
    """One vector per text: the state of its last real token, which is the end token if the tokenizer adds one."""

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The last real token's state."""
        return last_state(hidden, mask)


def last_state(states: Tensor, mask: Tensor) -> Tensor:
    """The state (batch, width) of each text's last token at which the mask (batch, tokens) is not 0."""
    n_texts, n_tokens = mask.shape
    last = n_tokens - 1 - mask.long().flip(1).argmax(dim=1)  # (batch,)
    return states[torch.arange(n_texts, device=mask.device), last]
