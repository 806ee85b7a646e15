"""The indexer `plaid`: late interaction over centroids and quantised residuals, without the original vectors.

After Santhanam et al. 2022, "ColBERTv2" (arXiv:2112.01488), for the compression, and "PLAID: An Efficient Engine for
Late Interaction Retrieval" (arXiv:2205.09707), for the search. A vector v is stored as its nearest centroid and a
residual of a few bits per dimension:

    code = argmin over centroids c of |v - c|         v' = centroid[code] + level[nearest level of v - centroid[code]]

A search has three stages: it retrieves texts with vectors at the centroids nearest to a query vector, ranks them by the
scores of their centroids, and the best of them by the scores of v'. The folder contains

    centroids.npy   (centroids, dim) float32           levels.npy   (2 ** bits,) float32, the values of a residual
    codes.npy       (rows,) int32, the centroids       residuals.npy   (rows, dim * bits / 8) uint8, packed levels
    lists.npy       (rows,) int32, the texts of each centroid's vectors, centroid by centroid
    offsets.npy     (texts + 1,) int64, the first row of each text        ids.txt   the texts' ids
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from pydantic import PositiveInt

from retrievalkit.contracts import Indexer, Representation
from retrievalkit.data.vectors import IDS, Ids, VectorBlock, VectorStore, check_starts, open_array, spread
from retrievalkit.errors import ArtifactError, UnsupportedError
from retrievalkit.scoring import best_of_candidates, check_k, scores_of, vectors_alone

_BLOCK = 16_384
# Samples: vectors per centroid for k-means, and residual values for the levels.
_SAMPLED, _SAMPLED_NUMBERS = 64, 1 << 18
_ITERATIONS = 10


class Plaid(Indexer):
    """PLAID for late interaction (ColBERTv2): centroids and residuals of 2 bits per dimension instead of the vectors.

    A vector of 128 dimensions takes 36 bytes instead of 512. Scores are computed from the decompressed vectors.

    Args:
        bits: Bits per dimension of the residuals.
        centroids: Number of centroids; None = 16 times the square root of the number of vectors, as a power of 2.
        probes: Minimum number of centroids from which each query vector retrieves texts.
        candidates: Texts whose vectors are decompressed for each query; at least 4 per hit.
    """

    indexes = "vectors"
    segmented = False  # the centroids fit the texts that they were trained on

    def __init__(
        self,
        *,
        bits: Literal[1, 2, 4, 8] = 2,
        centroids: PositiveInt | None = None,
        probes: PositiveInt = 4,
        candidates: PositiveInt = 256,
    ) -> None:
        self.bits = bits
        self.centroids = centroids
        self.probes = probes
        self.candidates = candidates
        self._texts: CompressedTexts

    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, float]:
        """Train centroids and levels on a sample, and compress all vectors."""
        if source.vocabulary or not source.dim:
            msg = f"'{source.folder}' has weights, but indexer 'plaid' supports only vectors. Use another indexer."
            raise UnsupportedError(msg)
        count = min(source.rows, self.centroids or 1 << round(math.log2(16 * math.sqrt(source.rows))))
        rows = np.random.default_rng(0).choice(source.rows, min(source.rows, _SAMPLED * count), replace=False)
        sample = np.ascontiguousarray(source.take_vectors(np.sort(rows)), dtype=np.float32)
        centroids = _kmeans(sample, count)
        residuals = (sample - centroids[_nearest(sample, centroids)]).reshape(-1)[:_SAMPLED_NUMBERS]
        levels = _levels(residuals, 1 << self.bits)
        codes = np.empty(source.rows, dtype=np.int32)
        width = -(-source.dim * self.bits // 8)
        packed = np.lib.format.open_memmap(index_dir / "residuals.npy", "w+", np.uint8, (source.rows, width))
        first = 0
        for block in source.blocks(_BLOCK):
            vectors = np.ascontiguousarray(block.vectors, dtype=np.float32)
            here = slice(first, first + len(vectors))
            codes[here] = _nearest(vectors, centroids)
            cuts = (levels[1:] + levels[:-1]) / 2
            packed[here] = pack(np.searchsorted(cuts, vectors - centroids[codes[here]]), self.bits)
            first += len(vectors)
        packed.flush()
        offsets = source.offsets
        if offsets is None:
            offsets = np.arange(0, source.rows + 1, source.vectors_per_text, dtype=np.int64)
        lists = source.texts_of(np.argsort(codes, kind="stable")).astype(np.int32)
        arrays = {"centroids": centroids, "levels": levels, "codes": codes, "lists": lists, "offsets": offsets}
        for name, array in arrays.items():
            np.save(index_dir / f"{name}.npy", array, allow_pickle=False)
        (index_dir / IDS).write_bytes("".join(f"{name}\n" for name in source.ids).encode())
        return {"texts": len(source), "vectors": source.rows, "centroids": count, "bytes_per_vector": width + 4}

    def open(self, index_dir: Path) -> None:
        """Map the files into memory."""
        self._texts = CompressedTexts(index_dir, self.bits)

    def search(self, queries: Representation | Any, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """Return the best candidates by the scores of their decompressed vectors; ties in index order."""
        texts = self._texts
        check_k(k)
        vectors, mask = vectors_alone(queries, texts.dim).float(), queries.vector_mask
        k = min(k, len(texts.ids))
        candidates = [
            self._candidates((query if mask is None else query[mask[row]]).numpy(), k)
            for row, query in enumerate(vectors)
        ]
        best = best_of_candidates(Representation(vectors, mask), texts, candidates, k) if candidates else []
        return [texts.ids.take(rows) for rows, _ in best], [scores for _, scores in best]

    def scores(self, queries: Representation | Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Score texts by their decompressed vectors."""
        vectors = vectors_alone(queries, self._texts.dim)
        queries = Representation(vectors.float(), queries.vector_mask)
        return scores_of(queries, self._texts, [self._texts.ids.rows(names) for names in ids])

    def _candidates(self, query: np.ndarray, k: int) -> np.ndarray:
        """Return the texts to decompress for a query (m, dim), ascending."""
        texts, count = self._texts, max(self.candidates, 4 * k)
        if count >= len(texts.ids):
            return np.arange(len(texts.ids) if len(query) else 0)
        products = query @ texts.centroids.T  # (m, centroids)
        best = np.argpartition(-products, min(self.probes, products.shape[1]) - 1, axis=1)[:, : self.probes]
        # Add centroids until their lists must contain enough texts.
        order = np.argsort(-products.max(axis=0, initial=-np.inf), kind="stable")
        enough = np.searchsorted(np.cumsum(np.diff(texts.starts)[order]), count * texts.most_vectors) + 1
        probed = np.unique(np.concatenate([best.reshape(-1), order[:enough]]))
        near = np.unique(texts.lists[spread(texts.starts, probed)[0]])
        if len(near) <= count or not len(query):
            return near if len(query) else near[:0]
        rows, starts = spread(texts.offsets, near)
        by_centroid = np.maximum.reduceat(products[:, texts.codes[rows]], starts[:-1], axis=1).sum(axis=0)
        return np.sort(near[np.argsort(-by_centroid, kind="stable")[:count]])


