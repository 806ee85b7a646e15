"""The indexer `my_name`: from a folder of vectors to something that can be searched."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from retrievalkit.contracts import Indexer, Representation
from retrievalkit.data.vectors import IDS, Ids, VectorStore
from retrievalkit.errors import UnsupportedError

_VECTORS = "vectors.npy"


class MyName(Indexer):
    """Compares every query with every text, so nothing is missed.

    Args:
        stored: Number format of the vectors in the index; float16 takes half the space.
    """

    # "texts" for an indexer that is given a corpus and searches for strings, as BM25.
    indexes = "vectors"

    # Keyword-only arguments are the options, in `build` and in `open` alike: set by --set indexer.stored=float16.
    def __init__(self, *, stored: Literal["float32", "float16"] = "float32") -> None:
        self.stored = stored

    def build(self, source: VectorStore, index_dir: Path) -> Mapping[str, float]:
        """Write the index; what `open` needs is in the folder, which may be moved."""
        if source.most_vectors != 1 or source.vocabulary:
            msg = f"'{source.folder}' has weights, or several vectors a text. This indexer takes one vector: try flat."
            raise UnsupportedError(msg)
        size = (len(source), source.dim)
        vectors = np.lib.format.open_memmap(index_dir / _VECTORS, mode="w+", dtype=self.stored, shape=size)
        # Shard by shard, so that memory does not grow with the collection.
        for first, rows in source.shards():
            vectors[first : first + len(rows)] = rows
        vectors.flush()
        with (index_dir / IDS).open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(f"{identifier}\n" for identifier in source.ids)
        return {"texts": len(source)}

    def open(self, index_dir: Path) -> None:
        """Map the vectors and the ids into memory."""
        self.vectors = np.load(index_dir / _VECTORS, mmap_mode="r")
        self.ids = Ids(index_dir / IDS)

    def search(self, queries: Representation, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """The ids of the best texts of each query and their scores; equal scores in the order of the index."""
        ids, found = [], []
        for query in _numbers(queries):
            scores = self._scores(query)
            best = np.argsort(-scores, kind="stable")[:k]
            ids.append(self.ids.take(best))
            found.append(scores[best])
        return ids, found

    # Optional: fusion needs the scores of texts that another index found.
    def scores(self, queries: Representation, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """The scores of given texts; NaN for those that are not in the index."""
        found = []
        for query, wanted in zip(_numbers(queries), ids, strict=True):
            rows = self.ids.rows(wanted)  # -1 where an id is unknown
            found.append(np.where(rows >= 0, self._scores(query)[rows], np.float32("nan")))
        return found

    def _scores(self, query: np.ndarray) -> np.ndarray:
        """(texts,) float32: each text by itself, so that equal vectors get equal scores wherever they stand."""
        scores: np.ndarray = np.einsum("td,d->t", self.vectors, query, dtype=np.float32)
        return scores


def _numbers(queries: Representation) -> np.ndarray:
    """(queries, dim): the one vector of each query."""
    if queries.vectors is None or queries.vectors.shape[1] != 1:
        msg = "queries have weights alone, or several vectors. This indexer compares one vector: try flat."
        raise UnsupportedError(msg)
    numbers: np.ndarray = queries.vectors[:, 0].float().numpy()
    return numbers
