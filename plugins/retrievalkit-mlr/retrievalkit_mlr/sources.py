"""Where a document's several vectors come from: one from each of some layers, or one from each of its tokens.

Either way the first of them is the text's ordinary vector, the one that a plain dual encoder would use: it is what
queries are encoded to, and what self-contrastive pooling keeps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from retrievalkit.contracts import EncoderInfo, TokenStates, absolute_layers
from retrievalkit.errors import OptionError

TokenRule = Literal["auto", "first", "mean"]
DEFAULT_LAYERS = (-3, -1)
"""Layers 10 and 12 of 12, the paper's best."""


class Source(Protocol):
    """Makes the vectors of a batch of documents."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose states are needed, the highest first."""

    @property
    def size(self) -> int | None:
        """How many vectors a text has; None = as many as it has tokens."""

    def names(self, count: int) -> list[str]:
        """What the first `count` vectors are called."""

    def __call__(self, states: TokenStates) -> tuple[Tensor, Tensor | None]:
        """The vectors (batch, m, width), and which of them there are (batch, m), or None where all are."""


@dataclass(frozen=True)
class LayerVectors:
    """One vector from each chosen layer, the highest first."""

    layers: tuple[int, ...]
    token: TokenRule

    @property
    def size(self) -> int:
        """As many as there are layers."""
        return len(self.layers)

    def names(self, count: int) -> list[str]:
        """By layer."""
        return [f"layer {layer}" for layer in self.layers[:count]]

    def __call__(self, states: TokenStates) -> tuple[Tensor, None]:
        """The vectors (batch, layers, width)."""
        return torch.stack([text_vector(states, layer, self.token) for layer in self.layers], dim=1), None


@dataclass(frozen=True)
class TokenVectors:
    """One vector from each of the first `size` tokens of the last layer, or from each of all its tokens (None).

    Where a text's vector is the mean over its tokens (T5), that mean comes first, and `size` - 1 tokens follow.
    """

    layers: tuple[int, ...]
    size: int | None
    token: TokenRule

    def names(self, count: int) -> list[str]:
        """The text's ordinary vector ([CLS], or the mean) is the lead; tokens are numbered behind it."""
        return ["lead", *(f"token {number}" for number in range(1, count))]

    def __call__(self, states: TokenStates) -> tuple[Tensor, Tensor]:
        """The vectors (batch, m, width), and True where the text has such a token."""
        (layer,) = self.layers
        hidden = states.layers[layer]  # (batch, tokens, width)
        lead = text_vector(states, layer, self.token)  # (batch, width)
        has_first = _takes_first(states, self.token)  # (batch,)
        n_tokens, width = hidden.shape[1:]
        rest = self.size - 1 if self.size else n_tokens - int(bool(has_first.all()))
        # The first token is not taken again where it is the lead.
        start = states.first + has_first.long()  # (batch,)
        positions = start[:, None] + torch.arange(rest, device=hidden.device)  # (batch, m - 1)
        inside = positions.clamp(max=n_tokens - 1)
        there = (positions < n_tokens) & states.attention_mask.bool().gather(1, inside)  # (batch, m - 1)
        others = hidden.gather(1, inside[:, :, None].expand(-1, -1, width))  # (batch, m - 1, width)
        vectors = torch.cat([lead[:, None], others], dim=1)  # (batch, m, width)
        mask = torch.cat([torch.ones_like(has_first)[:, None], there], dim=1)  # (batch, m)
        return vectors, mask


def choose_source(
    info: EncoderInfo, layers: Sequence[int] | None, tokens: int | Literal["all"] | None, token: TokenRule
) -> Source:
    """The source that a pooler's options name.

    Raises:
        OptionError: Both layers and tokens are named, a layer is named twice, or there are no layers or tokens.
        UnsupportedError: The encoder has no such layer.
    """
    if tokens is not None:
        if layers is not None:
            listed = ",".join(map(str, layers))
            msg = f"layers={listed} and tokens={tokens} are both set, and only one can be. Leave one out."
            raise OptionError(msg)
        if tokens != "all" and tokens < 1:
            msg = f"tokens is {tokens}: it is how many of the first tokens are taken, 1 or more, or 'all'."
            raise OptionError(msg)
        return TokenVectors((info.layers,), None if tokens == "all" else tokens, token)
    wanted = DEFAULT_LAYERS if layers is None else tuple(layers)
    return LayerVectors(absolute_layers(wanted, info), token)


def text_vector(states: TokenStates, layer: int, token: TokenRule) -> Tensor:
    """One vector for each text (batch, width) from one layer: the state of its first token, or the mean of all.

    "auto" takes the first token where it is a special one ([CLS]), and the mean where the text begins with a word (T5).
    """
    hidden = states.layers[layer]  # (batch, tokens, width)
    first = hidden[torch.arange(len(hidden), device=hidden.device), states.first]  # (batch, width)
    has_first = _takes_first(states, token)  # (batch,)
    if bool(has_first.all()):
        return first
    mean = masked_mean(hidden, states.attention_mask.bool())
    return torch.where(has_first[:, None], first.to(mean.dtype), mean)


def masked_mean(vectors: Tensor, mask: Tensor) -> Tensor:
    """The mean (batch, width) of the vectors (batch, m, width) where the mask (batch, m) is True, or zeros if nowhere.

    Summed in float32 at least, since bf16 would lose the small ones among many.
    """
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    total = vectors.masked_fill(~mask[:, :, None], 0.0).sum(dim=1, dtype=dtype)  # (batch, width)
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _takes_first(states: TokenStates, token: TokenRule) -> Tensor:
    """(batch,) True where a text's vector is its first token's."""
    starts_special = states.special_mask.bool().gather(1, states.first[:, None])[:, 0]
    if token == "auto":
        return starts_special
    return torch.full_like(starts_special, token == "first")
