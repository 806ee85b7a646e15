"""The program behind `rkit analyse-views`: finds which of a document's vectors answers which query.

For documents with several vectors (views): viewer tokens, layers, tokens. Each query is compared with its judged
documents. f_i is the inner product of the query's vector and the document's i-th vector; the view with the largest
f_i answers the query (the first in a tie), as in search. Two figures of the MVR paper summarise the result:

    Local Variation   max_i f_i - mean of the other f_i, on normalised scores; the mean over all pairs
    Perplexity        exp(- sum_i p_i ln p_i), p_i the share of a document's queries that view i answers; the mean over
                      documents. It is 1 if one view answers all queries, and at most the number of views or queries.

If a query has several vectors (ColBERT), each counts as a query.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from retrievalkit.contracts import Representation, Text
from retrievalkit.contracts.commands import (
    Precision,
    ProgressBar,
    check_output,
    describe_retriever,
    open_retriever,
    refuse_if_strict,
    resolve_precision,
    write_folder,
    write_json,
    write_manifest,
)
from retrievalkit.errors import UnsupportedError
from retrievalkit.scoring import vector_scores
from retrievalkit_mvr.analyse_views.command import AnalyseViewsOptions
from retrievalkit_mvr.analyse_views.figures import Analysis
from retrievalkit_mvr.analyse_views.judged import Judged
from retrievalkit_mvr.analyse_views.plot import check_matplotlib, draw
from retrievalkit_mvr.analyse_views.tally import Compared, Normalisation, Tally

if TYPE_CHECKING:
    from retrievalkit.models.retriever import Retriever

CHUNK_DOCUMENTS = 256
_SEVERAL = (
    "Analyse a checkpoint whose documents have several vectors, or a pretrained model (such as the encoder folder of a "
    "checkpoint) with a pooler like --pooler colbert."
)
ANSWERS, RESULT, PLOT = "answers.jsonl", "analysis.json", "views.png"


def analyse(options: AnalyseViewsOptions) -> Analysis:
    """Find the view of each judged document that answers its queries, and write the analysis to a folder.

    The folder contains answers.jsonl (a line for each pair), analysis.json and views.png.

    Raises:
        InputError: There are no judgements, none applies to the corpus, or texts have no vectors.
        MissingDependencyError: matplotlib is not installed.
    """
    output = str(options.output)
    check_output(output, overwrite=options.overwrite)
    if options.plot:
        check_matplotlib()
    normalise = Normalisation.of(options.scores, options.temperature)
    judged = Judged.read(options.corpus, options.queries, options.qrels, options.examples, options.limit)
    refuse_if_strict(*judged.notes)
    retriever = open_retriever(
        options.model,
        encoder=options.encoder,
        pooler=options.pooler,
        encoder_options=options.encoder_options,
        pooler_options=options.pooler_options,
    )
    if pooling := retriever.description.get("pooling"):
        judged.notes.append(f"{pooling}.")
    definite = resolve_precision(options.precision)
    recorded = asdict(normalise) | {"limit": options.limit, "precision": definite}
    with write_folder(output, overwrite=options.overwrite) as staging:
        tally = Tally(retriever.pooler.view_names, normalise)
        with (staging / ANSWERS).open("w", encoding="utf-8") as stream:
            for document in _compared(retriever, judged, definite):
                tally.add(document, stream)
        if not tally.local_variations:
            note = f"Documents have one vector each, so there are no views to compare. {_SEVERAL}"
            refuse_if_strict(note)
            judged.notes.append(note)
        analysis = tally.analysis(judged, recorded)
        write_json(staging / RESULT, analysis.as_json())
        if options.plot:
            draw(analysis, staging / PLOT, title=Path(options.model).name)
        counts = {name: getattr(analysis, name) for name in ("pairs", "queries", "documents")}
        counts["views"] = len(analysis.views)
        inputs = {"checkpoint": describe_retriever(options.model, retriever), **judged.inputs}
        write_manifest(staging, "analysis", command="analyse-views", options=recorded, inputs=inputs, counts=counts)
    return analysis


def _compared(retriever: Retriever, judged: Judged, precision: Precision) -> Iterator[Compared]:
    """Yield each document with its queries, encoded in chunks to bound memory."""
    ids = list(judged.by_document)
    with ProgressBar("analyse", len(ids), unit="documents") as progress:
        for start in range(0, len(ids), CHUNK_DOCUMENTS):
            chunk = ids[start : start + CHUNK_DOCUMENTS]
            # A query may belong to several documents of the chunk; it is encoded once.
            query_ids = list(dict.fromkeys(query for document in chunk for query in judged.by_document[document]))
            texts = [judged.passage(document).content for document in chunk]
            documents = retriever.encode(texts, "document", precision=precision)
            query_texts = [Text("", judged.text[query]) for query in query_ids]
            queries = retriever.encode(query_texts, "query", precision=precision)
            if documents.vectors is None or queries.vectors is None:
                name = retriever.description["pooler"]["name"]
                msg = f"the pooler '{name}' computes weights over a vocabulary instead of vectors. {_SEVERAL}"
                raise UnsupportedError(msg)
            row_of = {query_id: row for row, query_id in enumerate(query_ids)}
            for row, document_id in enumerate(chunk):
                answered = judged.by_document[document_id]
                its_queries = queries.rows(torch.tensor([row_of[query_id] for query_id in answered]))
                yield _compare(document_id, answered, its_queries, documents.rows(slice(row, row + 1)))
            progress.advance(len(chunk))


def _compare(document_id: str, query_ids: Sequence[str], queries: Representation, document: Representation) -> Compared:
    """Compare a document with its queries, ignoring vectors that are padding."""
    assert queries.vectors is not None
    assert document.vectors is not None
    several = queries.vectors.shape[1] > 1
    of_document = _mask(document)[0]  # (m,)
    of_queries = _mask(queries)  # (queries, m_q)
    rows = [(query_ids[row], vector if several else None) for row, vector in of_queries.nonzero().tolist()]
    products = vector_scores(queries, document)[:, :, 0]  # (queries, m_q, m)
    return Compared(
        document_id,
        rows,
        of_document.nonzero()[:, 0],
        queries.vectors[of_queries],
        document.vectors[0][of_document],
        products[of_queries][:, of_document],
    )


def _mask(representation: Representation) -> Tensor:
    """Return (batch, m) bool: True at vectors, False at padding."""
    assert representation.vectors is not None
    if representation.vector_mask is not None:
        return representation.vector_mask
    return torch.ones(representation.vectors.shape[:2], dtype=torch.bool)
