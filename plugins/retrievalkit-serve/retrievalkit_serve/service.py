"""The operations of a service, shared by HTTP (`app`), language model agents (`mcp`) and the page."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit.contracts.commands import HybridOptions, counted, resolve_precision, say
from retrievalkit.data.queries import Query, check_queries
from retrievalkit.data.records import HALF_CHARACTER
from retrievalkit.data.snippets import matches
from retrievalkit.errors import InputError, OptionError, RetrievalkitError, UnknownNameError
from retrievalkit.search.public import HITS_TO_READ, DescribedHit, Fusion, hit_count, open_reranker, reasons_of
from retrievalkit_serve import forms
from retrievalkit_serve.batching import Batcher
from retrievalkit_serve.collection import Collection
from retrievalkit_serve.failures import RefusedError, words_of
from retrievalkit_serve.metrics import Metrics
from retrievalkit_serve.serve import ServeOptions
from retrievalkit_serve.tasks import (
    Answer,
    EachTask,
    EmbedTask,
    QueryItem,
    RerankTask,
    SearchTask,
    described,
    explained,
)

_Json = dict[str, Any]


class Service:
    """Open indexes, with an optional re-ranker.

    Args:
        options: The options of the service.

    Raises:
        InputError: Something cannot be opened.

    Attributes:
        collection: The indexes as last opened.
        stopping: True once the service has stopped accepting connections.
    """

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.metrics = Metrics()
        self.collection = _opened(options)
        self.reranker: RerankTask | None = None
        if options.reranker is not None:
            precision = resolve_precision(options.precision or "fp32")
            model = open_reranker(options.reranker, backend=options.backend)
            self.reranker = RerankTask(Path(options.reranker).name, model, precision)
        self.batcher = Batcher(options, self.metrics)
        self.stopping = False
        self._reload: asyncio.Future[None] | None = None
        self._show_collection()

    async def search(self, form: forms.SearchForm) -> _Json:
        """The hits of a query, as `forms.SearchBody`."""
        start, collection = time.perf_counter(), self.collection
        self._check_query(form.query)
        text, k = form.query, self._count("k", form.k, HITS_TO_READ)
        self._check_length("filter", form.filter or "")
        choice = replace(collection.choose(form.indexes, HybridOptions(**form.given())), filter=form.filter)
        read = self._read_by_reranker(form.rerank)
        reranker = self.reranker if read else None
        with self.batcher.admitted():
            task = SearchTask(collection, choice, max(k, read), form.scored("document"))
            item = QueryItem(text, describe=reranker is None, why=form.explain)
            answer: Answer = await self.batcher.do(task, item)
            hits = [_hit(hit, form.texts) for hit in answer.hits]
            if reranker is not None:
                first, rest = answer.pairs[:read], answer.pairs[read:]
                # A document is re-ranked by its best passage.
                best = {hit[0]: answer.passages.get(hit[0], [hit])[0][0] for hit in first}
                texts = await asyncio.to_thread(collection.texts, choice.labels, best.values())
                unknown = set(best.values()) if texts is None else texts.missing(best.values())
                lacking = {document for document, passage in best.items() if passage in unknown}
                head = [pair for pair in first if pair[0] not in lacking]
                if head and texts is not None:
                    passages = [texts.get(best[document]) for document, _ in head]
                    pairs = [(passage.title, passage.text) for passage in passages]
                    scores = await self.batcher.do(reranker, (text, pairs))
                    # The sort is stable: ties keep the order of the search.
                    scored = zip((document for document, _ in head), scores, strict=True)
                    head = sorted(scored, key=lambda pair: -pair[1])
                ordered = [*head, *(pair for pair in first if pair[0] in lacking), *rest][:k]
                describe = EachTask("describe", described, collection, choice)
                describing = (text, ordered, answer.candidates, answer.passages, form.explain)
                whole = await self.batcher.do(describe, describing)
                before = {document: (rank, score) for rank, (document, score) in enumerate(answer.pairs, 1)}
                for hit in whole:
                    rank, score = before[hit.id]
                    hits.append(_hit(hit, form.texts) | {"retrieved": {"rank": rank, "score": _short(score)}})
        return {
            "query": text,
            "indexes": choice.labels,
            "fusion": _fusion(choice.fusion),
            "reranker": None if reranker is None else reranker.name,
            "k": k,
            "hits": hits,
            "took_ms": round(1000 * (time.perf_counter() - start), 2),
            "together": answer.together,
            "generation": collection.generation,
        }

    def _read_by_reranker(self, requested: int | None) -> int:
        """Number of hits to re-rank."""
        if self.reranker is None:
            if requested:
                raise RefusedError(404, _NO_RERANKER)
            return 0
        if requested is not None and not 0 <= requested <= self.options.max_k:
            msg = f"rerank is {requested}; it must be a number of hits, 0 to {self.options.max_k:,} (0 = none)."
            raise OptionError(msg)
        usual = _READ if self.options.rerank is None else self.options.rerank
        return min(usual, self.options.max_k) if requested is None else requested

    async def explain(self, form: forms.ExplainForm) -> _Json:
        """Documents with explanations of their scores, as `forms.ExplainBody`."""
        collection = self.collection
        self._check_query(form.query)
        self._check_several("ids", form.ids)
        choice = collection.choose(form.indexes, HybridOptions(**form.given()))
        with self.batcher.admitted():
            task = EachTask("explain", explained, collection, choice)
            results = await self.batcher.do(task, (form.query, list(dict.fromkeys(form.ids))))
        hits = [_hit(hit, False) | {"rank": rank} for rank, hit in results]
        return {
            "query": form.query,
            "indexes": choice.labels,
            "fusion": _fusion(choice.fusion),
            "hits": hits,
            "generation": collection.generation,
        }

    async def document(self, form: forms.DocumentLine) -> _Json:
        """A whole document, as `forms.DocumentBody`."""
        self._check_length("id", form.id)
        self._check_length("query", form.query)
        with self.batcher.admitted():
            document = await asyncio.to_thread(self.collection.document, form.id)
            spans = await asyncio.to_thread(matches, document.text, form.query) if form.query.strip() else ()
        passages = [{"id": name, "start": start, "end": end} for name, (start, end) in document.passages.items()]
        file = None if document.file is None else str(document.file)
        whole = {"id": document.id, "title": document.title, "text": document.text}
        return whole | {"spans": spans, "passages": passages, "file": file}

    async def embed(self, form: forms.EmbeddingForm) -> _Json:
        """Vectors of texts, as `forms.EmbeddingBody`."""
        collection, texts = self.collection, _texts(form.input)
        self._check_several("texts", texts)
        model = self.model(form.model)
        with self.batcher.admitted():
            task = EmbedTask(collection, model, form.input_type, form.dimensions)
            vectors, tokens = await self.batcher.do(task, texts)
        data = [
            {"object": "embedding", "index": row, "embedding": _vector(vector, form.encoding_format)}
            for row, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": tokens, "total_tokens": tokens}
        return {"object": "list", "data": data, "model": model, "usage": usage}

    def model(self, name: str | None) -> str:
        """Resolve a model name, which is optional if there is only one model.

        Raises:
            RefusedError: The model is unknown.
        """
        known = list(self.collection.models)
        if not known:
            msg = "no model is served, because no index has vectors. Serve an index of vectors."
            raise RefusedError(404, msg)
        if name is None and len(known) == 1:
            return known[0]
        if name is None:
            msg = f"embeddings need 'model', as there are several. Known: {', '.join(known)}."
            raise OptionError(msg)
        if name not in known:
            raise RefusedError(404, str(UnknownNameError("model", name, known)))
        return name

    async def rerank(self, form: forms.RerankForm) -> _Json:
        """Documents in the order of the re-ranker's scores, as `forms.RerankBody`."""
        if self.reranker is None:
            raise RefusedError(404, _NO_RERANKER)
        if form.model not in (None, self.reranker.name):
            raise RefusedError(404, str(UnknownNameError("re-ranker", form.model or "", [self.reranker.name])))
        self._check_query(form.query)
        self._check_several("documents", form.documents)
        top = self._count("top_n", form.top_n, len(form.documents))
        texts = [("", text) if isinstance(text, str) else (text.title, text.text) for text in form.documents]
        with self.batcher.admitted():
            scores: list[float] = await self.batcher.do(self.reranker, (form.query, texts))
        best = sorted(range(len(texts)), key=lambda row: -scores[row])[:top]
        results: list[_Json] = [{"index": row, "relevance_score": _short(scores[row])} for row in best]
        if form.return_documents:
            for result in results:
                title, body = texts[result["index"]]
                result["document"] = {"title": title, "text": body}
        return {"model": self.reranker.name, "results": results}

    async def reload(self) -> _Json:
        """Open the indexes again; the old ones answer until then, and keep answering if it fails.

        Raises:
            RefusedError: A reload is already running, or the indexes cannot be opened.
        """
        if self._reload is not None and not self._reload.done():
            msg = "the indexes are already being reloaded. Wait until they are open."
            raise RefusedError(409, msg)
        self._reload = asyncio.ensure_future(self._reopen())
        # The reload continues even if the client does not wait for it.
        await asyncio.shield(self._reload)
        return self.about()

    async def _reopen(self) -> None:
        try:
            number = self.collection.generation + 1
            opened = await asyncio.to_thread(_opened, self.options, number, self.collection)
        except (RetrievalkitError, OSError) as error:
            self.metrics.reloads.labels("failed").inc()
            words = words_of(error) if isinstance(error, RetrievalkitError) else str(error)
            msg = f"the indexes were not reloaded, and the old ones still answer: {words}"
            raise RefusedError(409, msg) from error
        self.collection = opened
        self.metrics.reloads.labels("swapped").inc()
        self._show_collection()

    async def reload_and_print(self) -> None:
        """Reload, and print the result to standard error."""
        try:
            await self.reload()
            say(f"reloaded: {self.summary()}", err=True)
        except RefusedError as error:
            say(f"Error: {words_of(error)}", err=True)

    def about(self) -> _Json:
        """A description of the service."""
        collection = self.collection
        return {
            "collection": collection.name,
            "examples": collection.examples,
            "facets": collection.facets,
            "generation": collection.generation,
            "indexes": collection.described(),
            "fusion": _fusion(collection.fusion),
            "models": list(collection.models),
            "reranker": None if self.reranker is None else self.reranker.name,
            "rerank": self._read_by_reranker(None),
            "limits": {name.removeprefix("max_"): getattr(self.options, name) for name in _LIMITS}
            | {"wait": self.options.wait / 1000},
        }

    def summary(self) -> str:
        """A one-line description of the service."""
        indexes = self.collection.described()
        return ", ".join(f"{row['name']} ({row['indexer']}, {counted(row['texts'], 'texts')})" for row in indexes)

    def _check_query(self, text: str) -> None:
        check_queries([Query("query", text)])
        self._check_length("query", text)

    def _check_length(self, name: str, text: str) -> None:
        if len(text) > self.options.max_query:
            msg = f"{name} has {len(text):,} characters; this service accepts {self.options.max_query:,}. Shorten it."
            raise OptionError(msg)

    def _count(self, name: str, value: Any, default: int) -> int:
        number = hit_count(value, default)
        if number > self.options.max_k:
            msg = f"{name} is {number:,}; this service returns at most {self.options.max_k:,} hits. Request fewer."
            raise OptionError(msg)
        return number

    def _check_several(self, name: str, values: Sequence[Any]) -> None:
        if not values:
            msg = f"{name} is an empty list. Send at least one."
            raise OptionError(msg)
        if len(values) > self.options.max_k:
            most = f"this service accepts {self.options.max_k:,} at a time"
            msg = f"{len(values):,} {name}; {most}. Send several requests."
            raise OptionError(msg)

    def _show_collection(self) -> None:
        self.metrics.generation.set(self.collection.generation)
        self.metrics.texts.clear()
        for index in self.collection.described():
            self.metrics.texts.labels(index["name"]).set(index["texts"])


