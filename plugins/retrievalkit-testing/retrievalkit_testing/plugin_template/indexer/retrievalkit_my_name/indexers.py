"""The indexer `my_name`: turns a folder of vectors into a searchable index."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from retrievalkit.contracts import Indexer, Representation
from retrievalkit.data.vectors import IDS, Ids, VectorStore
from retrievalkit.errors import UnsupportedError

_VECTORS = "vectors.npy"


class MyName(Indexer):
    """Exact (brute-force) search: compares every query with every text.

    Args:
        stored: Number format of the vectors in the index; float16 takes half the space.
    """

    # "texts" for an indexer that reads a corpus and searches for strings, like BM25.
    indexes = "vectors"

    # Keyword-only arguments are the options, for both `build` and `open`: set by --set indexer.stored=float16.
    def __init__(self, *, stored: Literal["float32", "float16"] = "float32") -> None:
        self.stored = stored

    def build(self, source: VectorStore, index_dir: Path) -> Mapping[str, float]:
        """Write the index; everything that `open` needs is in the folder, which may be moved."""
        if source.most_vectors != 1 or source.vocabulary:
            msg = f"'{source.folder}' has weights or several vectors per text. This indexer takes one vector: try flat."
            raise UnsupportedError(msg)
        size = (len(source), source.dim)
        vectors = np.lib.format.open_memmap(index_dir / _VECTORS, mode="w+", dtype=self.stored, shape=size)
        # Shard by shard, so memory does not grow with the collection.
        for first, rows in source.shards():
            vectors[first : first + len(rows)] = rows
        vectors.flush()
        with (index_dir / IDS).open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(f"{identifier}\n" for identifier in source.ids)
        return {"texts": len(source)}

    def open(self, index_dir: Path) -> None:
        """Memory-map the vectors and load the ids."""
        self.vectors = np.load(index_dir / _VECTORS, mmap_mode="r")
        self.ids = Ids(index_dir / IDS)

    def search(self, queries: Representation, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """The ids of the best texts of each query and their scores; ties in index order."""
        ids, found = [], []
        for query in _numbers(queries):
            scores = self._scores(query)
            best = np.argsort(-scores, kind="stable")[:k]
            ids.append(self.ids.take(best))
            found.append(scores[best])
        return ids, found

    # Optional: fusion needs the scores of texts that another index retrieved.
    def scores(self, queries: Representation, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """The scores of the requested texts; NaN for texts that are not in the index."""
        found = []
        for query, wanted in zip(_numbers(queries), ids, strict=True):
            rows = self.ids.rows(wanted)  # -1 where an id is unknown
            found.append(np.where(rows >= 0, self._scores(query)[rows], np.float32("nan")))
        return found

    def _scores(self, query: np.ndarray) -> np.ndarray:
        """(texts,) float32: each text is scored by itself, so equal vectors get equal scores wherever they are."""
        scores: np.ndarray = np.einsum("td,d->t", self.vectors, query, dtype=np.float32)
        return scores


def _numbers(queries: Representation) -> np.ndarray:
    """(queries, dim): the single vector of each query."""
    if queries.vectors is None or queries.vectors.shape[1] != 1:
        msg = "queries have only weights, or several vectors. This indexer compares one vector: try flat."
        raise UnsupportedError(msg)
    numbers: np.ndarray = queries.vectors[:, 0].float().numpy()
    return numbers
