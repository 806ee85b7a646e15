"""Single-vector poolers: `cls`, `mean`, `max`, `last` and `projected`, each from one layer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from retrievalkit.contracts import (
    EncoderInfo,
    Needs,
    Pooler,
    Representation,
    Side,
    TokenStates,
    absolute_layer,
    masked_mean,
)
from retrievalkit.errors import OptionError

Pooling = Literal["cls", "max", "mean", "sqrt_mean", "weighted_mean", "last"]
Activation = Literal["identity", "tanh", "relu", "gelu", "sigmoid", "silu"]


def _cls(hidden: Tensor, mask: Tensor) -> Tensor:
    first = mask.long().argmax(dim=1)  # (batch,), above 0 if padding is on the left
    states = hidden[torch.arange(mask.shape[0], device=mask.device), first]
    # A text without tokens, as a decoder's tokenizer may return, would get a state of the padding.
    return states.masked_fill(~mask.bool().any(dim=1, keepdim=True), 0.0)


def _last(hidden: Tensor, mask: Tensor) -> Tensor:
    return _cls(hidden.flip(1), mask.flip(1))


def _max(hidden: Tensor, mask: Tensor) -> Tensor:
    real = mask.bool()
    largest = hidden.masked_fill(~real[:, :, None], -torch.inf).amax(dim=1)  # (batch, width)
    return largest.masked_fill(~real.any(dim=1, keepdim=True), 0.0)


def _sqrt_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    return masked_mean(hidden, mask) * mask.sum(dim=1, keepdim=True).clamp(min=1).sqrt()


def _weighted_mean(hidden: Tensor, mask: Tensor) -> Tensor:
    weights = mask.long().cumsum(dim=1) * mask  # (batch, tokens): 1, 2, 3 ... at real tokens
    states = hidden.masked_fill(~mask.bool()[:, :, None], 0.0)
    return (states * weights[:, :, None]).sum(dim=1) / weights.sum(dim=1, keepdim=True).clamp(min=1)


# From hidden states (batch, tokens, width) and their mask (batch, tokens) to vectors (batch, width).
_POOLINGS: dict[Pooling, Callable[[Tensor, Tensor], Tensor]] = {
    "cls": _cls, "max": _max, "mean": masked_mean, "sqrt_mean": _sqrt_mean, "weighted_mean": _weighted_mean,
    "last": _last,
}  # fmt: skip
_ACTIVATIONS: dict[Activation, Callable[[], nn.Module]] = {
    "identity": nn.Identity, "tanh": nn.Tanh, "relu": nn.ReLU, "gelu": nn.GELU, "sigmoid": nn.Sigmoid, "silu": nn.SiLU,
}  # fmt: skip


class SingleVector(Pooler):
    """One vector per text, pooled from the hidden states of one layer.

    Args:
        normalize: Scale each vector to length 1, so that inner products are cosines.
        layer: The layer whose states are pooled; 0 = embeddings, -1 = the last.
    """

    pooling: tuple[Pooling, ...]

    def __init__(self, info: EncoderInfo, *, normalize: bool = False, layer: int = -1) -> None:
        super().__init__()
        self.normalize = self.cosine = normalize
        self.layer = absolute_layer(layer, info)
        self.needs = Needs(layers=(self.layer,))

    def forward(self, states: TokenStates, side: Side) -> Representation:  # noqa: ARG002 - both sides alike
        """Return the vectors (batch, 1, width)."""
        vectors = self.pool(states.layers[self.layer], states.attention_mask)  # (batch, width)
        if self.normalize:
            vectors = functional.normalize(vectors, dim=-1)
        return Representation(vectors=vectors[:, None])

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Pool hidden states (batch, tokens, width) with their mask (batch, tokens) to vectors (batch, width)."""
        return torch.cat([_POOLINGS[name](hidden, mask) for name in self.pooling], dim=1)


class Cls(SingleVector):
    """[CLS] pooling: one vector per text, the state of its first token, as in DPR (Karpukhin et al. 2020).

        rkit train --model bert-base-uncased --pooler cls --separate-towers ...

    Needs an encoder that starts each text with a [CLS]-like token. In T5 the first token is a word piece, and in a
    decoder-only model it attends to no other token: use `mean` or `last` there.
    """

    pooling = ("cls",)


class Mean(SingleVector):
    """Mean pooling: one vector per text, the mean over its tokens, special tokens included (Sentence-BERT).

        rkit train --model bert-base-uncased --pooler mean --set pooler.normalize=true ...

    If vectors are normalised, scores are cosines, and losses divide them by the temperature 0.05.
    """

    pooling = ("mean",)


class Max(SingleVector):
    """Max pooling: one vector per text, the maximum of each dimension over its tokens, special tokens included.

        rkit train --model MODEL --pooler max ...

    For models that were trained with it; `mean` is more common.
    """

    pooling = ("max",)


class Last(SingleVector):
    """Last-token pooling: one vector per text, the state of its last token (RepLLaMA: Ma et al. 2023).

    For decoder-only models, whose last token alone attends to the whole text:

        rkit train --model MODEL --pooler last --set encoder.end_token=true --set encoder.lora_rank=16 ...
    """

    pooling = ("last",)


class Projected(SingleVector):
    """One vector per text: concatenated poolings of the token states, followed by linear layers (Dense).

    For published models with a projection, such as LaBSE, GTR and Sentence-T5, which bring its weights.

        rkit train --pooler projected --set pooler.pooling=cls,mean --set pooler.dimensions=256 ...

    Args:
        pooling: The poolings of token states, concatenated in this order. "sqrt_mean" is the sum over the root of the
            number of tokens; in "weighted_mean" the n-th token has the weight n.
        dimensions: The size of the vector after each linear layer; empty = no layers.
        activations: The activation after each linear layer; empty = identity.
        bias: Add a bias to the linear layers.
        normalize: Scale each vector to length 1, so that inner products are cosines.
        layer: The layer whose states are pooled; 0 = embeddings, -1 = the last.
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
        super().__init__(info, normalize=normalize, layer=layer)
        if not pooling:
            msg = f"pooler 'projected' has no pooling. Known: {', '.join(get_args(Pooling))}. Set pooler.pooling."
            raise OptionError(msg)
        if activations and len(activations) != len(dimensions):
            counts = f"{len(dimensions)} dimensions and {len(activations)} activations"
            msg = f"pooler 'projected' has {counts}. Set an activation for each dimension, or none."
            raise OptionError(msg)
        self.pooling = pooling
        widths = [len(pooling) * info.width, *dimensions]
        self.layers = nn.ModuleList(nn.Linear(*sizes, bias=bias) for sizes in zip(widths, dimensions, strict=False))
        functions = [_ACTIVATIONS[name]() for name in activations]
        self.activations = nn.ModuleList(functions or [nn.Identity() for _ in dimensions])

    def pool(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors (batch, dimension)."""
        vectors = super().pool(hidden, mask)
        for linear, activation in zip(self.layers, self.activations, strict=True):
            vectors = activation(linear(vectors))
        return vectors
