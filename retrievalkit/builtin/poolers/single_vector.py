"""The poolers `cls`, `mean`, `max` and `last`: one vector per text, from one layer, normalised on request."""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates, absolute_layer


class SingleVector(Pooler):
    """One vector per text, made from the hidden states of one layer; `pool` says how."""

    def __init__(self, info: EncoderInfo, *, normalize: bool = False, layer: int = -1) -> None:
        """Choose the layer.

        Args:
            info: The encoder's sizes.
            normalize: Scale each vector to length 1, so that inner products are cosines.
            layer: The layer whose states are pooled; 0 = embeddings, -1 = the last.
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
        """The vectors (batch, width) of hidden states (batch, tokens, width) with their mask (batch, tokens)."""


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


class Mean(SingleVector):
    """One vector per text: the mean over its real tokens, [CLS]- and [SEP]-like ones included."""

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The masked mean."""
        return masked_mean(hidden, mask)


def masked_mean(states: Tensor, mask: Tensor) -> Tensor:
    """The mean of the states (batch, tokens, width) at which the mask (batch, tokens) is not 0; zeros for an empty row.

    Summed in float32 at least, since bf16 would lose the small states of a long text.
    """
    real = mask.bool()
    dtype = torch.promote_types(states.dtype, torch.float32)
    # Filled, not multiplied: states at padding may be infinite.
    total = states.masked_fill(~real[:, :, None], 0.0).sum(dim=1, dtype=dtype)  # (batch, width)
    return total / real.sum(dim=1, keepdim=True).clamp(min=1)


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
