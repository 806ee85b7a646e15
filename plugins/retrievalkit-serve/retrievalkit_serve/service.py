"""What a service can do, whoever asks: HTTP (`app`), language models' agents (`mcp`) and the page."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from retrievalkit.contracts.commands import HybridOptions, counted, resolve_precision, say
from retrievalkit.data.records import HALF_CHARACTER
from retrievalkit.data.snippets import matches
from retrievalkit.errors import InputError, OptionError, RetrievalkitError, UnknownNameError
from retrievalkit.search.public import HITS_TO_READ, DescribedHit, open_reranker, reasons_of
from retrievalkit_serve import checks, forms
from retrievalkit_serve.batching import Batcher
from retrievalkit_serve.collection import Choice, Collection
from retrievalkit_serve.failures import ConflictError, NotFoundError, words_of
from retrievalkit_serve.metrics import Metrics
from retrievalkit_serve.models import Embedded, EmbedTask, Reranker, RerankTask, ToRerank
from retrievalkit_serve.serve import ServeOptions
from retrievalkit_serve.tasks import (
    Answer,
    Asked,
    DescribeTask,
    Explained,
    ExplainTask,
    SearchTask,
    ToDescribe,
    ToExplain,
)

_Json = dict[str, Any]


class Service:
    """Open indexes, and a re-ranker if one was named.

    Args:
        options: What is served.

    Raises:
        InputError: Something cannot be opened.

    Attributes:
        collection: The indexes as they were opened last.
        stopping: Whether no more connections are taken.
    """

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.metrics = Metrics()
        self.collection = _opened(options)
        self.reranker: Reranker | None = None
        if options.reranker is not None:
            precision = resolve_precision(options.precision or "fp32")
            self.reranker = Reranker(Path(options.reranker).name, open_reranker(options.reranker), precision)
        self.batcher = Batcher(options, self.metrics)
        self.stopping = False
        self._reload: asyncio.Future[None] | None = None
        self._show_collection()

    async def search(self, form: forms.SearchForm) -> _Json:
        """The hits of a query, as `forms.SearchBody`."""
        start, collection, options = time.perf_counter(), self.collection, self.options
        text, k = checks.query_text(form.query, options), checks.count(form.k, HITS_TO_READ, options)
        choice, read = _choice(collection, form), self._read_by_reranker(form.rerank)
        with self.batcher.admitted():
            if self.reranker is None or not read:
                found: Answer = await self.batcher.do(SearchTask(collection, choice, k), Asked(text, why=form.explain))
                hits = [_hit(hit, form.texts) for hit in found.hits]
            else:
                wide = SearchTask(collection, choice, max(k, read))
                found = await self.batcher.do(wide, Asked(text, describe=False))
                hits = await self._reranked(self.reranker, wide, text, found, read, k, form)
        return {
            "query": text,
            **_chosen(choice),
            "reranker": self.reranker.name if self.reranker is not None and read else None,
            "k": k,
            "hits": hits,
            "took_ms": round(1000 * (time.perf_counter() - start), 2),
            "together": found.together,
            "generation": collection.generation,
        }

    def _read_by_reranker(self, asked: int | None) -> int:
        """How many hits the re-ranker reads."""
        if self.reranker is None:
            if asked:
                raise NotFoundError(_NO_RERANKER)
            return 0
        if asked is not None and not 0 <= asked <= self.options.max_k:
            msg = f"rerank is {asked}; it must be a number of hits, 0 to {self.options.max_k:,} (0 = none)."
            raise OptionError(msg)
        usual = _READ if self.options.rerank is None else self.options.rerank
        return min(usual, self.options.max_k) if asked is None else asked

    async def _reranked(
        self, reranker: Reranker, task: SearchTask, text: str, found: Answer, read: int, k: int, form: forms.SearchForm
    ) -> list[_Json]:
        """The first hits by the re-ranker's scores, and the others after them."""
        labels = task.choice.labels
        ids = [document for document, _ in found.pairs[:read]]
        texts = await asyncio.to_thread(task.collection.texts, labels, ids)
        lacking = set(ids) if texts is None else texts.missing(ids)
        head = [pair for pair in found.pairs[:read] if pair[0] not in lacking]
        if head and texts is not None:
            passages = [texts.get(document) for document, _ in head]
            asked = ToRerank(text, [(passage.title, passage.text) for passage in passages])
            scores = await self.batcher.do(RerankTask(reranker), asked)
            # The sort is stable: equal scores stay in the order of the search.
            head = sorted(zip((document for document, _ in head), scores, strict=True), key=lambda pair: -pair[1])
        ordered = [*head, *(pair for pair in found.pairs[:read] if pair[0] in lacking), *found.pairs[read:]][:k]
        before = {document: (rank, score) for rank, (document, score) in enumerate(found.pairs, 1)}
        described = await self.batcher.do(
            DescribeTask(task.collection, task.choice), ToDescribe(text, ordered, found.candidates, form.explain)
        )
        hits = [_hit(hit, form.texts) for hit in described]
        for hit in hits:
            rank, score = before[hit["id"]]
            hit["retrieved"] = {"rank": rank, "score": _short(score)}
        return hits

    async def explain(self, form: forms.ExplainForm) -> _Json:
        """Documents with the reasons for their scores, as `forms.ExplainBody`."""
        collection, options = self.collection, self.options
        text = checks.query_text(form.query, options)
        checks.several("ids", form.ids, options)
        choice = _choice(collection, form)
        with self.batcher.admitted():
            item = ToExplain(text, list(dict.fromkeys(form.ids)))
            found: list[Explained] = await self.batcher.do(ExplainTask(collection, choice), item)
        hits = [_hit(one.hit, False) | {"rank": one.rank} for one in found]
        return {"query": text, **_chosen(choice), "hits": hits, "generation": collection.generation}

    async def document(self, form: forms.DocumentLine) -> _Json:
        """A whole document, as `forms.DocumentBody`."""
        checks.check_length("id", form.id, self.options)
        checks.check_length("query", form.query, self.options)
        with self.batcher.admitted():
            return await asyncio.to_thread(self._document, form.id, form.query)

    def _document(self, identifier: str, query: str) -> _Json:
        passage = self.collection.document(identifier)
        spans = matches(passage.text, query) if query.strip() else ()
        return {"id": passage.id, "title": passage.title, "text": passage.text, "spans": spans}

    async def embed(self, form: forms.EmbeddingForm) -> _Json:
        """Vectors of texts, as `forms.EmbeddingBody`."""
        collection, texts = self.collection, _texts(form.input)
        checks.several("texts", texts, self.options)
        model = self.model(form.model)
        with self.batcher.admitted():
            task = EmbedTask(collection, model, form.input_type, form.dimensions)
            found: Embedded = await self.batcher.do(task, texts)
        data = [
            {"object": "embedding", "index": row, "embedding": _vector(vector, form.encoding_format)}
            for row, vector in enumerate(found.vectors)
        ]
        usage = {"prompt_tokens": found.tokens, "total_tokens": found.tokens}
        return {"object": "list", "data": data, "model": model, "usage": usage}

    def model(self, asked: str | None) -> str:
        """The name of a model, which may be left out if there is one.

        Raises:
            NotFoundError: It is unknown.
        """
        known = list(self.collection.models)
        if not known:
            msg = "no model is served: none of the indexes holds vectors. Serve an index of vectors."
            raise NotFoundError(msg)
        if asked is None and len(known) == 1:
            return known[0]
        if asked is None:
            msg = f"embeddings need 'model', and it was not given. Known: {', '.join(known)}."
            raise OptionError(msg)
        if asked not in known:
            raise NotFoundError(str(UnknownNameError("model", asked, known)))
        return asked

    async def rerank(self, form: forms.RerankForm) -> _Json:
        """Documents in the order of the re-ranker's scores, as `forms.RerankBody`."""
        if self.reranker is None:
            raise NotFoundError(_NO_RERANKER)
        if form.model not in (None, self.reranker.name):
            raise NotFoundError(str(UnknownNameError("re-ranker", form.model or "", [self.reranker.name])))
        options = self.options
        text = checks.query_text(form.query, options)
        checks.several("documents", form.documents, options)
        top = checks.count(form.top_n, len(form.documents), options, "top_n")
        texts = [("", one) if isinstance(one, str) else (one.title, one.text) for one in form.documents]
        with self.batcher.admitted():
            scores: list[float] = await self.batcher.do(RerankTask(self.reranker), ToRerank(text, texts))
        best = sorted(range(len(texts)), key=lambda row: -scores[row])[:top]
        results: list[_Json] = [{"index": row, "relevance_score": _short(scores[row])} for row in best]
        if form.return_documents:
            for result in results:
                title, body = texts[result["index"]]
                result["document"] = {"title": title, "text": body}
        return {"model": self.reranker.name, "results": results}

    async def reload(self) -> _Json:
        """Open the indexes anew; until they are open, and where they cannot be opened, the old ones answer.

        Raises:
            ConflictError: They are being opened, or they cannot be.
        """
        if self._reload is not None and not self._reload.done():
            msg = "the indexes are being opened already. Wait for it."
            raise ConflictError(msg)
        self._reload = asyncio.ensure_future(self._open_anew())
        # It goes on where whoever asked for it does not wait.
        await asyncio.shield(self._reload)
        return self.about()

    async def _open_anew(self) -> None:
        try:
            number = self.collection.generation + 1
            opened = await asyncio.to_thread(_opened, self.options, number, self.collection)
        except (RetrievalkitError, OSError) as error:
            self.metrics.reloads.labels("failed").inc()
            words = words_of(error) if isinstance(error, RetrievalkitError) else str(error)
            msg = f"the indexes were not opened anew, and the old ones answer: {words}"
            raise ConflictError(msg) from error
        self.collection = opened
        self.metrics.reloads.labels("swapped").inc()
        self._show_collection()

    async def reload_and_tell(self) -> None:
        """Open the indexes anew, and say on standard error how it went."""
        try:
            await self.reload()
            say(f"opened anew: {self.summary()}", err=True)
        except ConflictError as error:
            say(f"Error: {words_of(error)}", err=True)

    def about(self) -> _Json:
        """What is served."""
        collection = self.collection
        return {
            "generation": collection.generation,
            "indexes": collection.described(),
            "fusion": _fusion(Choice((), collection.fusion, None)),
            "models": list(collection.models),
            "reranker": None if self.reranker is None else self.reranker.name,
            "rerank": self._read_by_reranker(None),
            "limits": {name.removeprefix("max_"): getattr(self.options, name) for name in _LIMITS}
            | {"wait": self.options.wait / 1000},
        }

    def summary(self) -> str:
        """What is served, in a few words."""
        described = self.collection.described()
        return ", ".join(f"{one['name']} ({one['indexer']}, {counted(one['texts'], 'texts')})" for one in described)

    def close(self) -> None:
        """Wait for the batch that is being answered."""
        self.batcher.close()

    def _show_collection(self) -> None:
        self.metrics.generation.set(self.collection.generation)
        self.metrics.texts.clear()
        for index in self.collection.described():
            self.metrics.texts.labels(index["name"]).set(index["texts"])


