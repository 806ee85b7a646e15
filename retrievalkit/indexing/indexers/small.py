"""Search of quantised vectors, a byte or a bit per dimension, with exact rescoring of the top candidates.

    vectors-00000.npy  int8 (rows, dim), or uint8 (rows, dim / 8, rounded up): a bit per sign, 1 = positive
    scales-00000.npy   only for int8: float32 (rows,), the scale of each vector's bytes

There is a file for each shard of the vectors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from pydantic import PositiveInt
from torch import Tensor

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorStore, open_array
from retrievalkit.data.vectors.arrays import check_finite
from retrievalkit.errors import ArtifactError, UnsupportedError
from retrievalkit.indexing.indexers.flat import Hits, VectorIndexer
from retrievalkit.scoring import best_of_candidates, check_k, vectors_alone, viewed
from retrievalkit.scoring.bf16_filter import multiplies_bf16

Kind = Literal["int8", "binary"]
_LARGEST = 127
_FOLDER = "small"
_BLOCK = 8_192
# Query vectors per product with a block, which takes 32 MB.
_TOGETHER = 1_024


class Small(VectorIndexer):
    """Scalar (int8) or binary quantisation, with exact rescoring of the candidates.

    Quantised vectors take 1/4 (int8) or 1/32 (binary) of the memory of float32. A query is compared with all of them
    (linear time), and only the candidates are read from the original vectors, which the folder also holds. Queries are
    not quantised. Binary vectors with rescoring follow Yamada et al. (2021, https://arxiv.org/abs/2106.00882).
    Example: `rkit index VECTORS --indexer small --set indexer.kind=binary --output INDEX --check`.

    Args:
        kind: "int8" stores a byte per dimension and a scale per vector, "binary" the sign of each dimension.
        rescored: Candidates per requested hit: more candidates raise recall and take longer.
        view: "vectors" ignores the weights of texts that have vectors and weights; "all" refuses them.
    """

    def __init__(
        self, *, kind: Kind = "int8", rescored: PositiveInt = 10, view: Literal["all", "vectors"] = "all"
    ) -> None:
        self.kind: Kind = kind
        self.rescored = rescored
        self.view = view
        self._small: SmallVectors

    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, int]:
        """Link the vectors, and write quantised vectors."""
        if not source.dim or (source.vocabulary and self.view == "all"):
            has = "holds vectors and weights" if source.dim else "holds weights and no vectors"
            do = "ignore the weights with --set view=vectors" if source.dim else "use --indexer sparse"
            msg = f"'{source.folder}' {has}, and indexer 'small' searches vectors. Use another indexer, or {do}."
            raise UnsupportedError(msg)
        store = VectorStore(source.folder, view="vectors")
        store.link(index_dir / "vectors")
        size = write_small(store, index_dir / _FOLDER, self.kind)
        return {"texts": len(store), "vectors": store.rows, "bytes_per_vector": size}

    def open(self, index_dir: Path) -> None:
        """Map the original and quantised vectors."""
        self._store = VectorStore(index_dir / "vectors", view="vectors")
        self._small = SmallVectors(index_dir / _FOLDER, self.kind, self._store)

    def search(self, queries: Representation | Any, k: int) -> Hits:
        """Return the top-k candidates, with exact scores."""
        store = self._store
        check_k(k)
        queries = viewed(queries, self.view)
        vectors = vectors_alone(queries, store.dim).float().cpu()
        k = min(k, len(store))
        hits: list[tuple[np.ndarray, np.ndarray]] = []
        size = max(1, _TOGETHER // vectors.shape[1])
        for start in range(0, len(vectors), size):
            rows = slice(start, start + size)
            batch = Representation(vectors[rows], None if queries.vector_mask is None else queries.vector_mask[rows])
            hits += best_of_candidates(batch, store, self._candidates(batch, k), k)
        return [store.ids.take(texts) for texts, _ in hits], [scores for _, scores in hits]

    def _candidates(self, queries: Representation, k: int) -> list[np.ndarray]:
        """Return the texts that any vector of a query retrieves, ascending, for each query."""
        assert queries.vectors is not None
        store = self._store
        texts, m, dim = queries.vectors.shape
        wanted = min(store.rows, self.rescored * k * store.most_vectors)
        vectors = queries.vectors.reshape(-1, dim)
        scores, rows = torch.empty(len(vectors), 0), torch.empty(len(vectors), 0, dtype=torch.long)
        for first, products in self._small.products(vectors, _BLOCK):
            numbers = torch.arange(first, first + products.shape[1]).expand(len(vectors), -1)
            scores, rows = torch.cat([scores, products], dim=1), torch.cat([rows, numbers], dim=1)
            if scores.shape[1] > wanted:
                scores, places = scores.topk(wanted, dim=1, sorted=False)
                rows = rows.gather(1, places)
        rows = rows.view(texts, m, wanted)
        real = np.ones((texts, m), dtype=bool) if queries.vector_mask is None else queries.vector_mask.numpy()
        return [
            np.unique(store.texts_of(hits[kept].reshape(-1))) for hits, kept in zip(rows.numpy(), real, strict=True)
        ]


def write_small(store: VectorStore, folder: Path, kind: Kind) -> int:
    """Write the quantised vectors of a folder, and return the bytes per vector."""
    folder.mkdir()
    size = 0
    for number, (_, shard) in enumerate(store.shards()):
        parts = [_quantised(np.asarray(shard[start : start + _BLOCK]), kind) for start in range(0, len(shard), _BLOCK)]
        arrays = {"vectors": np.concatenate([part[0] for part in parts])}
        if kind == "int8":
            arrays["scales"] = np.concatenate([part[1] for part in parts])
        for name, array in arrays.items():
            np.save(_file(folder, name, number), array, allow_pickle=False)
        size = sum(array.nbytes for array in arrays.values()) // max(1, len(shard))
    return size


def _quantised(vectors: np.ndarray, kind: Kind) -> tuple[np.ndarray, np.ndarray]:
    """Return the quantised vectors and their scales."""
    vectors = vectors.astype(np.float32)
    if kind == "binary":
        return np.packbits(vectors > 0, axis=1), np.empty(0)
    scales = np.abs(vectors).max(axis=1) / np.float32(_LARGEST)
    whole = np.rint(vectors / np.where(scales > 0, scales, 1)[:, None]).clip(-_LARGEST, _LARGEST)
    return whole.astype(np.int8), scales.astype(np.float32)


class SmallVectors:
    """The quantised vectors written by `write_small`."""

    def __init__(self, folder: Path, kind: Kind, store: VectorStore) -> None:
        self.kind, self.dim = kind, store.dim
        self._shards: list[tuple[np.ndarray, np.ndarray | None]] = []
        try:
            for number, (_, shard) in enumerate(store.shards()):
                self._shards.append(self._shard(folder, number, len(shard)))
        except (OSError, ValueError) as error:
            msg = f"'{folder}' cannot be read ({error}): it is damaged. Index the vectors again."
            raise ArtifactError(msg) from error

    def products(self, queries: Tensor, block: int) -> Iterator[tuple[int, Tensor]]:
        """Compute the inner products of queries (n, dim) with all quantised vectors, block by block.

        Yields:
            The first row of a block, counted over all shards, and its products, (n, rows) float32.
        """
        # bf16 represents the bytes exactly; only the queries are rounded.
        dtype = torch.bfloat16 if multiplies_bf16() else torch.float32
        queries, first = queries.to(dtype), 0
        for vectors, scales in self._shards:
            for start in range(0, len(vectors), block):
                part: np.ndarray = vectors[start : start + block]
                if self.kind == "binary":  # 1 and -1 for the bits
                    part = np.unpackbits(part, axis=1, count=self.dim).astype(np.int8) * 2 - 1
                rows = torch.from_numpy(np.array(part)).to(dtype)
                products = (queries @ rows.T).float()
                if scales is not None:
                    products *= torch.from_numpy(np.array(scales[start : start + block]))
                yield first + start, products
            first += len(vectors)

    def _shard(self, folder: Path, number: int, rows: int) -> tuple[np.ndarray, np.ndarray | None]:
        width, dtype = (self.dim, "|i1") if self.kind == "int8" else (-(-self.dim // 8), "|u1")
        vectors = open_array(_file(folder, "vectors", number), (dtype,), 2)
        scales = open_array(_file(folder, "scales", number), ("<f4",), 1) if self.kind == "int8" else None
        if vectors.shape != (rows, width) or (scales is not None and len(scales) != rows):
            msg = f"shard {number} does not fit its vectors"
            raise ValueError(msg)
        if scales is not None:
            check_finite(scales)
        return vectors, scales


def _file(folder: Path, name: str, number: int) -> Path:
    return folder / f"{name}-{number:05d}.npy"
