"""Why a hit was found: which terms made its score, which of its vectors is the nearest, which tokens are alike.

An index of texts is asked itself. For an index of vectors the few texts that were found are encoded again, with the
checkpoint that made it: that costs little, and works with every indexer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from retrievalkit.contracts import Representation, Side, Text
from retrievalkit.data.corpus import Corpus
from retrievalkit.data.queries import Query
from retrievalkit.errors import UnsupportedError
from retrievalkit.model.retriever import Retriever
from retrievalkit.score import scores, vector_scores, viewed
from retrievalkit.search.fusion import Candidates
from retrievalkit.search.hits import Found, TokenPair
from retrievalkit.search.searcher import OpenIndex, Searcher, Source

MOST = 20
"""Terms and pairs of tokens of a hit; fewer are printed."""

Given = tuple[int | None, float | None]
Names = list[list[str]] | None
"""For each text the token at each of its vectors; None where vectors are not of tokens."""


def explain(
    searcher: Searcher,
    query: Query,
    hits: Sequence[tuple[str, float]],
    *,
    corpus: Corpus | None,
    candidates: Candidates | None = None,
    why: bool = True,
) -> list[tuple[Found, ...]]:
    """For each hit what each index has to say of it.

    Args:
        searcher: What was searched.
        query: What was searched for.
        hits: What was found.
        corpus: The texts; without them little can be said for vectors.
        candidates: Where several were searched, what each of them found.
        why: Whether to look for what made the scores; else only ranks and scores are told.
    """
    rows = []
    for number, source in enumerate(searcher.sources):
        told = _told(searcher, source, query, [name for name, _ in hits], corpus) if why else [Found("")] * len(hits)
        given = _given(number, hits, candidates)
        found = [
            replace(one, index=source.label, rank=rank, score=score)
            for one, (rank, score) in zip(told, given, strict=True)
        ]
        rows.append(found)
    return list(zip(*rows, strict=True))


def _given(number: int, hits: Sequence[tuple[str, float]], candidates: Candidates | None) -> list[Given]:
    """The rank and the score of each hit in what one index found; a score may have been computed."""
    if candidates is None:
        return [(rank, score) for rank, (_, score) in enumerate(hits, 1)]
    place = {name: row for row, name in enumerate(candidates.ids)}
    rows = [place[name] for name, _ in hits]
    pairs = zip(candidates.ranks[rows, number].tolist(), candidates.scores[rows, number].tolist(), strict=True)
    return [(rank or None, None if score != score else score) for rank, score in pairs]


def _told(searcher: Searcher, source: Source, query: Query, ids: Sequence[str], corpus: Corpus | None) -> list[Found]:
    nothing = Found("")
    if not isinstance(source, OpenIndex) or not ids:
        return [nothing] * len(ids)
    if not source.needs_encoding:
        try:
            return [Found("", terms=one) for one in source.indexer.contributions(query.text, ids)]
        except UnsupportedError:
            return [nothing] * len(ids)
    lacking = set(ids) if corpus is None else corpus.missing(ids)
    passages = {} if corpus is None else {name: corpus.get(name) for name in ids if name not in lacking}
    texts = [(one.title, one.text) for one in passages.values()]
    told = _compared(searcher.encoders.of(source), query.text, texts, source) if texts else []
    by_id = dict(zip(passages, told, strict=False))
    return [by_id.get(name, nothing) for name in ids]


def _compared(retriever: Retriever, query: str, texts: Sequence[Text], index: OpenIndex) -> list[Found]:
    """What a query and each of the texts have in common, by what the index compares of their representations."""
    view = index.indexer.view
    asked = viewed(retriever.encode([("", query)], "query"), view)
    counts = index.manifest.get("counts", {})
    if asked.weights is None and _vectors(asked) == 1 and counts.get("vectors", 0) == counts.get("texts"):
        # Of one vector there is no more to say than the score.
        return []
    documents = viewed(retriever.encode(texts, "document"), view)
    found = [Found("")] * len(texts)
    if asked.vectors is not None:
        found = _by_vectors(retriever, query, texts, asked, documents)
    if asked.weights is None:
        return found
    return [
        replace(one, terms=more.terms, dense=more.dense, lexical=more.lexical)
        for one, more in zip(found, _by_weights(retriever, asked, documents), strict=True)
    ]


def _vectors(representation: Representation) -> int:
    return 0 if representation.vectors is None else representation.vectors.shape[1]


def _by_vectors(
    retriever: Retriever, query: str, texts: Sequence[Text], asked: Representation, documents: Representation
) -> list[Found]:
    products = vector_scores(asked, documents)[0]  # (m_q, D, m_d)
    best, place = (one.T for one in products.max(dim=2))  # (D, m_q)
    names = _token_names(retriever, texts, documents, "document")
    if len(products) == 1:
        return [_view(retriever, documents, row, int(place[row, 0]), names) for row in range(len(texts))]
    own = _token_names(retriever, [("", query)], asked, "query")
    if own is None or names is None:
        return [Found("")] * len(texts)
    asked_for = [token if there else "" for token, there in zip(own[0], _words(retriever, query), strict=True)]
    return [Found("", tokens=_pairs(asked_for, names[row], best[row], place[row])) for row in range(len(texts))]


def _view(retriever: Retriever, documents: Representation, row: int, number: int, names: Names) -> Found:
    """Which of a document's vectors is the nearest to a query of one vector."""
    mask = documents.vector_mask
    views = _vectors(documents) if mask is None else int(mask[row].sum())
    if views == 1:
        return Found("")
    label = retriever.pooler.view_names(number + 1)[number]
    token = names[row][number] if names is not None else ""
    return Found("", view=f"{label} '{token}'" if token else label, view_number=number, views=views)


