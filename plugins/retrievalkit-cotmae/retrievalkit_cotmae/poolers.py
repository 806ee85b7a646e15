"""The representation of CoT-MAE v2: a dense vector and sparse weights over the vocabulary, from one encoder.

With h_t the last hidden state of token t, t = 0 being the first token ([CLS]), z_t[j] its logit for term j from the
encoder's own masked language model head, and top_k(x) the vector x with all but its k largest entries set to 0:

    DEN    = h_0
    SPR[j] = max over the tokens t of the text of  log(1 + relu(z_t[j]))
    score  = <DEN_q, DEN_d>  +  <top_k(SPR_q), top_k(SPR_d)>

SPR by itself, over all tokens and without top_k, is SPLADE-max (Formal et al. 2021).
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import PositiveInt
from torch import nn

from retrievalkit.contracts import (
    EncoderInfo,
    Needs,
    Pooler,
    Representation,
    Side,
    TokenStates,
    absolute_layers,
    refuse_idle,
)
from retrievalkit.errors import OptionError
from retrievalkit.scoring import lexical


class DenseSparse(Pooler):
    """CoT-MAE v2 or SPLADE: a dense vector, sparse weights over the vocabulary, or both, with their scores summed.

    SPLADE-max: `rkit train --pooler dense_sparse --set pooler.views=sparse --set pooler.pooled_tokens=all`. The sparse
    view needs an encoder with a vocabulary head, the dense view a [CLS]-like token at the start of each text.
    """

    default_loss = "dense_sparse"

    def __init__(
        self,
        info: EncoderInfo,
        *,
        views: Literal["dense", "sparse", "both"] = "both",
        top_k: PositiveInt | None = 768,
        pooled_tokens: Literal["text", "all"] = "text",
        sparse_head: Literal["complete", "projection"] = "complete",
        dimension: PositiveInt | None = None,
        layers: tuple[int, ...] | None = None,
        keep: Literal["all", "last"] = "all",
        normalize: bool = False,
    ) -> None:
        """Choose the views and their sizes.

        Args:
            info: Properties of the encoder.
            views: Represent a text by its "dense" vector, its "sparse" weights, or "both".
            top_k: Number of largest weights to keep per query or document, in training as well; the others are set to
                0 and receive no gradient. Ties keep the term with the lower id. None = all.
            pooled_tokens: Tokens to pool weights over: only the "text" (the paper), or "all", including [CLS] and
                [SEP] (SPLADE). Padding is always excluded.
            sparse_head: Compute logits with the "complete" vocabulary head, or with only its "projection", one linear
                map, as printed in Eq. 4.
            dimension: Length of the dense vector, produced by one linear map with bias shared by queries and
                documents. None = the hidden state itself.
            layers: Layers that each contribute one dense vector per document, in any order; 0 = embeddings, -1 = the
                last. Queries and the sparse view always use the last layer. None = the last.
            keep: Dense vectors of a document to index: "all", or only the "last" layer's, with the others used in
                training by the loss self_contrastive.
            normalize: L2-normalise dense vectors. The paper does not.
        """
        dense, sparse = (views != "sparse", "views"), (views != "dense", "views")
        refuse_idle(
            locals(),
            dict.fromkeys(("dimension", "layers", "keep", "normalize"), dense)
            | dict.fromkeys(("pooled_tokens", "sparse_head"), sparse),
        )
        super().__init__()
        self.info = info
        self.dense = views != "sparse"
        self.sparse = views != "dense"
        self.top_k = top_k
        if self.sparse and top_k is not None and top_k > info.vocabulary_size:
            msg = f"top_k of pooler 'dense_sparse' is {top_k}, but the vocabulary has {info.vocabulary_size} terms. "
            msg += f"Set top_k={info.vocabulary_size} or less, or null to keep all weights."
            raise OptionError(msg)
        self.pooled_tokens = pooled_tokens
        self.sparse_head = sparse_head
        self.layers = absolute_layers((-1,) if layers is None else layers, info, keep=keep)
        self.keep = keep
        self.normalize = normalize
        self.cosine = normalize and not self.sparse
        self.projection = None if dimension is None else nn.Linear(info.width, dimension)

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """Needs: the last layer for queries, the layers of the views for documents, the head for the sparse view."""
        last = (self.info.layers,)
        document = {*(self._dense_layers("document") if self.dense else ()), *(last if self.sparse else ())}
        return Needs(layers={"query": last, "document": tuple(sorted(document))}, vocabulary_head=self.sparse)

    def view_names(self, count: int) -> list[str]:
        """Name dense vectors after their layers."""
        return [f"layer {layer}" for layer in self.layers[:count]]

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """Return vectors (batch, m, dimension), m = 1 for queries, and float32 weights (batch, vocabulary)."""
        vectors = weights = None
        if self.dense:
            # (batch, m, dimension): the first real token's state in each layer, the highest layer first.
            vectors = torch.stack([states.first_states(layer) for layer in self._dense_layers(side)], dim=1)
            vectors = vectors if self.projection is None else self.projection(vectors)
            vectors = nn.functional.normalize(vectors, dim=-1) if self.normalize else vectors
        if self.sparse:
            head = states.head
            if self.sparse_head == "projection":
                head = lexical.linear_head(head, self.info.width, "pooler.sparse_head=complete")
            assert head is not None, "`needs` requests the vocabulary head"
            mask = lexical.text_mask(states) if self.pooled_tokens == "text" else states.attention_mask.bool()
            weights = lexical.max_saturated(states.layers[self.info.layers], head, mask)
            weights = weights if self.top_k is None else lexical.keep_top_k(weights, self.top_k)
        return Representation(vectors, None, weights, kept=0 if self.keep == "last" and side == "document" else None)

    def _dense_layers(self, side: Side) -> tuple[int, ...]:
        if side == "query":
            return (self.info.layers,)
        return self.layers if self.training or self.keep == "all" else self.layers[:1]
