"""COIL: a contextualized vector for each token of a text, compared with the vectors of the same token.

After Gao, Dai and Callan 2021, "COIL: Revisit Exact Lexical Match in Information Retrieval with Contextualized Inverted
List" (arXiv:2104.07186). With h_i the last hidden state of token i:

    v_i     = W_tok h_i + b_tok                      a vector for each token
    v_cls   = W_cls h_cls + b_cls                    a vector for the text
    s(q, d) = <v_cls(q), v_cls(d)>  +  sum over tokens i of q that are in d of  max over j in d, j = i, of <v_i, v_j>

A vector's key is its token. The vector of the text is divided into pieces of the tokens' size: piece n has the key
-1 - n, so pieces of the same number are compared, and their products add up to the product of the whole vectors.
"""

from __future__ import annotations

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor, nn

from retrievalkit.contracts import EncoderInfo, Needs, Pooler, Representation, Side, TokenStates, absolute_layer
from retrievalkit.scoring.lexical import text_mask


class Coil(Pooler):
    """COIL, contextualized exact match: one vector per token, compared with the vectors of the same token.

    `rkit train --pooler coil`. [CLS] and [SEP] have no token vectors; COIL-full adds the product of the [CLS] vectors.

    Args:
        dimension: Size of the tokens' vectors.
        cls_dimension: Size of the [CLS] vector, stored as vectors of the tokens' size; 0 = no [CLS] vector (COIL-tok).
    """

    needs = Needs(layers=(-1,))

    def __init__(self, info: EncoderInfo, *, dimension: PositiveInt = 32, cls_dimension: NonNegativeInt = 768) -> None:
        super().__init__()
        self.dimension = dimension
        self.layer = absolute_layer(-1, info)
        self.tokens = nn.Linear(info.width, dimension)
        self.text = nn.Linear(info.width, cls_dimension) if cls_dimension else None

    def forward(self, states: TokenStates, side: Side) -> Representation:  # noqa: ARG002 - both sides are alike
        """Compute vectors (batch, pieces + tokens, dimension), their mask and keys."""
        mask = text_mask(states)
        # Masked first, because states at padding may be infinite.
        hidden = states.last.masked_fill(~mask[:, :, None], 0.0)  # (batch, tokens, width)
        vectors, keys = self.tokens(hidden), states.input_ids.masked_fill(~mask, 0)
        if self.text is None:
            # A text without tokens has a vector of zeros: its score is 0.
            vectors = vectors.masked_fill(~mask[:, :, None], 0.0)
            return Representation(vectors, _at_least_one(mask), keys=keys)
        pieces = self._pieces(states)
        numbers = -1 - torch.arange(pieces.shape[1], device=keys.device).expand(len(keys), -1)
        return Representation(
            torch.cat([pieces, vectors], dim=1),
            torch.cat([torch.ones_like(numbers, dtype=torch.bool), mask], dim=1),
            keys=torch.cat([numbers, keys], dim=1),
        )

    def _pieces(self, states: TokenStates) -> Tensor:
        """Return the [CLS] vectors in pieces (batch, pieces, dimension), padded with zeros to full pieces."""
        assert self.text is not None
        empty = ~states.attention_mask.bool().any(dim=1, keepdim=True)
        whole = self.text(states.first_states(self.layer).masked_fill(empty, 0.0))  # (batch, cls_dimension)
        whole = nn.functional.pad(whole, (0, -whole.shape[1] % self.dimension))
        return whole.view(len(whole), -1, self.dimension)


def _at_least_one(mask: Tensor) -> Tensor:
    """Add to the mask (batch, tokens) the first position of texts without tokens."""
    first = torch.arange(mask.shape[1], device=mask.device) == 0
    return torch.where(mask.any(dim=1, keepdim=True), mask, first)
