"""Poolers over several vectors of a document.

After "Investigating Multi-layer Representations for Dense Passage Retrieval". A document has m vectors d_1 ... d_m, d_1
from the last layer; a query has a single vector, from the last layer, as in a dual encoder. The document is indexed as

    multi_layer        all m: the score is the largest of the m inner products
    self_contrastive   d_1 only; the others exist only in training, where the loss contrasts them with d_1
    layer_average      (d_1 + ... + d_m) / m
    scalar_mix         sum_i softmax(alpha)_i d_i, alpha learned
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from retrievalkit.contracts import (
    EncoderInfo,
    Needs,
    Pooler,
    Representation,
    Side,
    TokenStates,
    absolute_layers,
    masked_mean,
)
from retrievalkit.errors import OptionError, UnsupportedError

TokenRule = Literal["auto", "first", "mean"]
DEFAULT_LAYERS = (-3, -1)
"""Layers 10 and 12 of 12, the paper's best combination."""


class MultiVector(Pooler):
    """Base of the four poolers: options, the query's vector, and the m vectors of a document."""

    def __init__(
        self,
        info: EncoderInfo,
        *,
        layers: tuple[int, ...] | None = None,
        tokens: int | Literal["all"] | None = None,
        token: TokenRule = "auto",
        normalize: bool = False,
    ) -> None:
        """Select the vectors of a document.

        Args:
            info: Properties of the encoder.
            layers: Layers that each contribute one vector, in any order; 0 = embeddings, -1 = the last. None = -3,-1
                (layers 10 and 12 of 12), unless `tokens` is set.
            tokens: Number of leading tokens of the last layer that each contribute one vector (8: ME-BERT), or "all"
                tokens (ColBERT); instead of `layers`.
            token: State that represents the text in a layer: the "first" token's, the "mean" over all tokens, or
                "auto": the first token's if it is a special token ([CLS]), otherwise the mean (T5).
            normalize: L2-normalise every vector (averages after averaging). The paper does not; encoders trained with
                cosine similarity need it.
        """
        super().__init__()
        if tokens is not None and layers is not None:
            msg = f"layers={','.join(map(str, layers))} and tokens={tokens} exclude each other. Set only one of them."
            raise OptionError(msg)
        if isinstance(tokens, int) and tokens < 1:
            msg = f"tokens is {tokens}, but must be 1 or more (the number of leading tokens), or 'all'."
            raise OptionError(msg)
        self.info = info
        self.tokens = tokens
        self.token: TokenRule = token
        self.normalize = self.cosine = normalize
        chosen = DEFAULT_LAYERS if layers is None else layers
        self.layers = absolute_layers(chosen, info) if tokens is None else (info.layers,)
        self.setup()

    def setup(self) -> None:
        """Check the layers and create parameters. Subclasses override this, not `__init__`, to share its options."""

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The last layer for queries, the chosen layers for documents."""
        return Needs(layers={"query": (self.info.layers,), "document": self.layers})

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """Return the vectors of queries (batch, 1, width), or the pooled vectors of documents."""
        representation = self.represent(states, side)
        if self.normalize and representation.vectors is not None:
            representation.vectors = nn.functional.normalize(representation.vectors, dim=-1)
        return representation

    def represent(self, states: TokenStates, side: Side) -> Representation:
        """Return the representation of `forward`, before normalisation."""
        if side == "query":
            return Representation(self.text_vector(states, self.info.layers)[:, None])
        if self.tokens is None:
            return self.combine(torch.stack([self.text_vector(states, layer) for layer in self.layers], dim=1), None)
        return self.combine(*self._token_vectors(states, self.tokens))

    def text_vector(self, states: TokenStates, layer: int) -> Tensor:
        """Return a layer's ordinary vectors (batch, width): the first token's state, or the mean over all tokens."""
        first, has_first = states.first_states(layer), self._has_first(states)
        if _all_true(has_first):
            return first
        mean = masked_mean(states.layers[layer], states.attention_mask)
        return torch.where(has_first[:, None], first.to(mean.dtype), mean)

    def _has_first(self, states: TokenStates) -> Tensor:
        """Return (batch,) bool: True if the text's vector is the state of its first token."""
        starts_special = states.special_mask.bool().gather(1, states.first[:, None])[:, 0]
        return starts_special if self.token == "auto" else torch.full_like(starts_special, self.token == "first")

    def _token_vectors(self, states: TokenStates, tokens: int | Literal["all"]) -> tuple[Tensor, Tensor]:
        """Return the leading tokens' vectors (batch, m, width) and a mask (batch, m), False past the end of a text.

        If a text's ordinary vector is the mean over its tokens (T5), that mean comes first, followed by the tokens.
        """
        hidden = states.layers[self.info.layers]  # (batch, tokens, width)
        has_first = self._has_first(states)
        n_tokens, width = hidden.shape[1:]
        rest = n_tokens - int(_all_true(has_first)) if tokens == "all" else tokens - 1
        # If the first token leads, start at the second so as not to repeat it.
        positions = (states.first + has_first.long())[:, None] + torch.arange(rest, device=hidden.device)
        inside = positions.clamp(max=n_tokens - 1)
        valid = (positions < n_tokens) & states.attention_mask.bool().gather(1, inside)  # (batch, m - 1)
        others = hidden.gather(1, inside[:, :, None].expand(-1, -1, width))  # (batch, m - 1, width)
        vectors = torch.cat([self.text_vector(states, self.info.layers)[:, None], others], dim=1)
        return vectors, torch.cat([torch.ones_like(has_first)[:, None], valid], dim=1)

    @abstractmethod
    def combine(self, vectors: Tensor, mask: Tensor | None) -> Representation:
        """Combine the vectors (batch, m, width) and their mask (batch, m) into the document's representation."""


