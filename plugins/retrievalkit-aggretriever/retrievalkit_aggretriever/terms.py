"""The inputs of the part "agg": the tokens that count, the mean of their states, and their own terms."""

from __future__ import annotations

import torch
from torch import Tensor


def first_position(attention_mask: Tensor) -> Tensor:
    """(batch,) the position of the first real token, [CLS]: above 0 if padding is on the left."""
    return attention_mask.long().argmax(dim=1)


def without_first(mask: Tensor, attention_mask: Tensor) -> Tensor:
    """The mask (batch, tokens) without each text's first real token."""
    return mask.bool().scatter(1, first_position(attention_mask)[:, None], value=False)


def own_terms(input_ids: Tensor, weights: Tensor, mask: Tensor, vocabulary: int) -> Tensor:
    """The greatest weight of each term among its occurrences in a text, at least 0: v without a vocabulary head.

    Args:
        input_ids: (batch, tokens).
        weights: (batch, tokens).
        mask: (batch, tokens) bool, True at tokens that count.
        vocabulary: Number of terms.

    Returns:
        (batch, vocabulary); 0 for terms that are not in the text.
    """
    weights = weights.to(torch.promote_types(weights.dtype, torch.float32)).masked_fill(~mask, 0.0)
    zeros = weights.new_zeros(weights.shape[0], vocabulary)
    return zeros.scatter_reduce(1, input_ids, weights, "amax", include_self=True)


def mean_state(hidden: Tensor, mask: Tensor) -> Tensor:
    """The mean (batch, width) of the states (batch, tokens, width) in the mask (batch, tokens), zeros if it is empty.

    Summed in float32 at least, since bf16 would lose the small states of a long text.
    """
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    total = hidden.masked_fill(~mask[:, :, None], 0.0).sum(dim=1, dtype=dtype)
    return total / mask.sum(dim=1, keepdim=True).clamp(min=1)