def _pairs(asked: Sequence[str], names: Sequence[str], best: Tensor, place: Tensor) -> tuple[TokenPair, ...]:
    """The words of a query with the document's that they are most like, the likest first."""
    pairs: dict[str, TokenPair] = {}
    for token, score, number in zip(asked, best.tolist(), place.tolist(), strict=True):
        if token:
            pairs.setdefault(token, TokenPair(token, names[number], round(score, 6)))
    return tuple(sorted(pairs.values(), key=lambda pair: -pair.score)[:MOST])


def _by_weights(retriever: Retriever, asked: Representation, documents: Representation) -> list[Found]:
    """The terms that both have, and what each adds; and where there are vectors too, the two parts of the score."""
    assert asked.weights is not None
    assert documents.weights is not None
    products = asked.weights * documents.weights  # (D, vocabulary)
    values, terms = products.topk(min(MOST, products.shape[1]), dim=1)
    dense = None
    if asked.vectors is not None:
        dense = scores(replace(asked, weights=None), replace(documents, weights=None))[0]
    found = []
    for row, (own, numbers) in enumerate(zip(values.tolist(), terms.tolist(), strict=True)):
        shared = [(number, round(value, 6)) for number, value in zip(numbers, own, strict=True) if value > 0]
        names = retriever.tower("document").tokens([number for number, _ in shared])
        one = Found("", terms={name: value for name, (_, value) in zip(names, shared, strict=True)})
        if dense is not None:
            one = replace(one, dense=float(dense[row]), lexical=float(products[row].sum()))
        found.append(one)
    return found


def _token_names(retriever: Retriever, texts: Sequence[Text], encoded: Representation, side: Side) -> Names:
    """The tokens of the vectors, where there is a vector for each token."""
    encoder = retriever.tower(side)
    batch = encoder.collate(encoder.tokenize(texts, side), side)
    if batch.input_ids.shape[1] != _vectors(encoded) or (side == "document" and encoded.vector_mask is None):
        return None
    return [encoder.tokens(ids) for ids in batch.input_ids.tolist()]


def _words(retriever: Retriever, query: str) -> list[bool]:
    """Which tokens of a query are of its text, and not added to it."""
    encoder = retriever.tower("query")
    batch = encoder.collate(encoder.tokenize([("", query)], "query"), "query")
    words: list[bool] = ((batch.attention_mask > 0) & ~batch.special_mask)[0].tolist()
    return words
