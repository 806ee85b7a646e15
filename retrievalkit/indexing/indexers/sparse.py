"""Exact search of term weights with an inverted index."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit.contracts import Allowed, Indexer, Representation
from retrievalkit.data.vectors import IDS, Ids, VectorStore
from retrievalkit.data.vectors.postings import Postings, write_postings
from retrievalkit.errors import ArtifactError, UnsupportedError
from retrievalkit.indexing.indexers.flat import Hits, named
from retrievalkit.scoring import check_k, lexical_scores_of, top_k, viewed


class Sparse(Indexer):
    """Exact sparse retrieval with an inverted index: scores every text that shares a term with the query.

    For learned term weights, such as SPLADE (Formal et al. 2021, https://arxiv.org/abs/2107.05720) and the sparse view
    of CoT-MAE v2; the vectors of a folder with both are ignored. Example: `rkit index VECTORS --indexer sparse
    --output INDEX`. The index takes 8 bytes per weight. Search time grows with the lengths of the posting lists of the
    query's terms.
    """

    indexes = "vectors"
    view = "weights"

    def __init__(self) -> None:
        self._postings: Postings
        self._ids: Ids

    def build(self, source: VectorStore | Any, index_dir: Path) -> Mapping[str, int]:
        """Write the weights by term instead of by text."""
        if not source.vocabulary:
            msg = f"'{source.folder}' holds no weights, which indexer 'sparse' searches. Use --indexer flat or faiss."
            raise UnsupportedError(msg)
        shutil.copyfile(source.folder / IDS, index_dir / IDS)
        return {"texts": len(source), **write_postings(source, index_dir / "postings")}

    def open(self, index_dir: Path) -> None:
        """Check the files; they are mapped when searched."""
        self._postings = Postings(index_dir / "postings")
        self._ids = Ids(index_dir / IDS)
        if len(self._ids) != len(self._postings):
            msg = f"'{index_dir}' is damaged: {len(self._ids)} ids for {len(self._postings)} texts. Index again."
            raise ArtifactError(msg)

    def search(self, queries: Representation | Any, k: int) -> Hits:
        """Return the exact top-k texts, except texts that share no term with the query."""
        check_k(k)
        scores, rows = top_k(viewed(queries, self.view), self._postings.blocks(), min(k, len(self._ids)))
        return named(self._ids, scores.numpy(), rows.numpy())

    def search_among(self, queries: Representation | Any, k: int, allowed: Allowed) -> Hits:
        """Return the exact top-k allowed texts."""
        check_k(k)
        k, mask = min(k, len(self._ids)), allowed.mask(self._ids)
        return named(self._ids, *top_k(viewed(queries, self.view), self._postings.blocks(), k, mask=mask))

    def scores(self, queries: Representation | Any, ids: Sequence[Sequence[str]]) -> list[np.ndarray]:
        """Return the scores of texts."""
        rows = [self._ids.rows(names) for names in ids]
        return lexical_scores_of(viewed(queries, self.view), self._postings.blocks(), rows)
