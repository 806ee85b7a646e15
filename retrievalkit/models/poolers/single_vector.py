"""The poolers of one vector per text: `cls`, `mean`, `max`, `last` and `projected`, each from one layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import Literal, get_args

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates, absolute_layer
from retrievalkit.errors import OptionError

Pooling = Literal["cls", "max", "mean", "sqrt_mean", "weighted_mean", "last"]
Activation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]


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


_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "identity": nn.Identity,
    "tanh": nn.Tanh,
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
}


class Projected(SingleVector):
    """One vector per text: poolings of the token states side by side, and linear layers above them.

    Takes published models with a projection, such as LaBSE, GTR and Sentence-T5; their weights come with the model.
    """

    def __init__(
        self,
        info: EncoderInfo,
        *,
        pooling: tuple[Pooling, ...] = ("mean",),
        dimensions: tuple[PositiveInt, ...] = (),
        activations: tuple[Activation, ...] = (),
        bias: bool = True,
        normalize: bool = False,
        layer: int = -1,
    ) -> None:
        """Choose poolings and layers.

        Args:
            info: The encoder's sizes.
            pooling: How token states become a vector; several are joined in this order. "sqrt_mean" is their sum over
                the root of their number, and in "weighted_mean" the n-th token has the weight n.
            dimensions: The size of the vector after each linear layer; none = no layers.
            activations: The function after each linear layer; none = identity.
            bias: Whether the linear layers have a bias.
            normalize: Scale each vector to length 1, so that inner products are cosines.
            layer: The layer whose states are pooled; 0 = embeddings, -1 = the last.
        """
        super().__init__(info, normalize=normalize, layer=layer)
        if not pooling:
            msg = f"pooler 'projected' has no pooling. Name one or several of {', '.join(get_args(Pooling))}."
            raise OptionError(msg)
        if activations and len(activations) != len(dimensions):
            msg = (
                f"pooler 'projected' has {len(dimensions)} dimensions and {len(activations)} activations. Give an "
                f"activation for each, or none."
            )
            raise OptionError(msg)
        self.pooling = pooling
        widths = [len(pooling) * info.width, *dimensions]
        identity: Activation = "identity"
        functions = activations or (identity,) * len(dimensions)
        self.layers = nn.ModuleList(nn.Linear(*sizes, bias=bias) for sizes in zip(widths, dimensions, strict=False))
        self.activations = nn.ModuleList(_ACTIVATIONS[name]() for name in functions)

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """The vectors (batch, dimension)."""
        vectors = torch.cat([_POOLINGS[name](hidden, mask) for name in self.pooling], dim=1)
        for linear, activation in zip(self.layers, self.activations, strict=True):
            vectors = activation(linear(vectors))
        return vectors


def _sqrt_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(hidden, mask) * mask.sum(dim=1, keepdim=True).clamp(min=1).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask.long().cumsum(dim=1) * mask  # (batch, tokens): 1, 2, 3 ... at real tokens
    states = hidden.masked_fill(~mask.bool()[:, :, None], 0.0)
    return (states * weights[:, :, None]).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


_POOLINGS: dict[Pooling, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": first_state,
    "max": masked_max,
    "mean": masked_mean,
    "sqrt_mean": _sqrt_mean,
    "weighted_mean": _weighted_mean,
    "last": last_state,
}
