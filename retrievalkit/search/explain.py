"""Explanations of hits: the terms that make up a score, the nearest vector or sentence, or pairs of similar tokens.

A text index explains its own scores. For a vector index, its checkpoint encodes the few texts of the hits again, which
is cheap and works with every indexer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING

import numpy as np

from retrievalkit.contracts import Candidates, Text
from retrievalkit.data.corpus import Corpus
from retrievalkit.data.queries import Query
from retrievalkit.data.runs import Hits
from retrievalkit.data.sentences import sentence_ends
from retrievalkit.errors import UnsupportedError
from retrievalkit.indexing.open_indexes import OpenIndex, Source
from retrievalkit.reporting import notices
from retrievalkit.search.hits import SHOWN_PASSAGES, DescribedHit, Found, TokenPair, describe_hits
from retrievalkit.search.searcher import Searcher

if TYPE_CHECKING:
    from retrievalkit.contracts import Representation, Side
    from retrievalkit.models.retriever import Retriever

    Tokenize = Callable[[Sequence[Text], Side], list[list[int]]]
    _ReasonOf = Callable[[str], Found | None]

MOST = 20
"""Maximum number of terms or token pairs per hit; fewer are printed."""

MOST_SENTENCES = 20
"""Maximum number of sentences per text that are compared with the query."""

_UNEXPLAINED = dict[str, Found]().get


def described(
    searcher: Searcher,
    query: Query,
    hits: Hits,
    *,
    corpus: Corpus | None,
    candidates: Candidates | None = None,
    passages: Mapping[str, Hits] | None = None,
    why: bool = True,
) -> Iterator[DescribedHit]:
    """Yield hits with texts and explanations (see `explain`); of a document, with those of its `passages`."""

    def texts(chosen: Hits, why: bool) -> Iterator[DescribedHit]:
        reasons = explain(searcher, query, chosen, corpus=corpus, candidates=candidates, why=why)
        return describe_hits(chosen, query.text, corpus, reasons)

    if not passages:
        yield from texts(hits, why)
        return
    groups = [passages.get(hit[0], [hit]) for hit in hits]
    shown = texts([text for group in groups for text in group[:SHOWN_PASSAGES]], why)
    rest = texts([text for group in groups for text in group[SHOWN_PASSAGES:]], False)
    for rank, ((document, score), group) in enumerate(zip(hits, groups, strict=True), 1):
        inner = chain(islice(shown, len(group[:SHOWN_PASSAGES])), islice(rest, len(group[SHOWN_PASSAGES:])))
        parts = tuple(replace(text, rank=place) for place, text in enumerate(inner, 1))
        shown_parts = parts if document in passages else ()
        yield replace(parts[0], rank=rank, score=score, id=document, passages=shown_parts)


def explain(
    searcher: Searcher,
    query: Query,
    hits: Hits,
    *,
    corpus: Corpus | None,
    candidates: Candidates | None = None,
    why: bool = True,
) -> Iterator[tuple[Found, ...]]:
    """Explain each hit, source by source; without a corpus, vector scores are not explained.

    `candidates` holds the hits of each source if several were searched. Without `why`, yield only ranks and scores.
    """
    ids = [document for document, _ in hits]
    rows: list[int] = []
    if candidates is not None:
        known = set(ids)
        row_of = {document: row for row, document in enumerate(candidates.ids) if document in known}
        rows = [row_of[document] for document in ids]
    columns = []
    for number, source in enumerate(searcher.sources):
        reason_of: _ReasonOf = _reasons(searcher, source, query, ids, corpus) if why else _UNEXPLAINED
        ranked: list[tuple[int | None, float | None]] = [(rank, score) for rank, (_, score) in enumerate(hits, 1)]
        if candidates is not None:
            # This source scored a hit without a rank, but did not retrieve it.
            pairs = zip(candidates.ranks[rows, number].tolist(), candidates.scores[rows, number].tolist(), strict=True)
            ranked = [(rank or None, None if math.isnan(score) else score) for rank, score in pairs]
        columns.append((source.label, reason_of, ranked))
    for row, document in enumerate(ids):
        yield tuple(
            replace(reason_of(document) or Found(""), index=label, rank=ranked[row][0], score=ranked[row][1])
            for label, reason_of, ranked in columns
        )


def _reasons(searcher: Searcher, source: Source, query: Query, ids: Sequence[str], corpus: Corpus | None) -> _ReasonOf:
    """Explain documents' scores in one source, where possible: by terms, vectors, sentences or token pairs."""
    if not isinstance(source, OpenIndex) or not ids:
        return _UNEXPLAINED
    content = source.formed(query.content)
    if not source.needs_encoding:
        try:
            terms_of = source.indexer.contributions(content.body, ids)
        except UnsupportedError:
            return _UNEXPLAINED
        return {document: Found("", terms=terms) for document, terms in zip(ids, terms_of, strict=True)}.get
    passages = {} if corpus is None else corpus.find(ids)
    texts = {document: passages[document].content for document in ids if document in passages}
    if not texts:
        return _UNEXPLAINED
    if (compiled := searcher.encoders.compiled(source)) is not None:
        vector = compiled.encode([content], "query")[0]

        def nearest(document: str) -> Found | None:
            # Text by text, so that the first hit does not wait for the sentences of the others.
            chosen = [texts[document]] if document in texts else []
            with notices.gathered():
                return next(iter(_by_sentences(vector, chosen, compiled.tokenize, compiled.encode)), None)

        return nearest
    # Imported late: importing torch would take most of the time of a search that does not need it.
    from retrievalkit.scoring import scores, viewed

    # Truncated texts were already reported by the search and by `rkit encode`.
    with searcher.encoders.using(source) as retriever, notices.gathered():
        view, counts = source.indexer.view, source.manifest.get("counts", {})
        queries = viewed(searcher.encoders.encode(source, [content], "query"), view)
        if queries.weights is None and _vectors(queries) == 1 and counts.get("vectors", 0) == counts.get("texts"):
            # A single vector per text and query has no parts to explain.
            def encode(sentences: Sequence[Text], side: Side) -> np.ndarray:
                return np.asarray(searcher.encoders.encode(source, sentences, side).vectors)[:, 0]

            def tokenize(sentences: Sequence[Text], side: Side) -> list[list[int]]:
                return retriever.tower(side).tokenize(sentences, side)

            vector = np.asarray(queries.vectors)[0, 0]
            return dict(zip(texts, _by_sentences(vector, list(texts.values()), tokenize, encode), strict=True)).get
        documents = viewed(searcher.encoders.encode(source, list(texts.values()), "document"), view)
        reasons = [Found("")] * len(texts)
        if queries.vectors is not None:
            reasons = _by_vectors(retriever, content, list(texts.values()), queries, documents)
        if queries.weights is not None and documents.weights is not None:
            # Terms shared by query and document, with their contributions; with vectors, also both parts of the score.
            products = queries.weights * documents.weights  # (D, vocabulary)
            values, terms = products.topk(min(MOST, products.shape[1]), dim=1)
            for row, (weights, numbers) in enumerate(zip(values.tolist(), terms.tolist(), strict=True)):
                shared = [(term, round(weight, 6)) for term, weight in zip(numbers, weights, strict=True) if weight > 0]
                names = retriever.tower("document").tokens([number for number, _ in shared])
                by_name = {name: value for name, (_, value) in zip(names, shared, strict=True)}
                reasons[row] = replace(reasons[row], terms=by_name)
            if queries.vectors is not None:
                dense = scores(replace(queries, weights=None), replace(documents, weights=None))[0].tolist()
                parts = zip(reasons, dense, products.sum(dim=1).tolist(), strict=True)
                reasons = [replace(reason, dense=score, lexical=lexical) for reason, score, lexical in parts]
    return dict(zip(texts, reasons, strict=True)).get