def _all_true(mask: Tensor) -> bool:
    """True if the mask is all True; False on a GPU, where reading it would synchronise, and in a traced graph."""
    return mask.device.type == "cpu" and not torch.compiler.is_exporting() and bool(mask.all())


class MultiLayer(MultiVector):
    """Multi-vector documents (ME-BERT, MLR): all m vectors are indexed; the largest inner product is the score.

    `rkit train --pooler multi_layer --set pooler.layers=10,12`
    """

    def view_names(self, count: int) -> list[str]:
        """Name vectors after their layers; or the ordinary vector "lead", and number the tokens after it."""
        if self.tokens is None:
            return [f"layer {layer}" for layer in self.layers[:count]]
        return ["lead", *(f"token {number}" for number in range(1, count))]

    def combine(self, vectors: Tensor, mask: Tensor | None) -> Representation:
        """Return all m vectors, unchanged."""
        return Representation(vectors=vectors, vector_mask=mask)


class SelfContrastive(MultiVector):
    """MLR's self-contrastive pooling: all m vectors in training, only the last layer's vector in the index.

    `rkit train --pooler self_contrastive --set pooler.layers=10,12`. Encoding, indexing and searching cost the same as
    for a plain dual encoder. The loss `self_contrastive` trains it.
    """

    default_loss = "self_contrastive"

    def setup(self) -> None:
        """Check that the kept vector is among the m vectors."""
        if self.layers[0] != self.info.layers:
            listed = ",".join(map(str, sorted(self.layers)))
            msg = f"pooler 'self_contrastive' keeps the vector of the last layer ({self.info.layers}), which is not in "
            msg += f"layers={listed}. Add it: layers={listed},-1"
            raise UnsupportedError(msg)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The chosen layers for documents while training, otherwise the last layer."""
        document = self.layers if self.training else (self.info.layers,)
        return Needs(layers={"query": (self.info.layers,), "document": document})

    def represent(self, states: TokenStates, side: Side) -> Representation:
        """Return (batch, m, width) for documents in training, else (batch, 1, width); the first vector is kept."""
        if side == "document" and not self.training:
            return Representation(self.text_vector(states, self.info.layers)[:, None], kept=0)
        return super().represent(states, side)

    def combine(self, vectors: Tensor, mask: Tensor | None) -> Representation:
        """Return all m vectors, with the first marked as kept."""
        return Representation(vectors=vectors, vector_mask=mask, kept=0)


class LayerAverage(MultiVector):
    """Average of the m vectors as the document's single vector."""

    def combine(self, vectors: Tensor, mask: Tensor | None) -> Representation:
        """Return the mean (batch, 1, width) of the unmasked vectors."""
        valid = vectors.new_ones(vectors.shape[:2], dtype=torch.bool) if mask is None else mask
        return Representation(vectors=masked_mean(vectors, valid)[:, None])


class ScalarMix(MultiVector):
    """Learned weighting of the m vectors as the document's single vector: sum_i softmax(alpha)_i d_i.

    One alpha per selected layer, highest layer first, or per token position, initialised to 0, which makes the mix the
    average. Unlike ELMo's mix, it has no overall scale. If a text is too short to have all m vectors, the weights of
    its vectors are renormalised to sum to 1.
    """

    def setup(self) -> None:
        """Create one alpha per vector."""
        if self.tokens == "all":
            msg = "pooler 'scalar_mix' needs a fixed number of vectors, but with tokens=all it varies with the text. "
            msg += "Set a number, such as tokens=8, or layers."
            raise OptionError(msg)
        self.alpha = nn.Parameter(torch.zeros(self.tokens or len(self.layers)))

    def combine(self, vectors: Tensor, mask: Tensor | None) -> Representation:
        """Return the weighted sum (batch, 1, width) of the unmasked vectors."""
        alpha = self.alpha.expand(vectors.shape[:2])  # (batch, m)
        alpha = alpha if mask is None else alpha.masked_fill(~mask, float("-inf"))
        return Representation(vectors=(alpha.softmax(dim=1)[:, :, None] * vectors).sum(dim=1, keepdim=True))
