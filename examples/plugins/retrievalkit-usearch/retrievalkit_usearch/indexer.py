"""The indexer `usearch`: an HNSW graph (Malkov and Yashunin 2018) by USearch (Vardanian 2023) over a vectors/ folder.

    rkit index vectors --indexer usearch --set number_format=i8 --output index

The graph, in which vectors may be rounded to a few bits, proposes texts; they are ranked by the exact rule on the
vectors as they are. The folder holds `vectors/` (hard-linked where possible) and `graph.usearch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from usearch.index import Index

from retrievalkit.contracts import Indexer, Representation
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, OptionError, UnsupportedError
from retrievalkit.scoring import best_of_candidates, check_k, scores_of, vectors_alone, viewed

_GRAPH = "graph.usearch"
_BLOCK = 16_384


class USearch(Indexer):
    """Approximate search in a graph of the vectors; what it finds is ranked and scored exactly.

    Serves one and many vectors a text, and one and many vectors a query: each of them retrieves candidates.

    Args:
        number_format: How the graph stores numbers: "f32", "bf16", "f16", or "i8", which suits vectors of one length.
        connectivity: Neighbours of a vector in the graph.
        expansion_add: Candidates that are kept in mind when a vector is added: more make a better graph.
        expansion_search: Candidates that are kept in mind in a search: more make it slower and miss less.
        candidates: Vectors that each vector of a query retrieves, at least.
        exact: Compare with every vector in place of walking through the graph.
        threads: Threads for building and searching; 0 = one per processor. With one thread, equal input gives an
            equal graph.
        view: "vectors" searches texts that have weights too by their vectors alone; "all" refuses such texts.
    """

    indexes = "vectors"

    def __init__(
        self,
        *,
        number_format: Literal["f32", "bf16", "f16", "i8"] = "f32",
        connectivity: int = 16,
        expansion_add: int = 128,
        expansion_search: int = 64,
        candidates: int = 100,
        exact: bool = False,
        threads: int = 1,
        view: Literal["all", "vectors"] = "all",
    ) -> None:
        least = {"connectivity": 2, "expansion_add": 1, "expansion_search": 1, "candidates": 1, "threads": 0}
        given = {
            "connectivity": connectivity,
            "expansion_add": expansion_add,
            "expansion_search": expansion_search,
            "candidates": candidates,
            "threads": threads,
        }
        for name, value in given.items():
            if value < least[name]:
                msg = f"option '{name}' of indexer 'usearch' is {value}, and must be {least[name]} or more."
                raise OptionError(msg)
        self.number_format = number_format
        self.connectivity = connectivity
        self.expansion_add = expansion_add
        self.expansion_search = expansion_search
        self.candidates = candidates
        self.exact = exact
        self.threads = threads
        self.view = view
        self._store: VectorStore | None = None
        self._graph: Any = None

    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, float]:
        """Link the vectors, and write a graph of them."""
        if source.vocabulary and source.dim and self.view == "all":
            msg = (
                f"'{source.folder}' holds vectors and weights; indexer 'usearch' searches vectors alone. "
                f"Use --indexer dense_sparse, or leave the weights aside by --set view=vectors."
            )
            raise UnsupportedError(msg)
        if not source.dim:
            msg = (
                f"'{source.folder}' holds weights and no vectors, which indexer 'usearch' needs. Use --indexer sparse."
            )
            raise UnsupportedError(msg)
        source = VectorStore(source.folder, view="vectors")
        source.link(index_dir / "vectors")
        graph = self._new_graph(source.dim)
        for block in source.blocks(_BLOCK):
            first = len(graph)
            vectors = np.ascontiguousarray(block.vectors, dtype=np.float32)
            graph.add(np.arange(first, first + len(vectors)), vectors, threads=self.threads)
        graph.save(str(index_dir / _GRAPH))
        return {"texts": len(source), "vectors": source.rows}

    def open(self, index_dir: Path) -> None:
        """Map vectors and graph into memory."""
        store = VectorStore(index_dir / "vectors", view="vectors")
        graph = self._new_graph(store.dim)
        path = index_dir / _GRAPH
        try:
            graph.view(str(path))
        except (RuntimeError, ValueError) as error:
            msg = f"'{path}' cannot be read ({error}): it is damaged. Index the vectors again."
            raise ArtifactError(msg) from error
        if (len(graph), graph.ndim) != (store.rows, store.dim):
            msg = f"'{path}' does not hold the {store.rows} vectors of {store.dim} beside it. Index the vectors again."
            raise ArtifactError(msg)
        graph.expansion_search = self.expansion_search
        self._store, self._graph = store, graph

    def search(self, queries: Representation | Any, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """The best of the texts that the graph proposes, by the scoring rule; equal scores in the index's order."""
        store = self._opened()
        check_k(k)
        queries = viewed(queries, self.view)
        vectors = vectors_alone(queries, store.dim)
        k = min(k, len(store))
        asked = Representation(vectors.float(), queries.vector_mask)
        best = best_of_candidates(asked, store, self._candidates(asked, k), k)
        return [store.ids.take(texts) for texts, _ in best], [scores for _, scores in best]

    def scores(self, queries: Representation | Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """The scores of given texts by the scoring rule, from the vectors as they are."""
        store, queries = self._opened(), viewed(queries, self.view)
        vectors_alone(queries, store.dim)
        return scores_of(queries, store, [store.ids.rows(one) for one in ids])

    def _candidates(self, queries: Representation, k: int) -> list[np.ndarray]:
        """For each query the rows of texts, ascending, of which a vector is near to one of its vectors."""
        store = self._opened()
        assert queries.vectors is not None
        mask = queries.vector_mask
        counts = np.full(len(queries), queries.vectors.shape[1]) if mask is None else mask.sum(dim=1).numpy()
        vectors = (queries.vectors.flatten(0, 1) if mask is None else queries.vectors[mask]).numpy()
        if not len(vectors):
            return [np.empty(0, np.int64) for _ in counts]
        wanted = min(store.rows, max(self.candidates, k * store.most_vectors))
        # All vectors of all queries at once: a call costs more than a walk through the graph.
        matches = self._graph.search(vectors, wanted, exact=self.exact, threads=self.threads)
        # Of a single vector USearch gives a row, cut already.
        rows = [matches.keys] if len(vectors) == 1 else map(_cut, matches.keys, matches.counts)
        texts = [store.texts_of(one.astype(np.int64)) for one in rows]
        ends = np.cumsum(counts)
        return [
            np.unique(np.concatenate([np.empty(0, np.int64), *texts[end - count : end]]))
            for end, count in zip(ends, counts, strict=True)
        ]

    def _new_graph(self, dim: int) -> Any:
        return Index(
            ndim=dim,
            metric="ip",
            dtype=self.number_format,
            connectivity=self.connectivity,
            expansion_add=self.expansion_add,
            expansion_search=self.expansion_search,
        )

    def _opened(self) -> VectorStore:
        assert self._store is not None, "open() must be called before search()"
        return self._store


def _cut(rows: np.ndarray, count: int) -> np.ndarray:
    """The rows of vectors that were found; what follows them has no meaning."""
    return rows[:count]