def _vectors(representation: Representation) -> int:
    return 0 if representation.vectors is None else representation.vectors.shape[1]


def _by_sentences(
    query: np.ndarray, texts: Sequence[Text], tokenize: Tokenize, encode: Callable[[Sequence[Text], Side], np.ndarray]
) -> list[Found]:
    """Find each text's sentence nearest to a query vector (dim,); none if the text has a single sentence."""
    parts = [part if len(part := _sentences(tokenize, text)) > 1 else [] for text in texts]
    # Overlapping passages share sentences.
    sentences = list(dict.fromkeys(sentence for part in parts for sentence in part))
    if not sentences:
        return [Found("")] * len(texts)
    values = encode([Text("", sentence) for sentence in sentences], "document") @ query
    score_of = dict(zip(sentences, values.tolist(), strict=True))
    nearest = [max(part, key=score_of.__getitem__, default=None) for part in parts]
    return [Found("", sentence=text, sentence_score=score_of[text]) if text else Found("") for text in nearest]


def _sentences(tokenize: Tokenize, text: Text) -> list[str]:
    """Return the sentences of a text, without its title, that the model reads: later ones do not affect the vector."""
    title, body, _ = text
    ends = sentence_ends(body)[:MOST_SENTENCES]
    whole = [body[start:end].strip() for start, end in zip([0, *ends], ends, strict=False)]
    sentences = [sentence for sentence in whole if any(map(str.isalnum, sentence)) and sentence != title]
    if len(sentences) < 2:
        return sentences
    texts = [Text("", ""), text, *(Text("", sentence) for sentence in sentences)]
    special, read, *lengths = map(len, tokenize(texts, "document"))
    starts = accumulate((length - special for length in lengths), initial=special)
    return [sentence for sentence, start in zip(sentences, starts, strict=False) if start < read]


