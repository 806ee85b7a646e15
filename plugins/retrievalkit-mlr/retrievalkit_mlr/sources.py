"""Sources of a document's vectors: one vector per selected layer, or one per token.

The first vector is always the text's ordinary vector, as in a plain dual encoder: queries are encoded to it, and
self-contrastive pooling keeps it.
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
"""Layers 10 and 12 of 12, the paper's best combination."""


class Source(Protocol):
    """Extracts the vectors of a batch of documents."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose states are needed, highest first."""

    @property
    def size(self) -> int | None:
        """Number of vectors per text; None = one per token."""

    def names(self, count: int) -> list[str]:
        """The names of the first `count` vectors."""

    def __call__(self, states: TokenStates) -> tuple[Tensor, Tensor | None]:
        """The vectors (batch, m, width) and a mask (batch, m) of those that exist, or None if all do."""


@dataclass(frozen=True)
class LayerVectors:
    """One vector per selected layer, highest first."""

    layers: tuple[int, ...]
    token: TokenRule

    @property
    def size(self) -> int:
        """The number of layers."""
        return len(self.layers)

    def names(self, count: int) -> list[str]:
        """Name vectors after their layers."""
        return [f"layer {layer}" for layer in self.layers[:count]]

    def __call__(self, states: TokenStates) -> tuple[Tensor, None]:
        """The vectors (batch, layers, width)."""
        return torch.stack([text_vector(states, layer, self.token) for layer in self.layers], dim=1), None


@dataclass(frozen=True)
class TokenVectors:
    """One vector per token of the last layer, for the first `size` tokens or for all (None).

    If a text's ordinary vector is the mean over its tokens (T5), that mean comes first, and `size` - 1 tokens follow.
    """

    layers: tuple[int, ...]
    size: int | None
    token: TokenRule

    def names(self, count: int) -> list[str]:
        """Name the text's ordinary vector ([CLS], or the mean) "lead", and number the tokens after it."""
        return ["lead", *(f"token {number}" for number in range(1, count))]

    def __call__(self, states: TokenStates) -> tuple[Tensor, Tensor]:
        """The vectors (batch, m, width) and a mask (batch, m), False past the end of a text."""
        (layer,) = self.layers
        hidden = states.layers[layer]  # (batch, tokens, width)
        lead = text_vector(states, layer, self.token)  # (batch, width)
        has_first = _takes_first(states, self.token)  # (batch,)
        n_tokens, width = hidden.shape[1:]
        rest = self.size - 1 if self.size else n_tokens - int(bool(has_first.all()))
        # If the first token is the lead, start at the second so as not to repeat it.
        start = states.first + has_first.long()  # (batch,)
        positions = start[:, None] + torch.arange(rest, device=hidden.device)  # (batch, m - 1)
        inside = positions.clamp(max=n_tokens - 1)
        valid = (positions < n_tokens) & states.attention_mask.bool().gather(1, inside)  # (batch, m - 1)
        others = hidden.gather(1, inside[:, :, None].expand(-1, -1, width))  # (batch, m - 1, width)
        vectors = torch.cat([lead[:, None], others], dim=1)  # (batch, m, width)
        mask = torch.cat([torch.ones_like(has_first)[:, None], valid], dim=1)  # (batch, m)
        return vectors, mask


def choose_source(
    info: EncoderInfo, layers: Sequence[int] | None, tokens: int | Literal["all"] | None, token: TokenRule
) -> Source:
    """Create the source that a pooler's options specify.

    Raises:
        OptionError: Both layers and tokens are set, a layer is repeated, or no layers or tokens are given.
        UnsupportedError: The encoder lacks one of the layers.
    """
    if tokens is not None:
        if layers is not None:
            listed = ",".join(map(str, layers))
            msg = f"layers={listed} and tokens={tokens} are both set, but exclude each other. Drop one."
            raise OptionError(msg)
        if tokens != "all" and tokens < 1:
            msg = f"tokens is {tokens}, and must be 1 or more (the number of leading tokens), or 'all'."
            raise OptionError(msg)
        return TokenVectors((info.layers,), None if tokens == "all" else tokens, token)
    wanted = DEFAULT_LAYERS if layers is None else tuple(layers)
    return LayerVectors(absolute_layers(wanted, info), token)


def text_vector(states: TokenStates, layer: int, token: TokenRule) -> Tensor:
    """One vector per text (batch, width) from one layer: the state of its first token, or the mean over all tokens.

    "auto" uses the first token if it is special ([CLS]), and the mean if the text begins with a word (T5).
    """
    hidden = states.layers[layer]  # (batch, tokens, width)
    first = hidden[torch.arange(hidden.shape[0], device=hidden.device), states.first]  # (batch, width)
    has_first = _takes_first(states, token)  # (batch,)
    # A shortcut, which a traced graph cannot have.
    if not torch.compiler.is_exporting() and bool(has_first.all()):
        return first
    mean = masked_mean(hidden, states.attention_mask.bool())
    return torch.where(has_first[:, None], first.to(mean.dtype), mean)


def masked_mean(vectors: Tensor, mask: Tensor) -> Tensor:
    """The mean (batch, width) of the vectors (batch, m, width) whose mask (batch, m) is True; zeros if none is.

    Accumulates in at least float32, since long sums in bf16 lose small addends.
    """
    dtype = torch.promote_types(vectors.dtype, torch.float32)
    total = vectors.masked_fill(~mask[:, :, None], 0.0).sum(dim=1, dtype=dtype)  # (batch, width)
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1)


def _takes_first(states: TokenStates, token: TokenRule) -> Tensor:
    """(batch,): True if the text's vector is the state of its first token."""
    starts_special = states.special_mask.bool().gather(1, states.first[:, None])[:, 0]
    if token == "auto":
        return starts_special
    return torch.full_like(starts_special, token == "first")
