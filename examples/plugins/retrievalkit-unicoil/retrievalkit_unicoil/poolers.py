"""uniCOIL: a weight for each term of a text, computed from the last state of the term's token.

After Lin and Ma 2021, "A Few Brief Notes on DeepImpact, COIL, and a Conceptual Framework for Information Retrieval
Techniques" (arXiv:2106.14807): COIL (Gao et al. 2021) with a number per token instead of a vector. With h_i the last
hidden state of token i:

    w_i     = relu(W h_i + b)                                          a number
    s(q, d) = sum over tokens i of q that are in d of  w_i * max over j in d with the same token of  w_j

A document's weight of a term is the largest weight of its occurrences, a query's the sum of theirs.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates
from retrievalkit.scoring.lexical import text_mask


class UniCoil(Pooler):
    """uniCOIL, learned sparse term weights: one weight per term of the text; texts are compared by shared terms.

    `rkit train --pooler unicoil`. Texts are not expanded: append the terms of a model like doc2query-T5 beforehand.

    Args:
        separator: Give the special tokens after the text ([SEP]) a weight too, as in the published encoders: it adds
            to the score of every document, regardless of the query's words.
        query_repeats: Weight of a term that occurs several times in a query: the "sum" of its weights (the paper), or
            their "max", as in a document.
    """

    needs = Needs(layers=(-1,))

    def __init__(
        self, info: EncoderInfo, *, separator: bool = False, query_repeats: Literal["sum", "max"] = "sum"
    ) -> None:
        super().__init__()
        self.separator = separator
        self.query_repeats = query_repeats
        self.vocabulary_size = info.vocabulary_size
        self.projection = nn.Linear(info.width, 1)

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """Compute weights (batch, vocabulary), 0 for terms that are not in the text."""
        weights = self.token_weights(states)  # (batch, tokens)
        zeros = weights.new_zeros(len(weights), self.vocabulary_size)
        reduction = "sum" if side == "query" and self.query_repeats == "sum" else "amax"
        return Representation(weights=zeros.scatter_reduce(1, states.input_ids, weights, reduction))

    def token_weights(self, states: TokenStates) -> Tensor:
        """Compute the weight of each token (batch, tokens), in float32 at least; 0 for tokens without a weight."""
        mask = self._mask(states)
        # Masked first, because states at padding may be infinite.
        hidden = states.last.masked_fill(~mask[:, :, None], 0.0)  # (batch, tokens, width)
        weights: Tensor = self.projection(hidden)[:, :, 0].relu()
        return weights.to(torch.promote_types(weights.dtype, torch.float32)).masked_fill(~mask, 0.0)

    def _mask(self, states: TokenStates) -> Tensor:
        """Return a mask (batch, tokens) of the tokens that have a weight."""
        words = text_mask(states)
        if not self.separator:
            return words
        place = torch.arange(words.shape[1], device=words.device)
        after = place > states.first[:, None]  # [CLS] is the first
        return words | (states.attention_mask.bool() & states.special_mask & after)
