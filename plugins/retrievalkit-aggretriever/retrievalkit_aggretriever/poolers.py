"""Aggretriever: concatenates a projection of [CLS] and the pooled word predictions of all other tokens of a text.

After "Aggretriever: A Simple Approach to Aggregate Textual Representations for Robust Dense Passage Retrieval". With
h_t the states of the tokens, h_0 the state of [CLS], and z_t the logits of the vocabulary head at token t > 0:

    c    = W_c h_0 + b_c                                   the part "cls"
    w_t  = | u . h_t + b |                                 the weight of a token
    v[j] = max over t > 0 of  w_t softmax(z_t)[j]          one value for each term j of the vocabulary
    agg* = v, max-pooled in slices of the vocabulary       the part "agg", see `retrievalkit_aggretriever.slices`

Two texts are compared by the inner product of (c, agg*). Queries and documents share all projections.
"""

from __future__ import annotations

from typing import Literal

import torch
from pydantic import NonNegativeInt
from torch import Tensor, nn

from retrievalkit.contracts import (
    Encoder,
    EncoderInfo,
    Needs,
    Pooler,
    Representation,
    Side,
    Text,
    TokenStates,
    absolute_layer,
    absolute_layers,
    masked_mean,
    refuse_idle,
)
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.scoring.lexical import linear_head, max_weighted_softmax, text_mask
from retrievalkit_aggretriever.published import load_projections
from retrievalkit_aggretriever.slices import DROP_LIMIT, Remainder, SlicePooling, SliceRule, check_fits, drops


