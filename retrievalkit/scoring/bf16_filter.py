"""Inner products in a cheap number format with a bound of their error, and the exact ones of the few pairs left over.

A processor with bf16 units (AMX) multiplies matrices of bf16 several times faster than those of float32. What it finds
is wrong in the third digit, but by how much at most is known, so that the documents which cannot be among the best can
be dropped, and only the others are compared in float32. The result is exact.

The exact product of a pair is computed on its own: its rounding depends on nothing but the pair, not on what it is
batched with.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Fewest queries for which rounding the documents pays.
ENOUGH_QUERIES = 64
# Vectors rounded at once, and pairs compared at once: few enough to stay in the cache.
ROUNDED, PAIRS = 512, 128
# The greatest norm of a bf16 product: sums of products beyond it might overflow.
_LARGEST_NORM = 1e18
_BF16_ERROR, _FP32_ERROR = 2.0**-8, 2.0**-24  # relative, of rounding a number
_SMALLEST = 2.0**-126  # numbers below may be taken for zero


def pays(queries: int) -> bool:
    """Whether rounding the documents for so many queries saves time."""
    return queries >= ENOUGH_QUERIES and multiplies_bf16()


def multiplies_bf16() -> bool:
    """Whether the processor has units that multiply bf16; others emulate it, slower than float32."""
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, probe)() for probe in probes if hasattr(torch.cpu, probe))


@dataclass(frozen=True)
class Side:
    """Vectors of queries or of documents, as both products want them."""

    exact: np.ndarray  # (rows, dim) as they are stored: float32, or float16
    rough: Tensor  # (rows, dim) in the format of the rough products
    norm: float  # the greatest length of a vector, at least
    distance: float  # from a vector to the rounded one, at most
    adding: float = 0.0  # by how much what is added to the products may be wrong

    @classmethod
    def of(cls, vectors: np.ndarray, *, in_bf16: bool) -> Side:
        """Round vectors to bf16 if wanted, unless they are too long for it."""
        # Without numpy's memmap, whose slices cost microseconds each.
        exact = np.asarray(vectors)
        single = torch.from_numpy(exact).float()
        rounded = torch.empty_like(single, dtype=torch.bfloat16) if in_bf16 else single
        norms = [0.0]
        for start in range(0, len(single), ROUNDED):
            part = single[start : start + ROUNDED]
            norms.append(float(torch.linalg.vector_norm(part, dim=1).max()))
            if in_bf16:
                rounded[start : start + ROUNDED].copy_(part)
        norm = max(norms) * 1.001
        if not norm < _LARGEST_NORM:
            return cls(exact, single, norm, 0.0)
        # Twice the real distance, which takes longer to compute than the documents that it would drop.
        distance = _BF16_ERROR * norm + exact.shape[1] * _SMALLEST if in_bf16 else 0.0
        return cls(exact, rounded, norm, distance)


@dataclass(frozen=True)
class Slack:
    """By how much rough scores differ from exact ones at most: a number, and a part of the score."""

    fixed: float
    relative: float

    def below(self, scores: Tensor) -> Tensor:
        """The least that the exact scores can be; and the least rough score that an exact one of this size can have."""
        # What is infinite stays so, where nothing of it would be NaN.
        return scores - (scores.abs() * self.relative if self.relative else 0.0) - self.fixed

    def above(self, scores: Tensor) -> Tensor:
        """The most that the exact scores can be."""
        return -self.below(-scores)


def slack(queries: Side, documents: Side, *, added_to: Tensor | None = None) -> Slack:
    """The slack of rough products.

    By Cauchy and Schwarz for the rounding of the vectors, and for adding up `dim` products twice: roughly and exactly.
    `added_to` are the rough products, if numbers that are wrong by `documents.adding` at most are then added to them.
    """
    dim, largest = queries.exact.shape[1], queries.norm * documents.norm
    rounding = queries.norm * documents.distance + queries.distance * (documents.norm + documents.distance)
    adding = 2 * (dim + 1) * _FP32_ERROR * 1.01 * largest
    lost = dim * _SMALLEST * (2 + queries.norm + documents.norm)
    # The product is rounded too; a bit more, because what is known is not the product but the rounded one.
    result = 1.01 * _BF16_ERROR if documents.rough.dtype == torch.bfloat16 else 0.0
    if added_to is not None:
        greatest = float(torch.maximum(added_to.max(), -added_to.min())) if result else 0.0
        added = documents.adding
        return Slack(rounding + adding + lost + added + 1.01 * result * greatest, 8 * _FP32_ERROR)
    return Slack(rounding + adding + lost, result)


def of_adding(numbers: int, largest: float) -> float:
    """By how much two sums of so many products may differ that were added up in another order.

    `largest` is the product of the lengths of both sides: the sum of the absolute values does not exceed it.
    """
    return 2 * (numbers + 1) * _FP32_ERROR * 1.01 * largest + numbers * _SMALLEST


def products(queries: Side, documents: Side, tile: Tensor) -> Tensor:
    """Write the rough products to `tile`, (queries, documents) of the format of the documents."""
    asked = queries.rough.to(tile.dtype)
    return torch.mm(asked, documents.rough.T, out=tile)


def of_pairs(queries: np.ndarray, documents: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """(pairs,) float32: the exact inner products of queries `rows`, which ascend, with documents `columns`."""
    found = np.empty(len(rows), dtype=np.float32)
    cuts = np.flatnonzero(np.diff(rows, prepend=-1)).tolist()
    # A query at a time and not pair by pair, so that only one side is copied.
    for start, end in itertools.pairwise([*cuts, len(rows)]):
        query = queries[rows[start]]
        for first in range(start, end, PAIRS):
            part = slice(first, min(first + PAIRS, end))
            # Twice as fast as documents[columns[part]].
            found[part] = of_query(query, documents.take(columns[part], axis=0, mode="clip"))
    return found


def of_query(query: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """(documents,) float32: the exact inner products of a query, (dim,), with documents, (documents, dim)."""
    # Not a matrix product: its rounding depends on the number of documents.
    products: np.ndarray = np.einsum("ij,j->i", documents.astype(np.float32, copy=False), query)
    return products
