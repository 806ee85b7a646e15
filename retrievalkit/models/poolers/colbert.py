"""ColBERT: a vector for every token of both sides, compared by late interaction (MaxSim)."""

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
    """Late interaction (ColBERT, MaxSim): one vector per token, projected from its state and scaled to length 1.

        score(q, d) = sum over vectors q_j of the query of  max over vectors d_i of the document of  <q_j, d_i>

        rkit train --model bert-base-uncased --pooler colbert --query-length 32 ...

    Khattab and Zaharia 2020, "Efficient and Effective Passage Search via Contextualized Late Interaction over BERT".
    The defaults are the paper's, except for its 32 tokens per query. [CLS]- and [SEP]-like tokens and the markers have
    vectors too. A text of only punctuation keeps the vectors of its punctuation.

    Args:
        dimension: Size of the vectors, computed from the states by a linear projection; None = no projection.
        normalize: Scale each vector to length 1, so that inner products are cosines.
        markers: Insert a marker after the [CLS]-like token, different for queries and documents.
        marker_tokens: Vocabulary entries that mark queries and documents, such as "[unused0],[unused1]", "" for none;
            None = tokens unused in pre-training.
        query_filled: Pad queries to their maximum length with [MASK]-like tokens, whose states become vectors too (the
            paper's query augmentation).
        fill_attended: Let the query's tokens attend to these [MASK]-like tokens, unlike in the paper.
        skip_punctuation: Drop the vectors of punctuation marks in documents.
        skip_ids: Ids of document tokens whose vectors are dropped, instead of punctuation marks.
        bias: Add a bias to the projection.
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
        self.vocabulary_size = info.vocabulary_size
        self.normalize = normalize
        self.query_filled = query_filled
        self.skip_punctuation = skip_punctuation and skip_ids is None
        self.projection = None if dimension is None else nn.Linear(info.width, dimension, bias=bias)
        # Not stored: `bind` gets the ids from the loaded encoder, which has the same vocabulary.
        self.register_buffer("skipped", torch.tensor(skip_ids or (), dtype=torch.long), persistent=False)
        # The order of sides gives [unused0] to queries and [unused1] to documents.
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
        """Look up the tokens of punctuation marks, at the beginning of a word and within a word."""
        if self.skip_punctuation:
            marks = [*string.punctuation, *(f" {mark}" for mark in string.punctuation)]
            self.skipped = torch.tensor(encoder.token_ids(marks), dtype=torch.long)

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """Return the vectors (batch, tokens, dimension), with a mask of the vectors to compare."""
        mask = None  # (batch, tokens) True at tokens that become vectors; None = all
        if side == "document" or not self.query_filled:
            mask = states.attention_mask.bool()
            if side == "document" and len(self.skipped):
                # A look-up, since torch.isin waits for a GPU.
                kept = torch.ones(self.vocabulary_size, dtype=torch.bool, device=mask.device)
                kept.index_fill_(0, self.skipped, False)
                mask = _or_else(mask & kept.take(states.input_ids), mask)
            # Without special tokens "" has no tokens: its first position becomes a vector.
            mask = _or_else(mask, torch.arange(mask.shape[1], device=mask.device).expand_as(mask) == 0)
        vectors = states.layers[self.layer]
        if mask is not None:
            vectors = vectors.masked_fill(~mask[:, :, None], 0.0)  # first, since states at padding may be infinite
        if self.projection is not None:
            vectors = self.projection(vectors)
        if self.normalize:
            vectors = functional.normalize(vectors, dim=-1)
        return Representation(vectors, mask)


def _or_else(mask: Tensor, other: Tensor) -> Tensor:
    """Return the mask (batch, tokens), replaced by `other` for texts whose mask is empty."""
    return torch.where(mask.any(dim=1, keepdim=True), mask, other)