def _opened(options: ServeOptions, generation: int = 1, before: Collection | None = None) -> Collection:
    """Open the indexes and search once, because the first search creates state that later searches reuse."""
    collection = Collection(options, generation, before)
    SearchTask(collection, collection.choose(), HITS_TO_READ).run([QueryItem(collection.sample())])
    _ = collection.examples, collection.facets
    return collection


_READ = 100
"""Default number of hits to re-rank."""

_LIMITS = ("queue", "batch", "threads", "timeout", "max_body", "max_query", "max_k")
_NO_RERANKER = "no re-ranker is served. Start the service with --reranker."


def _fusion(fusion: Fusion | None) -> _Json | None:
    if fusion is None:
        return None
    return {name: value for name, value in asdict(fusion).items() if value is not None}


def _hit(hit: DescribedHit, texts: bool) -> _Json:
    whole: _Json = {"text": hit.text} if texts else {}
    whole |= {"passages": [_hit(passage, texts) for passage in hit.passages]} if hit.passages else {}
    return hit.to_json() | {"spans": hit.matches, "why": reasons_of(hit)} | whole


def _texts(value: Any) -> list[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        msg = (
            f"input is {value!r:.80}, and must be a text or a list of texts, not token ids. For LangChain to send "
            "texts, use OpenAIEmbeddings(check_embedding_ctx_length=False)."
        )
        raise InputError(msg)
    for number, text in enumerate(texts):
        if not text.strip():
            msg = f"text {number} of input is empty. Leave it out."
            raise InputError(msg)
        if HALF_CHARACTER.search(text):
            msg = f"text {number} of input contains half a surrogate pair. Remove it."
            raise InputError(msg)
    return texts


def _vector(vector: np.ndarray, encoding: str) -> Sequence[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()  # type: ignore[no-any-return]


def _short(value: float) -> float:
    """Round to the digits of a 32-bit float."""
    return float(f"{value:.7g}")
