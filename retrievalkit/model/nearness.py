"""How near the representations in a cheap number format come to those in float32, measured on some texts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from retrievalkit.contracts import Representation, Side
from retrievalkit.model.precision import Precision
from retrievalkit.model.retriever import Retriever
from retrievalkit.score.bf16_filter import multiplies_bf16

TEXTS = 64
"""Enough for a median, and encoded twice in a second."""


def nearness(retriever: Retriever, token_ids: Sequence[Sequence[int] | np.ndarray], side: Side) -> str:
    """A sentence on int8: the cosines to float32 of the first of these texts, and whether bf16 would be better.

    Args:
        retriever: What encodes them.
        token_ids: The tokens of each text.
        side: Which side they are of.
    """
    some = token_ids[:TEXTS]
    found = torch.cat([_cosines(*both) for both in _encoded(retriever, some, side)])
    told = (
        f"int8: of {len(some):,} texts the cosine to float32 is {float(found.min()):.5f} at least, "
        f"{float(found.median()):.5f} in the median"
    )
    better = "; this processor multiplies in bf16, which is nearer to float32 and no slower: --precision bf16"
    return told + (better if multiplies_bf16() else "")


def _encoded(
    retriever: Retriever, some: Sequence[Sequence[int] | np.ndarray], side: Side
) -> list[tuple[Representation, Representation]]:
    formats: tuple[Precision, Precision] = ("int8", "fp32")
    both = [retriever.encode_tokens(some, side, precision=precision) for precision in formats]
    return [(cheap, exact) for (_, cheap), (_, exact) in zip(*both, strict=True)]


def _cosines(cheap: Representation, exact: Representation) -> Tensor:
    """Of each vector, and of the weights of each text."""
    parts = []
    if cheap.vectors is not None and exact.vectors is not None:
        cosines = functional.cosine_similarity(cheap.vectors, exact.vectors, dim=-1)  # (texts, m)
        parts.append(cosines.flatten() if exact.vector_mask is None else cosines[exact.vector_mask])
    if cheap.weights is not None and exact.weights is not None:
        parts.append(functional.cosine_similarity(cheap.weights, exact.weights, dim=-1))
    return torch.cat(parts)
