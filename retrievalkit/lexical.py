"""From token states to weights over the vocabulary, without ever holding the logits of a whole batch.

A vocabulary head makes (batch, tokens, vocabulary) logits, of which pooling over the tokens keeps (batch, vocabulary).
The projection is fused with its pooling here: it is computed tile by tile, forward and backward.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from retrievalkit.contracts import TokenStates


def text_mask(states: TokenStates) -> Tensor:
    """(batch, tokens) bool, True at the tokens of the text itself: no [CLS]- or [SEP]-like token, no padding."""
    return states.attention_mask.bool() & ~states.special_mask.bool()


def max_saturated(hidden: Tensor, head: Callable[[Tensor], Tensor], mask: Tensor) -> Tensor:
    """Max pooling of log-saturated logits (SPLADE-max): w[j] = max over tokens t in the mask of log(1 + relu(z_t[j])).

    Args:
        hidden: (batch, tokens, width) hidden states.
        head: The vocabulary head; the projection of a `VocabularyHead` is fused with the pooling.
        mask: (batch, tokens) bool, True where a token takes part.

    Returns:
        (batch, vocabulary) float32 weights, zeros where no token takes part.
    """
    logits = head(hidden).float().masked_fill(~mask[:, :, None], float("-inf"))
    return torch.log1p(torch.relu(logits.amax(dim=1)))


def max_weighted_softmax(hidden: Tensor, head: Callable[[Tensor], Tensor], weights: Tensor, mask: Tensor) -> Tensor:
    """Max pooling of weighted word probabilities (Aggretriever): v[j] = max over t in the mask of w_t softmax(z_t)[j].

    Args:
        hidden: (batch, tokens, width) hidden states.
        head: The vocabulary head.
        weights: (batch, tokens), one weight a token, of either sign.
        mask: (batch, tokens) bool, True where a token takes part.

    Returns:
        (batch, vocabulary) float32, zeros where no token takes part.
    """
    probabilities = head(hidden).float().softmax(dim=2) * weights.float()[:, :, None]
    best = probabilities.masked_fill(~mask[:, :, None], float("-inf")).amax(dim=1)
    return best.masked_fill(~mask.any(dim=1, keepdim=True), 0.0)


def keep_top_k(weights: Tensor, k: int) -> Tensor:
    """Exactly the k largest weights of each row, the others 0; among equals the lowest index is kept.

    Args:
        weights: (batch, vocabulary).
        k: How many, at most the size of the vocabulary.

    Returns:
        (batch, vocabulary); no gradient reaches what was dropped.
    """
    order = weights.detach().sort(dim=1, descending=True, stable=True).indices[:, :k]
    return torch.zeros_like(weights).scatter(1, order, weights.gather(1, order))
