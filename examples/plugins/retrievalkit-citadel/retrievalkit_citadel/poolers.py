"""CITADEL: vectors of tokens, routed to lexical keys, and compared with vectors of the same key.

After Li et al. 2023, "CITADEL: Conditional Token Interaction via Dynamic Lexical Routing for Efficient and Effective
Multi-Vector Retrieval" (arXiv:2211.10411). With h_i the last hidden state of token i and e a term of the vocabulary:

    w_i^e   = log(1 + relu(head(h_i)_e))             the router: the weight of key e
    v_i     = W_tok h_i + b_tok                      a vector for each token, routed to the K keys of largest weight
    v_cls   = W_cls h_cls + b_cls                    a vector for the text
    s(q, d) = <v_cls(q), v_cls(d)>  +  sum over tokens i of q and their keys e of
              max over tokens j of d with the key e of  w_i^e w_j^e <v_i, v_j>

A token has a vector w_i^e v_i for each of its keys. The vector of the text is divided into vectors of the tokens'
size: piece n has the key -1 - n, and is compared with the same piece.
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates, absolute_layer
from retrievalkit.scoring.lexical import max_saturated, text_mask


class Citadel(Pooler):
    """CITADEL, dynamic lexical routing: vectors of tokens, compared with vectors that the router assigns the same key.

    `rkit train --pooler citadel`, with an encoder that has a vocabulary head. In training, a text also has weights, the
    largest of each key, by which the loss `citadel` trains the router.

    Args:
        dimension: Size of the tokens' vectors.
        cls_dimension: Size of the [CLS] vector, stored as vectors of the tokens' size; 0 = no [CLS] vector.
        query_keys: Maximum number of keys per token of a query.
        document_keys: Maximum number of keys per token of a document.
    """

    needs = Needs(layers=(-1,), vocabulary_head=True)
    default_loss = "citadel"

    def __init__(
        self,
        info: EncoderInfo,
        *,
        dimension: PositiveInt = 32,
        cls_dimension: NonNegativeInt = 128,
        query_keys: PositiveInt = 1,
        document_keys: PositiveInt = 5,
    ) -> None:
        super().__init__()
        self.dimension = dimension
        self.keys = {"query": query_keys, "document": document_keys}
        self.layer = absolute_layer(-1, info)
        self.tokens = nn.Linear(info.width, dimension)
        self.text = nn.Linear(info.width, cls_dimension) if cls_dimension else None

    def forward(self, states: TokenStates, side: Side) -> Representation:
        """Compute vectors (batch, pieces + tokens * keys, dimension), their mask and keys; in training, weights."""
        assert states.head is not None
        words = text_mask(states)
        # Masked first, because states at padding may be infinite.
        hidden = states.last.masked_fill(~words[:, :, None], 0.0)  # (batch, tokens, width)
        logits = states.head(hidden[words])  # (words, vocabulary)
        best = logits.topk(min(self.keys[side], logits.shape[1]), dim=1)
        weights = best.values.relu().log1p()  # (words, keys)
        routed = weights[:, :, None] * self.tokens(hidden[words])[:, None]  # (words, keys, dimension)
        vectors = _at(words, routed).flatten(1, 2)
        mask, keys = _at(words, weights > 0).flatten(1), _at(words, best.indices).flatten(1)
        keys = keys.masked_fill(~mask, 0)
        if self.text is not None:
            pieces = self._pieces(states)
            numbers = -1 - torch.arange(pieces.shape[1], device=keys.device).expand(len(keys), -1)
            vectors, keys = torch.cat([pieces, vectors], dim=1), torch.cat([numbers, keys], dim=1)
            mask = torch.cat([torch.ones_like(numbers, dtype=torch.bool), mask], dim=1)
        router = max_saturated(hidden, states.head, words) if self.training else None
        return Representation(vectors, _at_least_one(mask), router, keys=keys)

    def _pieces(self, states: TokenStates) -> Tensor:
        """Return the [CLS] vectors in pieces (batch, pieces, dimension), padded with zeros to full pieces."""
        assert self.text is not None
        empty = ~states.attention_mask.bool().any(dim=1, keepdim=True)
        whole = self.text(states.first_states(self.layer).masked_fill(empty, 0.0))  # (batch, cls_dimension)
        whole = nn.functional.pad(whole, (0, -whole.shape[1] % self.dimension))
        return whole.view(len(whole), -1, self.dimension)


def _at(words: Tensor, values: Tensor) -> Tensor:
    """Spread values (words, ...) over the True positions of a mask (batch, tokens); zeros elsewhere."""
    return values.new_zeros(*words.shape, *values.shape[1:]).masked_scatter(
        words.view(*words.shape, *[1] * (values.dim() - 1)), values
    )


def _at_least_one(mask: Tensor) -> Tensor:
    """Add to the mask (batch, vectors) the first vector, a vector of zeros, of texts that have none."""
    first = torch.arange(mask.shape[1], device=mask.device) == 0
    return torch.where(mask.any(dim=1, keepdim=True), mask, first)
