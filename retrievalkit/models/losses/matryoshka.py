"""Matryoshka representation learning (Kusupati et al. 2022): truncated vectors remain usable."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import OptionError

# Norms of normalised vectors differ less from 1, in half precision too.
_ROUNDING = 1e-2


class Matryoshka(Loss):
    """Matryoshka representation learning (MRL): another loss, applied to whole and to truncated vectors.

        L = loss(q, d)  +  sum over dimensions m of  c_m loss(q[:m], d[:m])             (Eq. 1 of Kusupati et al. 2022)

        rkit train --loss "matryoshka(contrastive)" --set loss.matryoshka.dimensions=192,96,48 ...
        rkit encode CHECKPOINT CORPUS --dimensions 96 --output vectors

    Normalised vectors are normalised again after truncation, here and in `rkit encode`. Weights over a vocabulary are
    not truncated. The checkpoint records the dimensions.

    Args:
        inner: The loss, or a sum of losses.
        dimensions: m, the sizes to truncate vectors to, such as 192,96,48; whole vectors always count.
        weights: c_m, the weight of each size, in the same order; None = 1 each, as for whole vectors.
    """

    wraps = True

    def __init__(
        self, inner: Loss, *, dimensions: tuple[PositiveInt, ...], weights: tuple[NonNegativeFloat, ...] | None = None
    ) -> None:
        super().__init__()
        weights = (1.0,) * len(dimensions) if weights is None else weights
        if not dimensions or len(set(dimensions)) < len(dimensions) or len(weights) != len(dimensions):
            sizes, factors = (",".join(f"{value:g}" for value in values) for values in (dimensions, weights))
            options = f"dimensions={sizes} and weights={factors}"
            msg = f"loss 'matryoshka' has {options}. Set distinct dimensions, each with a weight."
            raise OptionError(msg)
        self.inner = inner
        self.needs_teacher = inner.needs_teacher
        self.weights = dict(zip(dimensions, weights, strict=True))

    def forward(
        self,
        queries: Representation,
        documents: Representation,
        positives: Tensor,
        progress: Progress,
        ignore: Tensor | None = None,
        teacher: Tensor | None = None,
    ) -> LossValue:
        """Compute the sum; it has the terms of whole vectors, and `matryoshka_M` for the first M dimensions."""
        whole = self.inner(queries, documents, positives, progress, ignore, teacher)
        total, terms = whole.total, dict(whole.terms)
        normalize = _are_normalized(queries) and _are_normalized(documents)
        for dimensions, weight in self.weights.items():
            truncated = (texts.cut(dimensions, normalize=normalize) for texts in (queries, documents))
            value = self.inner(*truncated, positives, progress, ignore, teacher).total
            terms[f"matryoshka_{dimensions}"] = value.detach()
            total = total + weight * value
        return LossValue(total, terms)


def _are_normalized(texts: Representation) -> bool:
    """True if all vectors have length 1."""
    if texts.vectors is None:
        return False
    lengths = torch.linalg.vector_norm(texts.vectors.detach().float(), dim=-1)
    if texts.vector_mask is not None:
        lengths = lengths[texts.vector_mask]
    return bool(((lengths - 1).abs() < _ROUNDING).all())
