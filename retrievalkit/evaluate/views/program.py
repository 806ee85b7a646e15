"""Which of a document's vectors answers which query: the program behind `rkit analyse-views`.

    rkit analyse-views CHECKPOINT --corpus CORPUS --queries QUERIES --qrels QRELS --output DIR

For representations of several vectors a document (views): viewer tokens, layers, tokens. Each query is compared with
its own judged documents; f_i is the inner product of the query's vector with the document's i-th, and the view that
answers is the one with the largest (at a tie the first), as in search. Two figures of the MVR paper sum it up:

    Local Variation   max_i f_i - mean of the other f_i, on normalised scores; the mean over all pairs
    Perplexity        exp(- sum_i p_i ln p_i), p_i the share of a document's queries that view i answers; the mean over
                      documents. It is 1 where one view answers all, and at most the number of views or of queries.

Where a query has several vectors (ColBERT), each of them counts as a query of its own.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TextIO

import torch
from rich.console import Console
from rich.progress import Progress, TimeElapsedColumn
from torch import Tensor
from torch.nn import functional

from retrievalkit import artifacts
from retrievalkit.contracts import Representation
from retrievalkit.data.corpus import Corpus, Passage, open_corpus
from retrievalkit.data.examples import check_examples, read_examples
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries
from retrievalkit.data.sources import fingerprint
from retrievalkit.errors import InputError, MissingDependencyError, OptionError, UnsupportedError, shortlist
from retrievalkit.evaluate.views.result import Analysis, View, draw, local_variation, mean, perplexity
from retrievalkit.model.precision import Precision, default_device, resolve_precision
from retrievalkit.model.retriever import Retriever, describe_retriever, open_retriever
from retrievalkit.score import vector_scores

Scores = Literal["cosine", "softmax", "raw"]
Pair = tuple[str, str]
"""A query's id and a document's."""

CHUNK_DOCUMENTS = 256
ANSWERS, RESULT, PLOT = "answers.jsonl", "analysis.json", "views.png"


def analyse_views(
    model: str | Path,
    *,
    output: str | Path,
    corpus: str | Path | None = None,
    queries: str | Path | None = None,
    qrels: str | Path | None = None,
    examples: str | Path | None = None,
    scores: Scores = "cosine",
    temperature: float | None = None,
    limit: int | None = None,
    encoder: str | None = None,
    pooler: str | None = None,
    encoder_options: Mapping[str, Any] | None = None,
    pooler_options: Mapping[str, Any] | None = None,
    precision: Precision = "auto",
    plot: bool = True,
    overwrite: bool = False,
) -> Analysis:
    """Find which view of each judged document answers its queries, and write a folder about it.

    Args:
        model: A checkpoint folder, or the name or folder of a pretrained model that has not been trained here.
        output: The folder to write: answers.jsonl (one line a pair), analysis.json, views.png.
        corpus: The passages.
        queries: The queries that the judgements are of.
        qrels: Judgements; documents judged above 0 are analysed.
        examples: Training examples, instead of queries and qrels; the corpus may be left out where they hold texts.
        scores: What Local Variation is computed on: the "cosine" of query and view, the "softmax" of a document's inner
            products, or the inner products as they are ("raw"). Figures of different kinds are not comparable.
        temperature: Of the softmax; None = 1.
        limit: Only the first so many documents, with all of their queries.
        encoder: Encoder for a pretrained model; refused for a checkpoint, which has its own.
        pooler: Pooler for a pretrained model; refused for a checkpoint.
        encoder_options: Options of that encoder.
        pooler_options: Options of that pooler.
        precision: What to compute in.
        plot: Whether to draw views.png, which needs matplotlib.
        overwrite: Replace an output folder that is there already.

    Raises:
        InputError: There is nothing to analyse by, or nothing to analyse: one vector a document.
        MissingDependencyError: matplotlib is not installed.
    """
    artifacts.check_output(output, overwrite=overwrite)
    if plot:
        _check_matplotlib()
    normalise = _Normalisation.of(scores, temperature)
    judged = _Judged.read(corpus, queries, qrels, examples, limit)
    retriever = open_retriever(
        model, encoder=encoder, pooler=pooler, encoder_options=encoder_options, pooler_options=pooler_options
    )
    chosen = resolve_precision(precision, default_device())
    options = asdict(normalise) | {"limit": limit, "precision": chosen}
    with artifacts.write_folder(output, overwrite=overwrite) as staging:
        tally = _Tally(retriever.pooler.view_names, normalise)
        with (staging / ANSWERS).open("w", encoding="utf-8") as stream:
            for document in _compared(retriever, judged, chosen):
                tally.add(document, stream)
        found = tally.analysis(judged, options)
        artifacts.write_json(staging / RESULT, found.to_json())
        if plot:
            draw(found, staging / PLOT, title=Path(model).name)
        counts = {name: getattr(found, name) for name in ("pairs", "queries", "documents")} | {
            "views": len(found.views)
        }
        inputs = {"checkpoint": describe_retriever(model, retriever), **judged.inputs}
        artifacts.write_manifest(
            staging, "analysis", command="analyse-views", options=options, inputs=inputs, counts=counts
        )
    return found


@dataclass(frozen=True)
class _Normalisation:
    """Which scores Local Variation is computed on."""

    scores: Scores
    temperature: float | None

    @classmethod
    def of(cls, scores: Scores, temperature: float | None) -> _Normalisation:
        if temperature is not None and scores != "softmax":
            msg = (
                f"--temperature {temperature} has no effect on --scores {scores}. Choose --scores softmax, or drop it."
            )
            raise OptionError(msg)
        if temperature is not None and not temperature > 0:
            msg = f"--temperature is {temperature}, and must be above 0. Leave it out for 1."
            raise OptionError(msg)
        return cls(scores, (temperature or 1.0) if scores == "softmax" else None)

    def __call__(self, queries: Tensor, views: Tensor, products: Tensor) -> Tensor:
        """(n, m) scores of n query vectors (n, dim) and m views (m, dim), whose inner products are (n, m)."""
        if self.temperature is not None:
            return (products / self.temperature).softmax(dim=-1)
        if self.scores == "cosine":
            return functional.normalize(queries, dim=-1) @ functional.normalize(views, dim=-1).T
        return products


@dataclass
class _Judged:
    """Pairs of queries and the documents that answer them, by document."""

    by_document: dict[str, list[str]]
    text: Mapping[str, str]
    passage: Callable[[str], Passage]
    inputs: dict[str, dict[str, str]]
    notes: list[str]

    @classmethod
    def read(
        cls,
        corpus: str | Path | None,
        queries: str | Path | None,
        qrels: str | Path | None,
        examples: str | Path | None,
        limit: int | None,
    ) -> _Judged:
        opened = open_corpus(corpus) if corpus is not None else None
        if examples is not None:
            if queries is not None or qrels is not None:
                msg = "--examples have queries and judgements of their own. Drop --queries and --qrels, or --examples."
                raise InputError(msg)
            judged = cls._of_examples(examples, opened)
        elif opened is None or queries is None or qrels is None:
            msg = "nothing to analyse by. Give --corpus, --queries and --qrels, or --examples."
            raise InputError(msg)
        else:
            judged = cls._of_qrels(opened, queries, qrels)
        given = {"corpus": corpus, "queries": queries, "qrels": qrels, "examples": examples}
        judged.inputs = {
            name: artifacts.describe_input(source, fingerprint(source))
            for name, source in given.items()
            if source is not None
        }
        judged.by_document = dict(islice(judged.by_document.items(), limit))
        return judged

    @classmethod
    def _of_examples(cls, source: str | Path, corpus: Corpus | None) -> _Judged:
        examples = read_examples(source)
        check_examples(examples, corpus)

        def passage(one: str) -> Passage:
            # The corpus comes first: it is what is indexed.
            return corpus.get(one) if corpus is not None and one in corpus else examples.passages[one]

        pairs = [(row.query_id, document_id) for row in examples for document_id in row.positives]
        return cls(_grouped(pairs), {row.query_id: row.query for row in examples}, passage, {}, [])

    @classmethod
    def _of_qrels(cls, corpus: Corpus, queries: str | Path, qrels: str | Path) -> _Judged:
        text = {query.id: query.text for query in read_queries(queries)}
        judgements = read_qrels(qrels).items()
        pairs = [(query_id, one) for query_id, judged in judgements for one, grade in judged.items() if grade > 0]
        missing = corpus.missing({document_id for _, document_id in pairs})
        unasked = {query_id for query_id, _ in pairs if query_id not in text}
        kept = [(query_id, one) for query_id, one in pairs if query_id in text and one not in missing]
        notes = [
            *_left_out(missing, "judged documents", "corpus"),
            *_left_out(unasked, "judged queries", "queries"),
        ]
        if not kept:
            msg = " ".join(["there is no pair of a query and a document that answers it.", *notes])
            raise InputError(msg)
        return cls(_grouped(kept), text, corpus.get, {}, notes)


def _grouped(pairs: Iterable[Pair]) -> dict[str, list[str]]:
    """The queries of each document, in order, each once."""
    by_document: dict[str, dict[str, None]] = {}
    for query_id, document_id in pairs:
        by_document.setdefault(document_id, {})[query_id] = None
    return {document_id: list(query_ids) for document_id, query_ids in by_document.items()}


def _left_out(ids: Collection[str], what: str, where: str) -> list[str]:
    return [f"{len(ids)} {what} are not in the {where} and are left out: {shortlist(sorted(ids), 3)}."] if ids else []


@dataclass
class _Compared:
    """A document, its vectors, and the vectors of the queries that it answers.

    Attributes:
        rows: For each query vector the query's id, and the vector's number where a query has several.
        numbers: (m,) the places of the document's vectors.
        queries: (n, dim).
        views: (m, dim).
        products: (n, m) inner products.
    """

    document_id: str
    rows: list[tuple[str, int | None]]
    numbers: Tensor
    queries: Tensor
    views: Tensor
    products: Tensor


def _compared(retriever: Retriever, judged: _Judged, precision: Precision) -> Iterator[_Compared]:
    """Every document with its queries, encoded in chunks so that memory does not grow with their number."""
    ids = list(judged.by_document)
    with Progress(*Progress.get_default_columns()[:2], TimeElapsedColumn(), console=Console(stderr=True)) as progress:
        for start in progress.track(range(0, len(ids), CHUNK_DOCUMENTS), description="analysing documents"):
            chunk = ids[start : start + CHUNK_DOCUMENTS]
            asked = list(dict.fromkeys(one for document_id in chunk for one in judged.by_document[document_id]))
            passages = [judged.passage(document_id) for document_id in chunk]
            documents = retriever.encode([(one.title, one.text) for one in passages], "document", precision=precision)
            queries = retriever.encode([("", judged.text[one]) for one in asked], "query", precision=precision)
            _check_many(documents, queries, retriever)
            place = {query_id: row for row, query_id in enumerate(asked)}
            for row, document_id in enumerate(chunk):
                query_ids = judged.by_document[document_id]
                own = queries.rows(torch.tensor([place[one] for one in query_ids]))
                yield _compare(document_id, query_ids, own, documents.rows(slice(row, row + 1)))


def _compare(
    document_id: str, query_ids: Sequence[str], queries: Representation, document: Representation
) -> _Compared:
    """One document with its queries, without the vectors that are padding."""
    assert queries.vectors is not None
    assert document.vectors is not None
    several = queries.vectors.shape[1] > 1
    there = _mask(document)[0]  # (m,)
    asking = _mask(queries)  # (queries, m_q)
    rows = [(query_ids[row], vector if several else None) for row, vector in asking.nonzero().tolist()]
    products = vector_scores(queries, document)[:, :, 0]  # (queries, m_q, m)
    return _Compared(
        document_id,
        rows,
        there.nonzero()[:, 0],
        queries.vectors[asking],
        document.vectors[0][there],
        products[asking][:, there],
    )


def _mask(representation: Representation) -> Tensor:
    """(batch, m) True where there is a vector."""
    assert representation.vectors is not None
    if representation.vector_mask is not None:
        return representation.vector_mask
    return torch.ones(representation.vectors.shape[:2], dtype=torch.bool)


def _check_many(documents: Representation, queries: Representation, retriever: Retriever) -> None:
    name = retriever.description["pooler"]["name"]
    if documents.vectors is None or queries.vectors is None:
        problem = f"the pooler '{name}' makes weights over a vocabulary and no vectors"
    elif documents.vectors.shape[1] == 1:
        problem = f"the pooler '{name}' gives a document one vector"
    else:
        return
    msg = (
        f"{problem}, so that there are no views to tell apart. Analyse a checkpoint whose documents have several, or a "
        f"plain model (the encoder folder of a checkpoint too) with such a pooler: --pooler multi_layer."
    )
    raise UnsupportedError(msg)


class _Tally:
    """Counts which view answers, and writes a line for each query vector."""

    def __init__(self, names: Callable[[int], list[str]], normalise: _Normalisation) -> None:
        self.names = names
        self.normalise = normalise
        self.answered: Counter[int] = Counter()
        self.offered: Counter[int] = Counter()
        self.sums: Counter[int] = Counter()
        self.local_variations: list[float] = []
        self.perplexities: list[float] = []
        self.bounds: list[int] = []
        self.pairs: set[Pair] = set()

    def add(self, document: _Compared, stream: TextIO) -> None:
        """Count one document."""
        if not document.rows:
            return
        best = document.products.argmax(dim=1)  # of equal scores the first
        views = document.numbers[best].tolist()
        numbers = document.numbers.tolist()
        variations: list[float | None] = [None] * len(views)
        if len(numbers) > 1:
            scores = self.normalise(document.queries, document.views, document.products)
            variations = local_variation(scores).tolist()
        self.answered.update(views)
        for number, total in zip(numbers, document.products.double().sum(dim=0).tolist(), strict=True):
            self.offered[number] += len(views)
            self.sums[number] += total
        self.local_variations += [one for one in variations if one is not None]
        self.perplexities.append(perplexity(views))
        self.bounds.append(min(len(views), len(numbers)))
        self.pairs.update((query_id, document.document_id) for query_id, _ in document.rows)
        self._write(document, views, variations, stream)

    def _write(self, document: _Compared, views: list[int], variations: list[float | None], stream: TextIO) -> None:
        numbers = document.numbers.tolist()
        names = self.names(max(numbers) + 1)
        labels = [names[number] for number in numbers]
        for (query_id, vector), view, variation, products in zip(
            document.rows, views, variations, document.products.tolist(), strict=True
        ):
            line: dict[str, Any] = {"query_id": query_id, "document_id": document.document_id}
            if vector is not None:
                line["query_vector"] = vector
            line |= {"view": view, "label": names[view]}
            line["local_variation"] = None if variation is None else round(variation, 6)
            line["scores"] = {label: round(one, 6) for label, one in zip(labels, products, strict=True)}
            stream.write(json.dumps(line, ensure_ascii=False) + "\n")

    def analysis(self, judged: _Judged, options: dict[str, Any]) -> Analysis:
        """What was counted."""
        compared = self.answered.total()
        names = self.names(max(self.offered) + 1)
        views = [
            View(
                number,
                names[number],
                offered,
                self.answered[number],
                self.answered[number] / compared,
                self.sums[number] / offered,
            )
            for number, offered in sorted(self.offered.items())
        ]
        return Analysis(
            views=views,
            pairs=len(self.pairs),
            queries=len({query_id for query_id, _ in self.pairs}),
            documents=len(self.perplexities),
            compared=compared,
            local_variation=mean(self.local_variations) if self.local_variations else None,
            perplexity=mean(self.perplexities),
            perplexity_bound=mean(self.bounds),
            perplexity_pooled=perplexity(self.answered.elements()),
            local_variations=self.local_variations,
            perplexities=self.perplexities,
            options=options,
            notes=judged.notes,
        )


def _check_matplotlib() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        needed_for = "the plot (--no-plot leaves it out)"
        raise MissingDependencyError("matplotlib", needed_for, "'retrievalkit[plot]'") from error
