"""Hybrid dense and sparse search by the sum of both scores over all texts, instead of a merge of two lists."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from retrievalkit.contracts import Representation
from retrievalkit.data.vectors import VectorBlock, VectorStore
from retrievalkit.data.vectors.postings import Postings, write_postings
from retrievalkit.data.vectors.rounded import Rounded, write_rounded
from retrievalkit.errors import ArtifactError, UnsupportedError
from retrievalkit.indexing.indexers.flat import Hits, VectorIndexer, named
from retrievalkit.scoring import check_k, top_k, top_k_of_rounded

# Vectors per part: few enough that a query's scores stay in the cache and a copy costs little memory.
PART_VECTORS = 1 << 16
_ROUNDED = "rounded"


class DenseSparse(VectorIndexer):
    """Hybrid dense and sparse search: the sum of the inner products of vectors and of term weights.

    For models that encode both, such as CoT-MAE v2 (Wu et al. 2023, https://arxiv.org/abs/2304.03158). Example:
    `rkit index VECTORS --indexer dense_sparse --output INDEX`. The folder holds the vectors, hard-linked where
    possible, and an inverted index of the weights: 8 bytes per weight. `rounded` adds 2 bytes per dimension and up to
    1 KB per text. Search time grows linearly with the number of texts.

    Args:
        rounded: Also store vectors and the weights of frequent terms in bf16, which makes the search faster on
            processors with bf16 multiplication. No effect if texts have several vectors.
    """

    compares_keys = True

    def __init__(self, *, rounded: bool = True) -> None:
        self.rounded = rounded
        self._postings: Postings
        self._rounded: Rounded | None = None

    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, int]:
        """Link the vectors, and write the weights by term."""
        if not source.dim or not source.vocabulary:
            lacks = "weights over a vocabulary" if source.dim else "vectors"
            other = "flat or faiss" if source.dim else "sparse"
            msg = f"'{source.folder}' holds no {lacks}, and indexer 'dense_sparse' needs both. Use --indexer {other}."
            raise UnsupportedError(msg)
        source.link(index_dir / "vectors")
        texts = max(1, PART_VECTORS * len(source) // source.rows)
        counts = write_postings(source, index_dir / "postings", part_texts=texts)
        if self.rounded and source.vectors_per_text == 1:
            write_rounded(source, Postings(index_dir / "postings"), index_dir / _ROUNDED)
        return {"texts": len(source), "vectors": source.rows, **counts}

    def open(self, index_dir: Path) -> None:
        """Check the files; they are mapped when searched."""
        self._store = VectorStore(index_dir / "vectors")
        self._postings = Postings(index_dir / "postings")
        if len(self._store) != len(self._postings) or self._store.vocabulary != self._postings.terms:
            texts = f"vectors of {len(self._store)} texts and weights of {len(self._postings)}, or other terms"
            msg = f"'{index_dir}' is damaged: it holds {texts}. Index again."
            raise ArtifactError(msg)
        if (index_dir / _ROUNDED).exists() and self._store.vectors_per_text == 1:
            self._rounded = Rounded(index_dir / _ROUNDED, self._store, self._postings)

    def search(self, queries: Representation | Any, k: int) -> Hits:
        """Return the exact top-k texts by the scoring rule."""
        check_k(k)
        store = self._store
        k = min(k, len(store))
        if self._rounded is not None:
            scores, rows = top_k_of_rounded(queries, store, self._postings, self._rounded, k, self._whole(k))
        else:
            scores, rows = self._whole(k)(queries)
        return named(store.ids, scores.numpy(), rows.numpy())

    def _whole(self, k: int) -> Callable[[Representation], tuple[Tensor, Tensor]]:
        return lambda queries: top_k(queries, self._blocks(), k)

    def _blocks(self) -> Iterator[VectorBlock]:
        for block in self._postings.blocks():
            yield replace(self._store.block(block.first, block.first + block.texts), weights=block.weights)
