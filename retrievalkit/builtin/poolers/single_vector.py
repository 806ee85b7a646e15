"""What `cls`, `mean` and `last` share: one vector a text, from one layer, normalised where that is wanted."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor
from torch.nn import functional

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates, absolute_layer


class SingleVector(Pooler):
    """One vector a text, made of the hidden states of one layer; a subclass says how."""

    def __init__(self, info: EncoderInfo, *, normalize: bool = False, layer: int = -1) -> None:
        """Choose the layer.

        Args:
            info: Of the encoder.
            normalize: Scale each vector to length 1, so that inner products are cosines.
            layer: The layer it is taken from; 0 = embeddings, -1 = the last.
        """
        super().__init__()
        self.normalize = normalize
        self.layer = absolute_layer(layer, info)
        self.needs = Needs(layers=(self.layer,))

    def forward(self, states: TokenStates, side: Side) -> Representation:  # noqa: ARG002 - both sides alike
        """The vectors (batch, 1, width)."""
        vectors = self.pool(states.layers[self.layer], states.attention_mask)  # (batch, width)
        if self.normalize:
            vectors = functional.normalize(vectors, dim=-1)
        return Representation(vectors=vectors[:, None])

    @abstractmethod
    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Of the hidden states (batch, tokens, width) and their mask (batch, tokens), the vectors (batch, width)."""
