"""Models, indexes and hybrid search for MTEB."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import retrievalkit as rk
from retrievalkit.contracts.commands import fingerprint_value
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit_adapters import Hits, missing, open_index, scores_of

try:
    from mteb.models import ModelMeta
    from mteb.models.abs_encoder import AbsEncoder
    from mteb.models.model_meta import ScoringFunction
    from mteb.types import PromptType
except ImportError as error:
    raise missing("mteb", "MTEB") from error


class Encoder(AbsEncoder):
    """A model with one vector per text, for tasks of all types.

    Queries of retrieval tasks are encoded as queries, and all other texts as documents. Use `Search` for a model with
    several vectors per text or with term weights.

    Args:
        model_name: A loaded `rk.Retriever`, or the folder or name of a model.
        revision: Revision in the results; None = the fingerprint of the model.
        **options: Options of `rk.Retriever.load`.

    Raises:
        InputError: The model does not exist.
    """

    def __init__(self, model_name: Any, revision: str | None = None, **options: Any) -> None:
        self.retriever = _retriever(model_name, **options)
        name = os.path.basename(self.retriever.source)
        self.mteb_model_meta = _meta(name, revision or _identity(self.retriever), "dense")

    def encode(self, inputs: Any, *, prompt_type: PromptType | None = None, **_: Any) -> Any:
        """Encode the texts of a data loader: (texts, dim) float32.

        Raises:
            UnsupportedError: The model has several vectors per text, or term weights.
        """
        texts: list[str] = []
        titles: list[str] = []
        for batch in inputs:
            # Documents also have title and body separately.
            texts += batch.get("body", batch["text"])
            titles += batch.get("title") or [""] * len(batch["text"])
        if prompt_type == PromptType.query:
            vectors = self.retriever.encode_queries(texts)
        else:
            passages = [{"title": title or "", "text": text} for title, text in zip(titles, texts, strict=True)]
            vectors = self.retriever.encode_documents(passages)
        if vectors.weights is not None or vectors.counts is not None or vectors.vectors.shape[1] > 1:
            msg = f"'{self.retriever.source}' has several vectors per text. Evaluate it as Search({{'model': ...}})."
            raise UnsupportedError(msg)
        return vectors.to_numpy()


class IndexSearch:
    """Search in an existing index, for retrieval and re-ranking tasks on the corpus that was indexed.

    Args:
        index: An open index or hybrid, an index folder, or a list of folders, fused by reciprocal rank fusion.
        name: Name in the results; None = the name of the index.

    Raises:
        InputError: The index does not exist.
    """

    def __init__(self, index: Any, name: str | None = None) -> None:
        self.searchable = open_index(index)
        fusion = self.searchable.options if isinstance(self.searchable, rk.Hybrid) else None
        identity = [self.searchable.searcher.identities, fusion]
        kind = "hybrid" if fusion else None
        self.mteb_model_meta = _meta(name or self.searchable.name, fingerprint_value(identity), kind)

    def index(self, corpus: Any, **_: Any) -> None:
        """Record the ids of a task's corpus."""
        self._ids = set(corpus["id"])

    def search(
        self, queries: Any, *, top_k: int, top_ranked: Mapping[str, list[str]] | None = None, **_: Any
    ) -> dict[str, dict[str, float]]:
        """Return the best documents for each query; with `top_ranked`, from its documents there.

        Raises:
            InputError: A hit is not in the corpus of the task.
            UnsupportedError: A query is not a text.
        """
        texts = {}
        for row in queries:
            if not isinstance(row["text"], str):
                msg = f"the query '{row['id']}' is a conversation, but must be a text. Leave the task out."
                raise UnsupportedError(msg)
            texts[row["id"]] = " ".join(filter(None, (row["text"], row.get("instruction"))))
        run: dict[str, Hits] = {}
        if top_ranked is None:
            run = self.searchable.search(texts, top_k)
        else:
            for query, text in texts.items():
                run[query] = scores_of(self.searchable, text, top_ranked.get(query, ()))[:top_k]
        if unknown := [name for hits in run.values() for name, _ in hits if name not in self._ids]:
            msg = f"'{self.searchable.name}' has '{unknown[0]}', which is not in the task's corpus. Index the corpus."
            raise InputError(msg)
        return {query: dict(hits) for query, hits in run.items()}


class Search(IndexSearch):
    """Indexing and search, for retrieval and re-ranking tasks; the hits of several indexes are fused.

    Args:
        *indexes: Options of `rk.Index.build` for each index, such as `{"indexer": "bm25"}` or `{"model": "stage2"}`.
        name: Name in the results; None = the names of models and indexers.
        **fusion: Options of `rk.Hybrid`; by default reciprocal rank fusion.

    Raises:
        InputError: A model does not exist.
    """

    def __init__(self, *indexes: Mapping[str, Any], name: str | None = None, **fusion: Any) -> None:
        self._fusion = fusion or {"fusion": "rrf"}
        self._indexes, parts, sources = [], list[Mapping[str, Any]](), list[str]()
        for options in indexes:
            model = _retriever(options["model"]) if "model" in options else None
            self._indexes.append(options if model is None else {**options, "model": model})
            parts.append(options if model is None else {**options, "model": _identity(model)})
            sources.append(options.get("indexer", "bm25") if model is None else model.source)
        kind = "hybrid" if len(parts) > 1 else None
        name = name or "+".join(map(os.path.basename, sources))
        self.mteb_model_meta = _meta(name, fingerprint_value([parts, self._fusion]), kind)

    def index(self, corpus: Any, **_: Any) -> None:
        """Index the corpus of a task in a temporary folder."""
        super().index(corpus)
        passages = corpus.select_columns([name for name in ("id", "title", "text") if name in corpus.column_names])
        self._folder = tempfile.TemporaryDirectory(prefix="rkit-mteb-")
        indexes = [
            rk.Index.build(passages, output=Path(self._folder.name, str(number)), **options)
            for number, options in enumerate(self._indexes)
        ]
        self.searchable = indexes[0] if len(indexes) == 1 else rk.Hybrid(indexes, **self._fusion)


def _retriever(model: Any, **options: Any) -> rk.Retriever:
    return model if isinstance(model, rk.Retriever) else rk.Retriever.load(model, **options)


def _identity(retriever: rk.Retriever) -> str:
    return fingerprint_value([retriever.model.fingerprint, retriever.model.changed])


def _meta(name: str, revision: str, kind: str | None) -> ModelMeta:
    """Return MTEB's description of a model, by whose name and revision it caches results."""
    model = {"name": f"retrievalkit/{name}", "revision": revision, "model_type": [kind] if kind else []}
    return ModelMeta.create_empty({**model, "similarity_fn_name": ScoringFunction.DOT_PRODUCT})
