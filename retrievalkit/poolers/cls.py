"""The state of the first token as the text's vector, as DPR takes BERT's [CLS]."""

from __future__ import annotations

import torch
from torch.nn import functional

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates, absolute_layer


class Cls(Pooler):
    """One vector a text: the state of its first real token.

    For encoders that put a [CLS]-like token in front of each text. One that does not (T5) gives the state of the first
    word piece, and a decoder-only one a state that has seen nothing else: take `mean` or `last` for these.

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
        rows = torch.arange(len(states.attention_mask), device=states.attention_mask.device)
        first = states.attention_mask.long().argmax(dim=1)  # (batch,), not 0 where padding is on the left
        vectors = states.layers[self.layer][rows, first]  # (batch, width)
        if self.normalize:
            vectors = functional.normalize(vectors, dim=-1)
        return Representation(vectors=vectors[:, None])