def _by_vectors(
    retriever: Retriever, query: Text, texts: Sequence[Text], queries: Representation, documents: Representation
) -> list[Found]:
    """Name the document vector nearest to a single query vector, or else the pairs of nearest tokens."""
    from retrievalkit.scoring import vector_scores

    products = vector_scores(queries, documents)[0]  # (m_q, D, m_d)
    best, nearest = (values.T.tolist() for values in products.max(dim=2))  # (D, m_q)
    names = _token_names(retriever, texts, documents, "document")
    reasons = [Found("")] * len(texts)
    if len(products) == 1:
        mask = documents.vector_mask
        for row, (number,) in enumerate(nearest):
            views = _vectors(documents) if mask is None else int(mask[row].sum())
            if views > 1:
                label = retriever.pooler.view_names(number + 1)[number]
                token = names[row][number] if names is not None else ""
                view = f"{label} '{token}'" if token else label
                reasons[row] = Found("", view=view, view_number=number, views=views)
        return reasons
    query_names = _token_names(retriever, [query], queries, "query")
    if query_names is None or names is None:
        return reasons
    # The encoder adds special tokens to the text's tokens.
    encoder = retriever.tower("query")
    batch = encoder.collate(encoder.tokenize([query], "query"), "query")
    is_word = ((batch.attention_mask > 0) & ~batch.special_mask)[0].tolist()
    for row in range(len(texts)):
        pairs: dict[str, TokenPair] = {}
        for token, word, score, number in zip(query_names[0], is_word, best[row], nearest[row], strict=True):
            if word and token and score > -math.inf:  # no document vector has its key
                pairs.setdefault(token, TokenPair(token, names[row][number], round(score, 6)))
        reasons[row] = Found("", tokens=tuple(sorted(pairs.values(), key=lambda pair: -pair.score)[:MOST]))
    return reasons


def _token_names(
    retriever: Retriever, texts: Sequence[Text], encoded: Representation, side: Side
) -> list[list[str]] | None:
    """Return the token of each vector, by text; None if vectors do not correspond to tokens."""
    encoder = retriever.tower(side)
    batch = encoder.collate(encoder.tokenize(texts, side), side)
    if batch.input_ids.shape[1] != _vectors(encoded) or (side == "document" and encoded.vector_mask is None):
        return None
    return [encoder.tokens(ids) for ids in batch.input_ids.tolist()]
