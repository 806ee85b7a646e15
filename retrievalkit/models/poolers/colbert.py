"""A vector for every token of both sides, compared by late interaction.

ColBERT (Khattab and Zaharia 2020, "Efficient and Effective Passage Search via Contextualized Late Interaction over
BERT"): a query's score with a document is the sum, over the query's vectors, of the best inner product with a vector of
the document, which is the scoring rule here.
"""

from __future__ import annotations

import string
from functools import partial

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
    markers have vectors too. A text of punctuation alone keeps the vectors of its punctuation.

    Args:
        dimension: Size of the vectors, which a linear map without bias makes of the states; None = no projection.
        normalize: Whether each vector is scaled to length 1, so that inner products are cosines.
        markers: Whether a token that pre-training left unused follows the [CLS]-like token, one for queries and
            another for documents.
        marker_tokens: The markers of queries and of documents by their names in the vocabulary, such as
            "[unused0],[unused1]", "" for none; None = tokens that pre-training left unused.
        query_filled: Whether queries are padded with [MASK]-like tokens to their maximum length, whose states become
            vectors like any other: the paper's query augmentation.
        fill_attended: Whether the query's tokens attend to those [MASK]-like tokens. The paper's do not.
        skip_punctuation: Whether punctuation marks of documents have no vectors.
        skip_ids: The tokens of documents that have no vectors, by their ids, in place of punctuation marks.
        bias: Whether the linear map has a bias.
        layer: The layer whose states are used; 0 = embeddings, -1 = the last.
    """

    skipped: Tensor

    def __init__(
        self,
        info: EncoderInfo,
        *,
        dimension: PositiveInt | None = 128,
        normalize: bool = True,
        markers: bool = True,
        marker_tokens: tuple[str, str] | None = None,
        query_filled: bool = True,
        fill_attended: bool = False,
        skip_punctuation: bool = True,
        skip_ids: tuple[int, ...] | None = None,
        bias: bool = False,
        layer: int = -1,
    ) -> None:
        super().__init__()
        self.layer = absolute_layer(layer, info)
        self.normalize = normalize
        self.query_filled = query_filled
        self.skip_punctuation = skip_punctuation and skip_ids is None
        self.projection = None if dimension is None else nn.Linear(info.width, dimension, bias=bias)
        # Not stored: `bind` asks the loaded encoder, which has the same vocabulary.
        self.register_buffer("skipped", torch.tensor(skip_ids or (), dtype=torch.long), persistent=False)
        # In this order of sides, so that queries get [unused0] and documents [unused1].
        names = dict(zip(SIDES, marker_tokens or SIDES, strict=True))
        marker = partial(ExtraTokens, 1, replace_first=False, position=None)
        self.needs = Needs(
            layers=(self.layer,),
            extra_tokens={
                side: marker("unused") if marker_tokens is None else marker("named", names=(name,))
                for side, name in names.items()
                if name and markers
            },
            mask_filled=("query",) if query_filled else (),
            fill_attended=fill_attended,
        )

    def bind(self, encoder: Encoder) -> None:
        """Ask for the tokens of punctuation marks, at the beginning of a word and within one."""
        if self.skip_punctuation:
            marks = [*string.punctuation, *(f" {mark}" for mark in string.punctuation)]
            self.skipped = torch.tensor(encoder.token_ids(marks), dtype=torch.long)

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """The vectors (batch, tokens, dimension) and the mask of those that count."""
        mask = None  # (batch, tokens) True at tokens that become vectors; None = all
        if side == "document" or not self.query_filled:
            mask = states.attention_mask.bool()
            if side == "document" and len(self.skipped):
                mask = _or_else(mask & ~torch.isin(states.input_ids, self.skipped), mask)
            # "" has no token in a model without special tokens: its first position becomes a vector.
            mask = _or_else(mask, torch.arange(mask.shape[1], device=mask.device).expand_as(mask) == 0)
        vectors = states.layers[self.layer]
        if mask is not None:
            # Before anything is computed: states at padding may be infinite.
            vectors = vectors.masked_fill(~mask[:, :, None], 0.0)
        if self.projection is not None:
            vectors = self.projection(vectors)
        if self.normalize:
            vectors = functional.normalize(vectors, dim=-1)
        return Representation(vectors, mask)


def _or_else(mask: Tensor, other: Tensor) -> Tensor:
    """The mask (batch, tokens), and the other one for texts whose mask is empty."""
    return torch.where(mask.any(dim=1, keepdim=True), mask, other)
