"""Rough inner products in bf16 with an error bound, and exact products of the few remaining pairs.

A processor with bf16 units (AMX) multiplies bf16 matrices several times faster than float32 matrices. The products are
wrong in the third digit, but their error is bounded: documents that cannot be in the top k are dropped, and the
others are scored in float32. The result is exact.

The exact product of a pair is computed separately, so its rounding does not depend on the batch.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

# Minimum number of queries for which rounding the documents saves time.
ENOUGH_QUERIES = 64
# Vectors rounded, and pairs scored, at a time: few enough to stay in the cache.
ROUNDED, PAIRS = 512, 128
# Largest norm for a bf16 product: beyond it, sums of products might overflow.
_LARGEST_NORM = 1e18
_BF16_ERROR, _FP32_ERROR = 2.0**-8, 2.0**-24  # relative error of rounding
_SMALLEST = 2.0**-126  # smaller numbers may become zero


def pays(queries: int) -> bool:
    """True if rounding the documents saves time for this many queries."""
    return queries >= ENOUGH_QUERIES and multiplies_bf16()


def multiplies_bf16() -> bool:
    """True if the processor has units that multiply bf16; others emulate it, slower than float32."""
    probes = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, probe)() for probe in probes if hasattr(torch.cpu, probe))


@dataclass(frozen=True)
class Side:
    """Vectors of queries or documents, for rough and exact products."""

    exact: np.ndarray  # (rows, dim) as stored: float32 or float16
    rough: Tensor  # (rows, dim) in the format of the rough products
    norm: float  # upper bound on the norms of the vectors
    distance: float  # upper bound, from a vector to its rounded form
    adding: float = 0.0  # error bound of numbers added to the products

    @classmethod
    def of(cls, vectors: np.ndarray, *, in_bf16: bool) -> Side:
        """Round vectors if `in_bf16`, unless their norms are too large."""
        # Not as numpy's memmap, whose slices cost microseconds each.
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
        # About twice the real distance, whose computation would take longer than it saves.
        distance = _BF16_ERROR * norm + exact.shape[1] * _SMALLEST if in_bf16 else 0.0
        return cls(exact, rounded, norm, distance)


@dataclass(frozen=True)
class Slack:
    """Bound on the difference of rough and exact scores: an absolute and a relative part."""

    fixed: float
    relative: float

    def below(self, scores: Tensor) -> Tensor:
        """Return a lower bound of the exact scores, or of the rough scores for exact scores."""
        # Infinite scores stay infinite: zero times infinity would be NaN.
        return scores - (scores.abs() * self.relative if self.relative else 0.0) - self.fixed

    def above(self, scores: Tensor) -> Tensor:
        """Return an upper bound of the exact scores."""
        return -self.below(-scores)


def slack(queries: Side, documents: Side, *, added_to: Tensor | None = None) -> Slack:
    """Return the error bound of rough products, by Cauchy-Schwarz.

    It covers rounding the vectors, and summing `dim` products twice: roughly and exactly. `added_to` are the rough
    products if numbers with an error of at most `documents.adding` will be added to them.
    """
    dim, largest = queries.exact.shape[1], queries.norm * documents.norm
    rounding = queries.norm * documents.distance + queries.distance * (documents.norm + documents.distance)
    adding = 2 * (dim + 1) * _FP32_ERROR * 1.01 * largest
    lost = dim * _SMALLEST * (2 + queries.norm + documents.norm)
    # The product is rounded too; 1% more, because only the rounded product is known.
    result = 1.01 * _BF16_ERROR if documents.rough.dtype == torch.bfloat16 else 0.0
    if added_to is not None:
        greatest = float(torch.maximum(added_to.max(), -added_to.min())) if result else 0.0
        added = documents.adding
        return Slack(rounding + adding + lost + added + 1.01 * result * greatest, 8 * _FP32_ERROR)
    return Slack(rounding + adding + lost, result)


def of_adding(numbers: int, largest: float) -> float:
    """Return a bound on the difference between two sums of this many products in different orders.

    `largest` is the product of the norms of both sides, which bounds the sum of the absolute values.
    """
    return 2 * (numbers + 1) * _FP32_ERROR * 1.01 * largest + numbers * _SMALLEST


def of_pairs(queries: np.ndarray, documents: np.ndarray, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Return the exact inner products, (pairs,) float32, of queries `rows`, ascending, with documents `columns`."""
    products = np.empty(len(rows), dtype=np.float32)
    cuts = np.flatnonzero(np.diff(rows, prepend=-1)).tolist()
    # Query by query instead of pair by pair, so that only documents are copied.
    for start, end in itertools.pairwise([*cuts, len(rows)]):
        query = queries[rows[start]]
        for first in range(start, end, PAIRS):
            part = slice(first, min(first + PAIRS, end))
            # Twice as fast as documents[columns[part]].
            products[part] = of_query(query, documents.take(columns[part], axis=0, mode="clip"))
    return products


def of_query(query: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return the exact inner products, (documents,) float32, of a query, (dim,), with documents, (documents, dim)."""
    # Not a matrix product: its rounding depends on the number of documents.
    products: np.ndarray = np.einsum("ij,j->i", documents.astype(np.float32, copy=False), query)
    return products
