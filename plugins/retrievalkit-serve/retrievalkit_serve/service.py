"""The operations of a service, shared by HTTP (`app`), language model agents (`mcp`) and the page."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from retrievalkit.contracts.commands import HybridOptions, counted, resolve_precision, say
from retrievalkit.data.queries import Query, check_queries
from retrievalkit.data.records import HALF_CHARACTER
from retrievalkit.data.same_text import FORMS
from retrievalkit.data.snippets import matches
from retrievalkit.errors import ArtifactError, InputError, OptionError, RetrievalkitError, UnknownNameError
from retrievalkit.search.public import HITS_TO_READ, DescribedHit, Fusion, hit_count, open_reranker, reasons_of
from retrievalkit_serve import forms
from retrievalkit_serve.batching import Batcher
from retrievalkit_serve.collection import Collection, State
from retrievalkit_serve.doubts import doubt
from retrievalkit_serve.failures import RefusedError, message_of
from retrievalkit_serve.metrics import Metrics
from retrievalkit_serve.serve import ServeOptions
from retrievalkit_serve.tasks import (
    Answer,
    CallTask,
    EmbedTask,
    Pairs,
    QueryItem,
    RerankTask,
    SearchTask,
    describe,
    explain,
)

_Json = dict[str, Any]


class Service:
    """Open indexes, with an optional re-ranker.

    Args:
        options: The options of the service.

    Raises:
        InputError: An index or model cannot be opened.

    Attributes:
        collection: The open indexes; a reload replaces them.
        stopping: True after the service has stopped accepting connections.
        notes: Sentences about the collections, such as the number of texts without vectors so far.
        on_reload: Functions to call after the indexes have been reloaded.
    """

    def __init__(self, options: ServeOptions) -> None:
        self.options = options
        self.metrics = Metrics()
        self.collection = _open_collection(options)
        self.collection.calibrate()
        self.notes = self.collection.state.notes
        self.on_reload: list[Callable[[], None]] = []
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
        """Return the hits of a query, as `forms.SearchBody`."""
        start, collection = time.perf_counter(), self.collection
        self._check_query(form.query)
        text, k = form.query, self._count("k", form.k, HITS_TO_READ)
        self._check_length("filter", form.filter or "")
        choice = replace(collection.choose(form.indexes, HybridOptions(**form.given())), filter=form.filter)
        if form.requires_documents:
            collection.searcher(choice.labels).require_documents(None)
        depth = self._rerank_depth(form.rerank)
        reranker = self.reranker if depth else None
        with self.batcher.admitted():
            task = SearchTask(collection, choice, max(k, depth), form.scored("document"))
            item = QueryItem(text, describe=reranker is None, why=form.explain)
            answer: Answer = await self.batcher.do(task, item)
            shown = answer.hits
            hits = [_hit(hit, form.texts) for hit in shown]
            if reranker is not None:
                pairs = await self._reranked(reranker, task, text, answer, depth)
                call = (text, pairs[:k], answer.candidates, answer.passages, form.explain)
                shown = await self.batcher.do(CallTask("describe", describe, collection, choice), call)
                before = {document: (rank, score) for rank, (document, score) in enumerate(answer.pairs, 1)}
                for hit in shown:
                    rank, score = before[hit.id]
                    hits.append(_hit(hit, form.texts) | {"retrieved": {"rank": rank, "score": _short(score)}})
        scores = dict(zip(choice.labels, answer.best, strict=True))
        encoded = {label: score for label, score in scores.items() if collection.indexes[label].needs_encoding}
        return {
            "query": text,
            "indexes": choice.labels,
            "fusion": _fusion(choice.fusion),
            "reranker": None if reranker is None else reranker.name,
            "k": k,
            "hits": hits,
            "doubt": doubt(text, encoded, len(encoded) < len(scores), collection.nonsense, shown),
            "notes": [*self.notes, *answer.notes],
            "took_ms": round(1000 * (time.perf_counter() - start), 2),
            "generation": collection.generation,
        }

    async def _reranked(self, reranker: RerankTask, task: SearchTask, text: str, answer: Answer, depth: int) -> Pairs:
        """Sort the first hits by the re-ranker's scores; hits without text follow, then the other hits."""
        first, rest = answer.pairs[:depth], answer.pairs[depth:]
        # A document is re-ranked by its best passage.
        best = {pair[0]: answer.passages.get(pair[0], [pair])[0][0] for pair in first}
        texts = await asyncio.to_thread(task.collection.texts, task.choice.labels, best.values())
        if texts is None:
            return answer.pairs
        missing = texts.missing(best.values())
        readable = [document for document, _ in first if best[document] not in missing]
        passages = [texts.get(best[document]) for document in readable]
        query = FORMS[passages[0].text_form](text) if passages else text
        scores = await self.batcher.do(reranker, (query, [(passage.title, passage.text) for passage in passages]))
        # The sort is stable: ties keep the order of the search.
        head = sorted(zip(readable, scores, strict=True), key=lambda pair: -pair[1])
        return [*head, *(pair for pair in first if best[pair[0]] in missing), *rest]

    def _rerank_depth(self, requested: int | None) -> int:
        """Return the number of hits to re-rank."""
        if self.reranker is None:
            if requested:
                raise RefusedError(404, _NO_RERANKER)
            return 0
        if requested is not None and not 0 <= requested <= self.options.max_k:
            msg = f"rerank is {requested}; it must be a number of hits, 0 to {self.options.max_k:,} (0 = none)."
            raise OptionError(msg)
        usual = _RERANK if self.options.rerank is None else self.options.rerank
        return min(usual, self.options.max_k) if requested is None else requested

    async def explain(self, form: forms.ExplainForm) -> _Json:
        """Explain the scores of documents, as `forms.ExplainBody`."""
        collection = self.collection
        self._check_query(form.query)
        self._check_several("ids", form.ids)
        choice = collection.choose(form.indexes, HybridOptions(**form.given()))
        with self.batcher.admitted():
            task = CallTask("explain", explain, collection, choice)
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
        """Return a whole document, as `forms.DocumentBody`."""
        self._check_length("id", form.id)
        self._check_length("query", form.query)
        with self.batcher.admitted():
            document = await asyncio.to_thread(self.collection.document, form.id)
            query = FORMS[document.text_form](form.query)
            spans = await asyncio.to_thread(matches, document.text, query) if query.strip() else ()
        passages: list[_Json] = []
        for name, (start, end) in document.passages.items():
            cut = document.cuts.get(name)
            place = {"heading": "" if cut is None else cut.heading, "page": None if cut is None else cut.page}
            passages.append({"id": name, "start": start, "end": end, **place})
        file = None if document.file is None else str(document.file)
        body = {"id": document.id, "title": document.title, "text": document.text}
        return body | {"spans": spans, "passages": passages, "file": file}

    async def file(self, form: forms.FileLine) -> Path:
        """Return the PDF file of a document in a folder of documents.

        Raises:
            RefusedError: The document is unknown or not a PDF, or its file is gone or outside the folder.
        """
        self._check_length("id", form.id)
        with self.batcher.admitted():
            document = await asyncio.to_thread(self.collection.document, form.id)
        path, name = document.file, PurePath(document.id)
        # Ids come from a corpus, which may name any path.
        plain = not name.is_absolute() and ".." not in name.parts and name.suffix.lower() == ".pdf"
        own = path is not None and plain and path.parts[-len(name.parts) :] == name.parts
        if path is None or not own or not path.resolve().is_relative_to(path.parents[len(name.parts) - 1].resolve()):
            msg = f"'{form.id:.200}' has no PDF file that this service can read. Request its text: /document."
            raise RefusedError(404, msg)
        return path

    async def embed(self, form: forms.EmbeddingForm) -> _Json:
        """Encode texts, as `forms.EmbeddingBody`."""
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
        """Sort documents by the re-ranker's scores, as `forms.RerankBody`."""
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
        return self.description()

    async def _reopen(self) -> None:
        try:
            number = self.collection.generation + 1
            collection = await asyncio.to_thread(_open_collection, self.options, number, self.collection)
        except (RetrievalkitError, OSError) as error:
            self.metrics.reloads.labels("failed").inc()
            reason = message_of(error) if isinstance(error, RetrievalkitError) else str(error)
            msg = f"the indexes were not reloaded, and the old ones still answer: {reason}"
            raise RefusedError(409, msg) from error
        self.collection, self.notes = collection, collection.state.notes
        self.metrics.reloads.labels("swapped").inc()
        self._show_collection()
        for function in self.on_reload:
            function()
        # Hits of the new texts need not wait for it.
        await asyncio.to_thread(collection.calibrate)

    async def reload_and_print(self) -> None:
        """Reload, and print the result to standard error."""
        try:
            await self.reload()
            say(f"reloaded: {self.summary()}", err=True)
        except RefusedError as error:
            say(f"Error: {message_of(error)}", err=True)

    async def follow(self) -> None:
        """Reload the indexes whenever their folders change; a problem that persists is printed once."""
        seconds, retry, failed, problem = _EVERY, 0.0, None, ""
        while True:
            await asyncio.sleep(seconds)
            if self._reload is not None and not self._reload.done():
                continue
            start = time.monotonic()
            state = await asyncio.to_thread(_state, self.options)
            if isinstance(state, State) and state == self.collection.state:
                self.notes, failed, problem = state.notes, None, ""
                continue
            if state == failed and start < retry:
                continue
            try:
                await self.reload()
                say(f"reloaded: {self.summary()}", err=True)
                failed, problem = None, ""
            except Exception as error:  # noqa: BLE001 - whatever it is, the old indexes answer
                reason = message_of(error) if isinstance(error, RetrievalkitError) else repr(error)
                if reason != problem:
                    say(f"Error: {reason}", err=True)
                failed, problem, retry = state, reason, start + _RETRY
            # A large collection that changes all the time is not opened all the time.
            seconds = max(_EVERY, time.monotonic() - start)

    def description(self) -> _Json:
        """Describe the service: the body of /indexes."""
        collection = self.collection
        return {
            "collection": collection.name,
            "notes": self.notes,
            "examples": collection.examples,
            "facets": collection.facets,
            "generation": collection.generation,
            "indexes": collection.descriptions(),
            "fusion": _fusion(collection.fusion),
            "models": list(collection.models),
            "reranker": None if self.reranker is None else self.reranker.name,
            "rerank": self._rerank_depth(None),
            "limits": {name.removeprefix("max_"): getattr(self.options, name) for name in _LIMITS}
            | {"wait": self.options.wait / 1000},
        }

    def summary(self) -> str:
        """Describe the service in one line."""
        indexes = self.collection.descriptions()
        listed = ", ".join(f"{row['name']} ({row['indexer']}, {counted(row['texts'], 'texts')})" for row in indexes)
        name = self.collection.name
        about = "" if [name] == list(self.collection.indexes) else f"{name}: "
        return f"{about}{listed}"

    def _check_query(self, text: str) -> None:
        if not text.strip():
            msg = "the query is empty. Give it a text."
            raise InputError(msg)
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
        for note in self.notes:
            say(note, err=True)
        self.metrics.generation.set(self.collection.generation)
        self.metrics.texts.clear()
        for index in self.collection.descriptions():
            self.metrics.texts.labels(index["name"]).set(index["texts"])


