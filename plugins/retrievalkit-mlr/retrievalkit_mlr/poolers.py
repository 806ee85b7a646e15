"""Poolers over several vectors of a document.

After "Investigating Multi-layer Representations for Dense Passage Retrieval". A document has m vectors d_1 ... d_m, d_1
from the last layer (see `retrievalkit_mlr.sources`); a query has one, from the last layer. The document is indexed as

    multi_layer        all m: the score is the largest of the m inner products
    self_contrastive   d_1 alone; the others are there in training only, where the loss sets them against it
    layer_average      (d_1 + ... + d_m) / m
    scalar_mix         sum_i softmax(alpha)_i d_i, alpha learned
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit_mlr.sources import TokenRule, choose_source, masked_mean, text_vector


class MultiVector(Pooler):
    """What the four poolers share: options, the query's vector, and the m vectors of a document."""

    def __init__(
        self,
        info: EncoderInfo,
        *,
        layers: tuple[int, ...] | None = None,
        tokens: int | Literal["all"] | None = None,
        token: TokenRule = "auto",
        normalize: bool = False,
    ) -> None:
        """Choose where a document's vectors come from.

        Args:
            info: Of the encoder.
            layers: One vector from each of these layers, in any order; 0 = embeddings, -1 = the last. None = -3,-1
                (layers 10 and 12 of 12), unless `tokens` is set.
            tokens: One vector from each of the first so many tokens of the last layer (8: ME-BERT), or from "all" of
                them (ColBERT); instead of `layers`.
            token: Which state of a layer is a text's vector: the "first" token's, the "mean" over all tokens, or
                "auto": the first where it is a special token ([CLS]), the mean where there is none (T5).
            normalize: Whether every vector is divided by its length (L2), averages after averaging. The paper does not;
                encoders that were trained on cosines want it, with a temperature of about 0.05 in the loss.
        """
        super().__init__()
        self.info = info
        self.token: TokenRule = token
        self.normalize = normalize
        self.source = choose_source(info, layers, tokens, token)
        self.setup()

    def setup(self) -> None:
        """Check the source and make parameters; for subclasses, so that the options are declared once."""

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The last layer for queries, the source's layers for documents."""
        return Needs(layers={"query": (self.info.layers,), "document": self.source.layers})

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """A query's one vector (batch, 1, width), or what the documents become."""
        representation = self.represent(states, side)
        if self.normalize and representation.vectors is not None:
            representation.vectors = nn.functional.normalize(representation.vectors, dim=-1)
        return representation

    def represent(self, states: TokenStates, side: Side) -> Representation:
        """What `forward` returns, before any normalisation."""
        if side == "query":
            return self.text_vector(states)
        return self.combine(*self.source(states))

    def text_vector(self, states: TokenStates) -> Representation:
        """The last layer's vector of each text: what a plain dual encoder makes of it."""
        return Representation(vectors=text_vector(states, self.info.layers, self.token)[:, None])

    @abstractmethod
    def combine(self, vectors: Tensor, mask: Tensor | None) -> Representation:
        """What becomes of the vectors (batch, m, width) and their mask (batch, m)."""


class MultiLayer(MultiVector):
    """All m vectors of a document, in training and in the index; the best of them counts."""

    def view_names(self, count: int) -> list[str]:
        """By layer, or by token."""
        return self.source.names(count)

    def combine(self, vectors: Tensor, mask: Tensor | None) -> Representation:
        """All of them."""
        return Representation(vectors=vectors, vector_mask=mask)


class SelfContrastive(MultiVector):
    """All m vectors in training, for the loss `self_contrastive`; the index gets the last layer's alone.

    So it is indexed and searched exactly as a plain dual encoder is, and encoding computes nothing more.
    """

    default_loss = "self_contrastive"

    def setup(self) -> None:
        """The kept vector must be one of the m."""
        if self.source.layers[0] != self.info.layers:
            listed = ",".join(str(layer) for layer in sorted(self.source.layers))
            msg = (
                f"pooler 'self_contrastive' keeps the vector of the last layer ({self.info.layers}), which "
                f"layers={listed} leaves out. Add it: layers={listed},-1"
            )
            raise UnsupportedError(msg)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The source's layers for documents while training, otherwise the last layer."""
        document = self.source.layers if self.training else (self.info.layers,)
        return Needs(layers={"query": (self.info.layers,), "document": document})

    def represent(self, states: TokenStates, side: Side) -> Representation:
        """(batch, m, width) for documents in training, otherwise (batch, 1, width); the first is the one kept."""
        if side == "document" and not self.training:
            kept = self.text_vector(states)
            kept.kept = 0
            return kept
        return super().represent(states, side)

    def combine(self, vectors: Tensor, mask: Tensor | None) -> Representation:
        """All of them, the first marked as the one kept."""
        return Representation(vectors=vectors, vector_mask=mask, kept=0)


class LayerAverage(MultiVector):
    """The average of the m vectors as the document's one vector."""

    def combine(self, vectors: Tensor, mask: Tensor | None) -> Representation:
        """Their mean (batch, 1, width), over those that there are."""
        there = vectors.new_ones(vectors.shape[:2], dtype=torch.bool) if mask is None else mask
        return Representation(vectors=masked_mean(vectors, there)[:, None])


class ScalarMix(MultiVector):
    """A learned weighting of the m vectors as the document's one vector: sum_i softmax(alpha)_i d_i.

    One alpha for each chosen layer, highest layer first, or for each token position; zeros at the start, where it is
    the average. There is no overall scale, as ELMo's mix has. Where a text is too short to have all m vectors, the
    weights of those it has add up to 1.
    """

    def setup(self) -> None:
        """One alpha for each vector."""
        if self.source.size is None:
            msg = (
                "pooler 'scalar_mix' learns one weight for each vector, and tokens=all makes as many as a text has "
                "tokens. Set a number, such as tokens=8, or layers."
            )
            raise OptionError(msg)
        self.alpha = nn.Parameter(torch.zeros(self.source.size))

    def combine(self, vectors: Tensor, mask: Tensor | None) -> Representation:
        """Their mix (batch, 1, width)."""
        alpha = self.alpha.expand(vectors.shape[:2])  # (batch, m)
        if mask is not None:
            alpha = alpha.masked_fill(~mask, float("-inf"))
        mixed = (alpha.softmax(dim=1)[:, :, None] * vectors).sum(dim=1, keepdim=True)
        return Representation(vectors=mixed)