def _opened(options: ServeOptions, generation: int = 1, before: Collection | None = None) -> Collection:
    """The indexes, opened; they have answered a query, so that the first one does not wait for what is made then."""
    collection = Collection(options, generation, before)
    SearchTask(collection, collection.choose(), HITS_TO_READ).run([Asked(collection.sample())])
    return collection


_READ = 100
"""Hits that the re-ranker reads by default."""

_LIMITS = ("queue", "batch", "threads", "timeout", "max_body", "max_query", "max_k")
_NO_RERANKER = "no re-ranker is served. Start the service with --reranker."


def _choice(collection: Collection, form: forms.Chosen) -> Choice:
    return collection.choose(form.indexes, HybridOptions(**form.given()))


def _chosen(choice: Choice) -> _Json:
    return {"indexes": choice.labels, "fusion": _fusion(choice)}


def _fusion(choice: Choice) -> _Json | None:
    if choice.fusion is None:
        return None
    return {name: value for name, value in asdict(choice.fusion).items() if value is not None}


def _hit(hit: DescribedHit, texts: bool) -> _Json:
    whole = {"text": hit.text} if texts else {}
    return hit.to_json() | {"spans": hit.matches, "why": reasons_of(hit)} | whole


def _texts(given: Any) -> list[str]:
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        msg = (
            f"input is {given!r:.80}, and must be a text or a list of texts, not token ids. For LangChain to send "
            "texts, use OpenAIEmbeddings(check_embedding_ctx_length=False)."
        )
        raise InputError(msg)
    for number, text in enumerate(texts):
        if not text.strip():
            msg = f"text {number} of input is empty. Give it words, or leave it out."
            raise InputError(msg)
        if HALF_CHARACTER.search(text):
            msg = f"text {number} of input holds half a surrogate pair. Remove it."
            raise InputError(msg)
    return texts


def _vector(vector: np.ndarray, encoding: str) -> Sequence[float] | str:
    if encoding == "base64":
        return base64.b64encode(vector.astype("<f4").tobytes()).decode()
    return vector.tolist()  # type: ignore[no-any-return]


def _short(value: float) -> float:
    """With the digits of a 32-bit float."""
    return float(f"{value:.7g}")
