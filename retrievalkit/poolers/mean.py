"""The mean of the token states as the text's vector."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates, absolute_layer


class Mean(Pooler):
    """One vector a text: the mean over its real tokens, [CLS]- and [SEP]-like ones included.

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
        vectors = masked_mean(states.layers[self.layer], states.attention_mask)  # (batch, width)
        if self.normalize:
            vectors = functional.normalize(vectors, dim=-1)
        return Representation(vectors=vectors[:, None])


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of the states (batch, tokens, width) where the mask (batch, tokens) is not 0; zeros for an empty row.

    Summed in float32 at least, since bf16 would lose the small states of a long text.
    """
    real = mask.bool()
    dtype = torch.promote_types(states.dtype, torch.float32)
    # Filled, not multiplied: what stands at padding may be anything, infinity too.
    total = states.masked_fill(~real[:, :, None], 0.0).sum(dim=1, dtype=dtype)  # (batch, width)
    return total / real.sum(dim=1, keepdim=True).clamp(min=1)
