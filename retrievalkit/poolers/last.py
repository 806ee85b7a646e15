"""The state of the last token as the text's vector: in a decoder-only model it alone has seen the whole text."""

from __future__ import annotations

import torch
from torch.nn import functional

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates, absolute_layer


class Last(Pooler):
    """One vector a text: the state of its last real token, which is the end token where the tokenizer adds one.

    Args:
        normalize: Scale each vector to length 1, so that inner products are cosines.
        layer: The layer it is taken from; 0 = embeddings, -1 = the last.
    """

    def __init__(self, info: EncoderInfo, *, normalize: bool = False, layer: int = -1) -> None:
        super().__init__()
        self.normalize = normalize
        self.layer = absolute_layer(layer, info)
        self.needs = Needs(layers=(self.layer,))

    def forward(self, states: TokenStates, side: Side) -> Representation:  # noqa: ARG002 - both sides alike
        """The vectors (batch, 1, width)."""
        n_texts, n_tokens = states.attention_mask.shape
        rows = torch.arange(n_texts, device=states.attention_mask.device)
        last = n_tokens - 1 - states.attention_mask.long().flip(1).argmax(dim=1)  # (batch,)
        vectors = states.layers[self.layer][rows, last]  # (batch, width)
        if self.normalize:
            vectors = functional.normalize(vectors, dim=-1)
        return Representation(vectors=vectors[:, None])
