"""Matryoshka representation learning (Kusupati et al. 2022): the first numbers of a vector are one too."""

from __future__ import annotations

import torch
from pydantic import NonNegativeFloat, PositiveInt
from torch import Tensor

from retrievalkit.contracts import Loss, LossValue, Progress, Representation
from retrievalkit.errors import OptionError

# Lengths of vectors that are normalised differ from 1 by less, in half precision too.
_ROUNDING = 1e-2


class Matryoshka(Loss):
    """Another loss of the whole vectors, and of their first numbers alone.

        L = loss(q, d)  +  sum over dimensions m of  c_m loss(q[:m], d[:m])                      (Eq. 1 of the paper)

    Vectors of length 1 are scaled to it again when they are cut, as `rkit encode --dimensions` does. Weights over a
    vocabulary are not cut. The lengths are recorded in the checkpoint.

    Args:
        inner: The loss, or a sum of losses.
        dimensions: m, to how many numbers the vectors are cut, such as 192,96,48; the whole ones count in any case.
        weights: c_m, how much each of the lengths counts, in their order; None = 1 each, as the whole vectors.
    """

    wraps = True

    def __init__(
        self, inner: Loss, *, dimensions: tuple[PositiveInt, ...], weights: tuple[NonNegativeFloat, ...] | None = None
    ) -> None:
        super().__init__()
        weights = (1.0,) * len(dimensions) if weights is None else weights
        if not dimensions or len(set(dimensions)) < len(dimensions) or len(weights) != len(dimensions):
            msg = (
                f"dimensions={','.join(map(str, dimensions))} and weights={','.join(f'{one:g}' for one in weights)} of "
                "loss 'matryoshka': give one or more lengths, each once, and as many weights."
            )
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
        """The sum; its terms are those of the whole vectors, and `matryoshka_M` for the loss of the first M numbers."""
        whole = self.inner(queries, documents, positives, progress, ignore, teacher)
        total, terms = whole.total, dict(whole.terms)
        normalize = _are_normalized(queries) and _are_normalized(documents)
        for dimensions, weight in self.weights.items():
            both = (one.cut(dimensions, normalize=normalize) for one in (queries, documents))
            value = self.inner(*both, positives, progress, ignore, teacher).total
            terms[f"matryoshka_{dimensions}"] = value.detach()
            total = total + weight * value
        return LossValue(total, terms)


def _are_normalized(texts: Representation) -> bool:
    """Whether all vectors have length 1."""
    if texts.vectors is None:
        return False
    lengths = torch.linalg.vector_norm(texts.vectors.detach().float(), dim=-1)
    if texts.vector_mask is not None:
        lengths = lengths[texts.vector_mask]
    return bool(((lengths - 1).abs() < _ROUNDING).all())
