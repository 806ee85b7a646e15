"""The greatest inner product of each query vector with each document's vectors, in bounded memory, with its gradient.

The plain expression for late interaction of 128 queries of 32 vectors with 1,024 documents of 200 computes 840 million
inner products and keeps them for the backward pass. Only the greatest of each document has a gradient, so keeping its
index is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

# Inner products held in memory at once.
LIMIT = 1 << 24


def max_products(queries: Tensor, documents: Tensor, mask: Tensor | None) -> Tensor:
    """(rows, D): for each query vector, (rows, dim), the greatest product with each document's, (D, m, dim)."""
    products: Tensor = _MaxProducts.apply(queries, documents, mask)  # type: ignore[no-untyped-call]
    return products


class _MaxProducts(torch.autograd.Function):
    """Documents chunk by chunk, forward and backward. Of equal products, the first receives the gradient."""

    @staticmethod
    def forward(ctx: Any, queries: Tensor, documents: Tensor, mask: Tensor | None) -> Tensor:
        best, places = [], []
        for part in _chunks(queries, documents):
            some = documents[part]
            products = (queries @ some.flatten(0, 1).T).view(len(queries), *some.shape[:2])  # (rows, some, m)
            if mask is not None:
                products = products.masked_fill(~mask[part], float("-inf"))
            greatest = products.max(dim=2)
            best.append(greatest.values)
            places.append(greatest.indices.to(torch.int32))
        ctx.save_for_backward(queries, documents, torch.cat(places, dim=1))
        return torch.cat(best, dim=1)

    @staticmethod
    @torch.autograd.function.once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        queries, documents, places = ctx.saved_tensors
        of_queries, of_documents = torch.zeros_like(queries), torch.empty_like(documents)
        for part in _chunks(queries, documents):
            some = documents[part]
            spread = queries.new_zeros(len(queries), *some.shape[:2])
            spread.scatter_(2, places[:, part, None].long(), gradient[:, part, None].to(queries.dtype))
            spread = spread.flatten(1)  # (rows, some * m)
            of_queries += spread @ some.flatten(0, 1)
            of_documents[part] = (spread.T @ queries).view(some.shape)
        return of_queries, of_documents, None


def _chunks(queries: Tensor, documents: Tensor) -> Iterator[slice]:
    size = max(1, LIMIT // max(1, len(queries) * documents.shape[1]))
    for start in range(0, len(documents), size):
        yield slice(start, start + size)