class CompressedTexts:
    """The texts of an index, whose vectors are decompressed on access: a `retrievalkit.scoring.TextReader`."""

    def __init__(self, folder: Path, bits: int) -> None:
        self.bits = bits
        self.ids = Ids(folder / IDS)

        def array(name: str, dtype: str, ndim: int) -> np.ndarray:
            return open_array(folder / f"{name}.npy", (dtype,), ndim)

        try:
            # Small arrays are read into memory.
            self.centroids = np.array(array("centroids", "<f4", 2))
            self.levels = np.array(array("levels", "<f4", 1))
            self.codes, self.lists = array("codes", "<i4", 1), array("lists", "<i4", 1)
            self.residuals = array("residuals", "|u1", 2)
            self.offsets = np.array(array("offsets", "<i8", 1))
            check_starts(self.offsets, len(self.codes))
            counts = np.bincount(self.codes, minlength=len(self.centroids))
            self.starts = np.concatenate([[0], np.cumsum(counts)])
            self.dim = self.centroids.shape[1]
            sizes = len(counts), len(self.levels), len(self.offsets), self.lists.min() >= 0, self.lists.max()
        except (OSError, ValueError) as error:
            msg = f"'{folder}' cannot be read ({error}): it is damaged. Index the vectors again."
            raise ArtifactError(msg) from error
        rows, texts, width = len(self.codes), len(self.ids), -(-self.dim * bits // 8)
        fits = self.residuals.shape == (rows, width) and len(self.lists) == rows
        if not fits or sizes != (len(self.centroids), 1 << bits, texts + 1, True, texts - 1):
            msg = f"the files of '{folder}' do not fit together: it is damaged. Index the vectors again."
            raise ArtifactError(msg)
        self.most_vectors = int(np.diff(self.offsets).max())

    def take(self, texts: np.ndarray) -> VectorBlock:
        """Decompress the vectors of texts, in the same order."""
        rows, starts = spread(self.offsets, texts)
        levels = unpack(self.residuals[rows], self.bits, self.dim)
        return VectorBlock(0, len(texts), self.centroids[self.codes[rows]] + self.levels[levels], starts, None)


def pack(numbers: np.ndarray, bits: int) -> np.ndarray:
    """Pack numbers (rows, dim) below 2 ** bits into bytes (rows, dim * bits / 8)."""
    single = np.unpackbits(numbers.astype(np.uint8)[:, :, None], axis=2)[:, :, -bits:]  # (rows, dim, bits)
    return np.packbits(single.reshape(len(numbers), -1), axis=1)


def unpack(packed: np.ndarray, bits: int, dim: int) -> np.ndarray:
    """Return the numbers (rows, dim) in the output of `pack`."""
    single = np.unpackbits(packed, axis=1, count=dim * bits).reshape(-1, dim, bits)
    return single @ (1 << np.arange(bits)[::-1])


def _levels(values: np.ndarray, count: int) -> np.ndarray:
    """Return levels (count,), ascending, with the smallest squared error for the values (Lloyd and Max)."""
    largest = np.abs(values).max()
    levels = np.linspace(-largest, largest, 2 * count + 1)[1::2]
    for _ in range(_ITERATIONS):
        nearest = np.searchsorted((levels[1:] + levels[:-1]) / 2, values)
        counts = np.bincount(nearest, minlength=count)
        means = np.bincount(nearest, values, count) / np.maximum(counts, 1)
        levels = np.where(counts > 0, means, levels)
    return levels.astype(np.float32)


def _kmeans(points: np.ndarray, count: int) -> np.ndarray:
    """Return centroids (count, dim) of points (n, dim), with n at least `count`."""
    kmeans = faiss.Kmeans(
        points.shape[1], count, niter=_ITERATIONS, seed=0, min_points_per_centroid=1,
        max_points_per_centroid=len(points),
    )  # fmt: skip
    kmeans.train(points)
    return np.asarray(kmeans.centroids, dtype=np.float32)


def _nearest(vectors: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Return the number of the nearest centroid (n,) of each vector (n, dim)."""
    index = faiss.IndexFlatL2(centroids.shape[1])
    index.add(centroids)
    nearest: np.ndarray = index.search(vectors, 1)[1][:, 0]
    return nearest
