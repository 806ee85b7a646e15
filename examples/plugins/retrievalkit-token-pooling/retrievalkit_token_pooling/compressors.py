"""Token pooling: merges similar vectors of a document into their mean, without training.

After Clavié, Chaffin and Adams 2024, "Reducing the Footprint of Multi-Vector Retrieval with Minimal Performance Impact
via Token Pooling" (arXiv:2409.14683). The n vectors of a document are clustered hierarchically, by Ward's linkage on
cosine distances, into n / factor clusters; each cluster is replaced by the mean of its vectors.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from pydantic import NonNegativeInt, PositiveInt
from scipy.cluster.hierarchy import fcluster, linkage
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from retrievalkit.contracts import Compressor, Representation
from retrievalkit.errors import UnsupportedError


class TokenPooling(Compressor):
    """Token pooling for late interaction (ColBERT): hierarchical clustering merges the similar vectors of a document.

    `rkit encode checkpoint CORPUS --compressor "token_pooling(factor=2)"`. Queries keep all of their vectors.

    Args:
        factor: Vectors per cluster, on average: of n vectors, n / factor remain, rounded down, at least 1.
        protected: Number of vectors at the start of each document that are not pooled, such as that of [CLS].
    """

    def __init__(self, *, factor: PositiveInt = 2, protected: NonNegativeInt = 1) -> None:
        self.factor = factor
        self.protected = protected

    def compress(self, documents: Representation) -> Representation:
        """Replace each document's vectors by its protected vectors and the means of its clusters."""
        if documents.vectors is None:
            msg = "token_pooling merges vectors, but this model computes only weights. Leave --compressor out."
            raise UnsupportedError(msg)
        mask = documents.vector_mask
        pooled = [
            self._pooled(vectors if mask is None else vectors[mask[row]])  # (n, dim)
            for row, vectors in enumerate(documents.vectors)
        ]
        vectors = pad_sequence(pooled, batch_first=True)  # (documents, m, dim)
        counts = torch.tensor(list(map(len, pooled)))
        return replace(documents, vectors=vectors, vector_mask=torch.arange(vectors.shape[1]) < counts[:, None])

    def _pooled(self, vectors: Tensor) -> Tensor:
        first, rest = vectors[: self.protected], vectors[self.protected :]
        count = max(1, len(rest) // self.factor)
        if count >= len(rest):
            return vectors
        return torch.cat([first, cluster_means(rest, clusters(rest, count))])


def clusters(vectors: Tensor, count: int) -> Tensor:
    """Number the cluster of each vector (n, dim) from 0: at most `count` clusters, by Ward's linkage."""
    unit = functional.normalize(vectors, dim=-1)
    distances = (1 - unit @ unit.T).clamp(min=0)  # (n, n) cosine distances
    tree = linkage(squareform(distances.numpy(), checks=False), method="ward")
    return torch.from_numpy(fcluster(tree, count, criterion="maxclust")).long() - 1


def cluster_means(vectors: Tensor, numbers: Tensor) -> Tensor:
    """Average the vectors (n, dim) of each cluster; `numbers` (n,) are the clusters. Returns (clusters, dim)."""
    counts = torch.bincount(numbers)
    sums = vectors.new_zeros(len(counts), vectors.shape[1]).index_add_(0, numbers, vectors)
    return sums / counts[:, None]