class Aggretriever(Pooler):
    """Aggretriever (Lin et al. 2023): [CLS] and the word predictions of all other tokens, as one vector per text.

    `rkit train --pooler aggretriever --set pooler.agg_dim=640`. The vector matches words as well as meaning.

    Args:
        cls_dim: Size of the part "cls"; 0 = none.
        agg_dim: Size of the part "agg"; "vocabulary" = all terms, not pooled; 0 = none.
        aggregation: Pooling for "agg": "full" (agg*, two slices per dimension, distinguished by sign), "semi" (agg+,
            one slice per dimension), "linear" (a linear map of all terms, whose weights are drawn with variance
            1 / agg_dim), or "average" (a linear map of the mean state).
        term_weight: Weight of a token: its absolute value, "abs" (the paper), "signed" (the released code, for its
            checkpoints), or "none" (1 for all).
        vocabulary_head: A token contributes to all terms that the vocabulary head predicts at it, or (false) only to
            the term of the token itself: the variant without masked language model.
        head: Compute logits with the "complete" vocabulary head (the released code), or with only its "projection",
            one linear map, as printed in Eq. 2.
        pooled_tokens: Tokens pooled into "agg": "all" except [CLS] (the released code), or only the "text", without
            [SEP], as printed in Eq. 3.
        slices: Terms in a slice: every n-th by id ("strided", the released code), terms in random order ("seeded"),
            or, for aggregation=semi, the two slices of agg* ("same_as_star", the paper).
        slice_seed: Seed of slices=seeded.
        remainder: If slices do not divide the vocabulary: "drop" the first ids, or "pad" with zeros; "auto" drops ids
            of BERT's vocabulary, whose first ids are unused, and pads any other vocabulary.
        drop_limit: Maximum number of ids to drop; beyond it, zeros are appended.
        padding: "masked" keeps a text's vector independent of its batch; "released": with signed weights, a text is
            clipped at 0 only if its batch pads it; without vocabulary head, padding counts like other tokens.
        projections: "auto" = the model's projections if it is an Aggretriever checkpoint, else new projections; "new" =
            always new projections.
        layers: Layers that each contribute one vector per document, in any order; 0 = embeddings, -1 = the last. The
            best vector counts. A query has one vector, from the last layer.
        keep: With several layers: index "all" vectors, or only the "last" layer's, which a loss contrasts with the
            others (self_contrastive).
    """

    def __init__(
        self,
        info: EncoderInfo,
        *,
        cls_dim: NonNegativeInt = 128,
        agg_dim: NonNegativeInt | Literal["vocabulary"] = 640,
        aggregation: Literal["full", "semi", "linear", "average"] = "full",
        term_weight: Literal["abs", "signed", "none"] = "abs",
        vocabulary_head: bool = True,
        head: Literal["complete", "projection"] = "complete",
        pooled_tokens: Literal["all", "text"] = "all",
        slices: SliceRule = "strided",
        slice_seed: int = 0,
        remainder: Remainder = "auto",
        drop_limit: NonNegativeInt = DROP_LIMIT,
        padding: Literal["masked", "released"] = "masked",
        projections: Literal["auto", "new"] = "auto",
        layers: tuple[int, ...] = (-1,),
        keep: Literal["all", "last"] = "all",
    ) -> None:
        terms = agg_dim != 0 and aggregation != "average"
        sliced = terms and agg_dim != "vocabulary" and aggregation in ("full", "semi")
        # The released code's padding changes a vector only if weights may be below 0, or if [SEP] counts as well.
        padded = terms and (term_weight == "signed" if vocabulary_head else pooled_tokens == "all")
        of_terms, of_head = "agg_dim aggregation", "agg_dim aggregation vocabulary_head"
        refuse_idle(
            locals(),
            {
                "aggregation": (agg_dim not in (0, "vocabulary"), "agg_dim"),
                "term_weight": (terms, of_terms),
                "vocabulary_head": (terms, of_terms),
                "head": (terms and vocabulary_head, of_head),
                "pooled_tokens": (agg_dim != 0, "agg_dim"),
                # full is agg*, so same_as_star would change nothing.
                "slices": (sliced and (slices, aggregation) != ("same_as_star", "full"), of_terms),
                "slice_seed": (slices == "seeded", "slices"),
                "remainder": (sliced, of_terms),
                "drop_limit": (sliced and drops(info.vocabulary_size, remainder), f"{of_terms} remainder"),
                "padding": (padded, f"{of_head} term_weight pooled_tokens"),
            },
        )
        if cls_dim == 0 and agg_dim == 0:
            msg = "cls_dim and agg_dim are both 0: the vector would be empty. Set one of them."
            raise OptionError(msg)
        if (cls_dim, term_weight, vocabulary_head) == (0, "none", False):
            msg = "cls_dim=0, term_weight=none and vocabulary_head=false leave nothing to train. Set cls_dim, or "
            msg += "another term_weight."
            raise OptionError(msg)
        super().__init__()
        self.info = info
        self.layers = absolute_layers(layers, info, keep=keep)
        self.keep = keep
        self.projections = projections
        self.signed = term_weight == "signed"
        self.released_padding = padding == "released"
        self.has_terms = terms
        self.has_head = self.has_terms and vocabulary_head
        self.head = head
        self.text_only = pooled_tokens == "text"
        size = info.vocabulary_size if agg_dim == "vocabulary" else agg_dim
        sizes = {"cls": slice(0, cls_dim), "agg": slice(cls_dim, cls_dim + size)}
        self.parts = {name: columns for name, columns in sizes.items() if columns.stop > columns.start}
        self.cls_projection = nn.Linear(info.width, cls_dim) if cls_dim else None
        self.term_projection = nn.Linear(info.width, 1) if self.has_terms and term_weight != "none" else None
        self.aggregate: nn.Module = nn.Identity()
        if size and aggregation == "average":
            self.aggregate = nn.Linear(info.width, size)
        elif size and aggregation == "linear":
            check_fits(size, info.vocabulary_size)
            self.aggregate = nn.Linear(info.vocabulary_size, size)
            # This keeps inner products of v in expectation. torch's default weights for this many inputs are so small
            # that all texts score alike, and the gradient of the other part dominates.
            nn.init.normal_(self.aggregate.weight, std=size**-0.5)
        elif size and agg_dim != "vocabulary":
            self.aggregate = SlicePooling(
                info.vocabulary_size,
                size,
                signed=aggregation == "full",
                rule=slices,
                seed=slice_seed,
                remainder=remainder,
                drop_limit=drop_limit,
            )

    @property
    def default_loss(self) -> str:  # type: ignore[override]
        """The paper's loss; with keep=last, retrievalkit-mlr's loss, which trains the kept vector."""
        return "self_contrastive" if self.keep == "last" else "aggretriever"

    @property
    def needs(self) -> Needs:  # type: ignore[override]
        """The last layer for queries, the indexed or trained layers for documents, and the vocabulary head."""
        return Needs(
            layers={"query": (self.info.layers,), "document": self._layers_of("document")},
            vocabulary_head=self.has_head,
        )

    def bind(self, encoder: Encoder) -> None:
        """Load the model's projections if it is an Aggretriever checkpoint.

        Raises:
            UnsupportedError: The encoder adds no [CLS]-like token, or the checkpoint's projections have another shape.
        """
        batch = encoder.collate(encoder.tokenize([Text("", "a")], "query"), "query")
        if not bool(batch.special_mask[0, 0]):
            msg = "pooler 'aggretriever' needs a [CLS]-like token in front of each text, but this encoder adds none. "
            msg += "Choose a model that does, such as BERT, or another pooler."
            raise UnsupportedError(msg)
        if self.projections == "auto":
            load_projections(encoder, {"cls": self.cls_projection, "term": self.term_projection})

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """Return (batch, 1, cls_dim + agg_dim); for documents, a vector from each layer, the highest first."""
        vectors = []
        for layer in self._layers_of(side):
            columns = []
            if self.cls_projection is not None:
                columns.append(self.cls_projection(states.first_states(layer)))
            if self.has_terms:
                columns.append(self.aggregate(self.terms(states, layer)))
            elif "agg" in self.parts:
                columns.append(self.aggregate(masked_mean(states.layers[layer], self._pooled(states))))
            vectors.append(torch.cat(columns, dim=1))
        kept_vector = 0 if self.keep == "last" and side == "document" else None
        return Representation(torch.stack(vectors, dim=1), kept=kept_vector, parts=self.parts)

    def terms(self, states: TokenStates, layer: int = -1) -> Tensor:
        """Compute v, the value of each vocabulary term for each text: (batch, vocabulary).

        Args:
            states: The encoder's states, with the vocabulary head if the pooler uses it.
            layer: The layer whose states are used.
        """
        hidden = states.layers[absolute_layer(layer, self.info)]
        if not self.has_head:
            mask = self._pooled(states)
            if self.released_padding:
                mask = _without_first(states, torch.ones_like(states.attention_mask))
            # The largest weight of each term among its occurrences in a text, at least 0.
            weights = self._weights(hidden).to(torch.promote_types(hidden.dtype, torch.float32)).masked_fill(~mask, 0.0)
            zeros = weights.new_zeros(weights.shape[0], self.info.vocabulary_size)
            return zeros.scatter_reduce(1, states.input_ids, weights, "amax", include_self=True)
        head = states.head
        if self.head == "projection":
            head = linear_head(head, self.info.width, "pooler.head=complete")
        assert head is not None
        values = max_weighted_softmax(hidden, head, self._weights(hidden), self._pooled(states))
        if not self.signed:
            return values
        floored = values.clamp(min=0.0)
        if not self.released_padding:
            return floored
        padded = ~states.attention_mask.bool().all(dim=1, keepdim=True)  # (batch, 1)
        return torch.where(padded, floored, values)

    def _pooled(self, states: TokenStates) -> Tensor:
        """Return (batch, tokens) bool, True at the tokens pooled into the part "agg"."""
        return text_mask(states) if self.text_only else _without_first(states, states.attention_mask)

    def _weights(self, hidden: Tensor) -> Tensor:
        """Return the weight of each token: (batch, tokens)."""
        if self.term_projection is None:
            return hidden.new_ones(hidden.shape[:2])
        weights: Tensor = self.term_projection(hidden)[:, :, 0]
        return weights if self.signed else weights.abs()

    def _layers_of(self, side: Side) -> tuple[int, ...]:
        """Return the layers that contribute a vector to texts of that side, in the current mode."""
        if side == "query" or (self.keep == "last" and not self.training):
            return (self.info.layers,)
        return self.layers


def _without_first(states: TokenStates, mask: Tensor) -> Tensor:
    """Return the mask (batch, tokens) without each text's first real token, [CLS]."""
    return mask.bool().scatter(1, states.first[:, None], value=False)
