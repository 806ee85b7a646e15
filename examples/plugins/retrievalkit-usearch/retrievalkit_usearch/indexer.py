"""The indexer `usearch`: an HNSW graph (Malkov and Yashunin 2018) by USearch (Vardanian 2023) over a vectors/ folder.

    rkit index vectors --indexer usearch --set number_format=i8 --output index

The graph, which may store vectors in fewer bits, retrieves candidates; these are ranked by the exact scores of the
original vectors. The folder contains `vectors/` (hard-linked if possible) and `graph.usearch`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt
from usearch.index import Index

from retrievalkit.contracts import Indexer, Representation
from retrievalkit.data.vectors import VectorStore
from retrievalkit.errors import ArtifactError, UnsupportedError
from retrievalkit.scoring import best_of_candidates, check_k, scores_of, vectors_alone, viewed

_GRAPH = "graph.usearch"
_BLOCK = 16_384


class USearch(Indexer):
    """Approximate nearest neighbours with USearch's HNSW graph; its candidates are scored exactly.

    HNSW (Malkov and Yashunin 2018, https://arxiv.org/abs/1603.09320) needs memory for each vector in the number format
    and about 2 * `connectivity` links; search time grows about logarithmically. Supports one or many vectors per text
    and per query (late interaction): each query vector retrieves candidates.

    Args:
        number_format: Number format of the graph: "f32", "bf16", "f16", or "i8", which suits normalised vectors.
        connectivity: Neighbours per vector in the graph (HNSW's M).
        expansion_add: Candidates explored when a vector is added: more give a better graph (HNSW's efConstruction).
        expansion_search: Candidates explored in a search: more give higher recall and slower search (HNSW's ef).
        candidates: Minimum number of vectors that each query vector retrieves.
        exact: Compare with every vector instead of searching the graph.
        threads: Threads for building and searching; 0 = one per processor. With one thread, the graph is deterministic.
        view: "vectors" ignores the weights of texts that have both; "all" refuses these texts.
    """

    indexes = "vectors"

    def __init__(
        self,
        *,
        number_format: Literal["f32", "bf16", "f16", "i8"] = "f32",
        connectivity: Annotated[int, Field(ge=2)] = 16,
        expansion_add: PositiveInt = 128,
        expansion_search: PositiveInt = 64,
        candidates: PositiveInt = 100,
        exact: bool = False,
        threads: NonNegativeInt = 1,
        view: Literal["all", "vectors"] = "all",
    ) -> None:
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
        """Link the vectors, and write their graph."""
        if source.vocabulary and source.dim and self.view == "all":
            msg = (
                f"'{source.folder}' has vectors and weights, but indexer 'usearch' only supports vectors. "
                f"Use --indexer dense_sparse, or ignore the weights with --set view=vectors."
            )
            raise UnsupportedError(msg)
        if not source.dim:
            msg = f"'{source.folder}' has weights, but indexer 'usearch' needs vectors. Use --indexer sparse."
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
            msg = f"'{path}' does not match the {store.rows} vectors of size {store.dim}. Index the vectors again."
            raise ArtifactError(msg)
        graph.expansion_search = self.expansion_search
        self._store, self._graph = store, graph

    def search(self, queries: Representation | Any, k: int) -> tuple[list[list[str]], list[np.ndarray]]:
        """Return the best candidates of the graph by their exact scores; ties in index order."""
        store = self._opened()
        check_k(k)
        queries = viewed(queries, self.view)
        k = min(k, len(store))
        queries = Representation(vectors_alone(queries, store.dim).float(), queries.vector_mask)
        best = best_of_candidates(queries, store, self._candidates(queries, k), k)
        return [store.ids.take(texts) for texts, _ in best], [scores for _, scores in best]

    def scores(self, queries: Representation | Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Compute the exact scores of texts from the original vectors."""
        store, queries = self._opened(), viewed(queries, self.view)
        vectors_alone(queries, store.dim)
        return scores_of(queries, store, list(map(store.ids.rows, ids)))

    def _candidates(self, queries: Representation, k: int) -> list[np.ndarray]:
        """Return the texts of the nearest neighbours of each query's vectors, ascending."""
        store = self._opened()
        assert queries.vectors is not None
        mask = queries.vector_mask
        counts = np.full(len(queries), queries.vectors.shape[1]) if mask is None else mask.sum(dim=1).numpy()
        vectors = (queries.vectors.flatten(0, 1) if mask is None else queries.vectors[mask]).numpy()
        if not len(vectors):
            return [np.empty(0, np.int64) for _ in counts]
        neighbours = min(store.rows, max(self.candidates, k * store.most_vectors))
        # The graph may not reach every vector.
        exact = self.exact or neighbours == store.rows
        # A single call for all queries, because a call takes longer than a search of the graph.
        matches = self._graph.search(vectors, neighbours, exact=exact, threads=self.threads)
        # For a single vector, USearch returns a row of hits; otherwise rows, which are padded after `counts` hits.
        single = len(vectors) == 1
        rows = [matches.keys] if single else [row[:n] for row, n in zip(matches.keys, matches.counts, strict=True)]
        texts = [store.texts_of(row.astype(np.int64)) for row in rows]
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
