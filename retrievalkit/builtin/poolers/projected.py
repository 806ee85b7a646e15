"""One or several poolings joined, then linear layers, as the modules Pooling and Dense of sentence-transformers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from pydantic import PositiveInt
from torch import Tensor, nn

from retrievalkit.builtin.poolers.single_vector import (
    SingleVector,
    first_state,
    last_state,
    masked_max,
    masked_mean,
)
from retrievalkit.contracts import EncoderInfo
from retrievalkit.errors import OptionError

Pooling = Literal["cls", "max", "mean", "sqrt_mean", "weighted_mean", "last"]
Activation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]

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
