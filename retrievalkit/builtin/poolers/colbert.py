"""A vector for every token of both sides, compared by late interaction.

ColBERT (Khattab and Zaharia 2020, "Efficient and Effective Passage Search via Contextualized Late Interaction over
BERT"): a query's score with a document is the sum, over the query's vectors, of the best inner product with a vector of
the document, which is the scoring rule here.
"""

from __future__ import annotations

import string

import torch
from pydantic import PositiveInt
from torch import Tensor, nn
from torch.nn import functional

from retrievalkit.contracts import (
    SIDES,
    Encoder,
    EncoderInfo,
    ExtraTokens,
    Needs,
    Pooler,
    Representation,
    Side,
    TokenStates,
    absolute_layer,
)


class ColBERT(Pooler):
    """Every token's state, projected and scaled to length 1.

    The defaults are the paper's; its queries have 32 tokens (--query-length 32). [CLS]- and [SEP]-like tokens and the
    markers are vectors too. A text of which nothing is left (of punctuation alone) keeps what it has.

    Args:
        dimension: Size of the vectors, to which a linear map without bias takes the states; None = as they are.
        normalize: Whether each vector is scaled to length 1, so that inner products are cosines.
        markers: Whether a token of the vocabulary that pre-training left unused stands behind the [CLS]-like token and
            tells queries from documents, one for each.
        query_filled: Whether queries are filled up with [MASK]-like tokens to their maximum length, and the states
            there are vectors like any other: the paper's query augmentation.
        skip_punctuation: Whether documents have no vectors at punctuation marks.
        layer: The layer that states are taken from; 0 = embeddings, -1 = the last.
    """

    punctuation: Tensor

    def __init__(
        self,
        info: EncoderInfo,
        *,
        dimension: PositiveInt | None = 128,
        normalize: bool = True,
        markers: bool = True,
        query_filled: bool = True,
        skip_punctuation: bool = True,
        layer: int = -1,
    ) -> None:
        super().__init__()
        self.layer = absolute_layer(layer, info)
        self.normalize = normalize
        self.query_filled = query_filled
        self.skip_punctuation = skip_punctuation
        self.projection = None if dimension is None else nn.Linear(info.width, dimension, bias=False)
        # Not stored: a loaded encoder has the same vocabulary, and says it again.
        self.register_buffer("punctuation", torch.empty(0, dtype=torch.long), persistent=False)
        marker = ExtraTokens(1, source="unused", replace_first=False, position=None)
        self.needs = Needs(
            layers=(self.layer,),
            # In this order, so that queries get [unused0] and documents [unused1].
            extra_tokens=dict.fromkeys(SIDES, marker) if markers else {},
            mask_filled=("query",) if query_filled else (),
        )

    def bind(self, encoder: Encoder) -> None:
        """Learn which tokens are punctuation marks, at the beginning of a word and within one."""
        if self.skip_punctuation:
            marks = [*string.punctuation, *(f" {mark}" for mark in string.punctuation)]
            self.punctuation = torch.tensor(encoder.token_ids(marks), dtype=torch.long)

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """The vectors (batch, tokens, dimension), and which of them are there."""
        mask = self._vector_mask(states, side)  # (batch, tokens)
        vectors = states.layers[self.layer]
        if mask is not None:
            # Before anything is computed: what stands at padding may be anything, infinity too.
            vectors = vectors.masked_fill(~mask[:, :, None], 0.0)
        if self.projection is not None:
            vectors = self.projection(vectors)
        if self.normalize:
            vectors = functional.normalize(vectors, dim=-1)
        return Representation(vectors, mask)

    def _vector_mask(self, states: TokenStates, side: Side) -> Tensor | None:
        """(batch, tokens) True at what becomes a vector; None = everywhere."""
        if side == "query" and self.query_filled:
            return None
        real = states.attention_mask.bool()
        if side == "document" and self.skip_punctuation:
            real = _or_else(real & ~torch.isin(states.input_ids, self.punctuation), real)
        # A text without any token, which a model without special tokens makes of "", has its first position.
        return _or_else(real, torch.arange(real.shape[1], device=real.device).expand_as(real) == 0)


def _or_else(mask: Tensor, other: Tensor) -> Tensor:
    """The mask (batch, tokens), and the other one for texts where it has nothing."""
    return torch.where(mask.any(dim=1, keepdim=True), mask, other)