def _state(options: ServeOptions) -> State | str:
    """Return the state of the folders, or the reason why there is none."""
    try:
        return State.of(options)
    except (RetrievalkitError, OSError) as error:
        return str(error)


def _open_collection(options: ServeOptions, generation: int = 1, before: Collection | None = None) -> Collection:
    """Open the indexes in one state, and search once, because the first search creates what later searches reuse.

    Raises:
        ArtifactError: A sync was killed while it replaced the indexes, or they change all the time.
    """
    for attempt in range(_ATTEMPTS):
        time.sleep(attempt / 10)
        state = State.of(options)
        if state.replacing:
            continue
        try:
            collection = Collection(options, generation, before)
        except InputError:
            if State.of(options) == state:
                raise
            continue
        if collection.state == state == State.of(options):
            break
    else:
        place = state.replacing[0] if state.replacing else options.indexes[0]
        msg = (
            f"'{place}' is between two states: a sync replaces its indexes, or was killed then. Wait for it, or run it "
            f"again: rkit sync FOLDER {place}"
        )
        raise ArtifactError(msg)
    # An explanation may encode each sentence of the hits: only new models need it.
    query = QueryItem(collection.sample(), why=before is None)
    SearchTask(collection, collection.choose(), HITS_TO_READ).run([query])
    _ = collection.examples, collection.facets
    return collection


_ATTEMPTS = 8
"""Attempts to open the indexes of a collection while a sync replaces them, within three seconds."""

_EVERY, _RETRY = 1.0, 30.0
"""Seconds between two looks at the folders, and between two attempts to open what could not be opened."""

_RERANK = 100
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
