"""Why a hit was found in an index of vectors: what the representations of a query and of a text have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from retrievalkit import oddities
from retrievalkit.contracts import Representation, Side, Text
from retrievalkit.model.retriever import Retriever
from retrievalkit.score import scores, vector_scores, viewed
from retrievalkit.search.hits import Found, TokenPair
from retrievalkit.search.searcher import Searcher
from retrievalkit.search.sources import OpenIndex

MOST = 20
"""The maximum number of terms or pairs of tokens per hit; fewer are printed."""

TokenNames = list[list[str]] | None
"""For each text, the token at each of its vectors; None if the vectors do not belong to tokens."""


def compared(searcher: Searcher, query: str, texts: Sequence[Text], index: OpenIndex) -> list[Found]:
    """The similarities of a query and each text, by the parts of the representations that the index compares."""
    # The search and `rkit encode` noted the texts that are cut.
    with searcher.encoders.using(index) as retriever, oddities.gathered():
        return _compared(searcher, retriever, query, texts, index)


def _compared(
    searcher: Searcher, retriever: Retriever, query: str, texts: Sequence[Text], index: OpenIndex
) -> list[Found]:
    view = index.indexer.view
    encoded_query = viewed(searcher.encoders.encode(index, [("", query)], "query"), view)
    counts = index.manifest.get("counts", {})
    if (
        encoded_query.weights is None
        and _vectors(encoded_query) == 1
        and counts.get("vectors", 0) == counts.get("texts")
    ):
        # With one vector on either side, there is nothing to add to the score.
        return []
    documents = viewed(searcher.encoders.encode(index, texts, "document"), view)
    reasons = [Found("")] * len(texts)
    if encoded_query.vectors is not None:
        reasons = _by_vectors(retriever, query, texts, encoded_query, documents)
    if encoded_query.weights is None:
        return reasons
    return [
        replace(reason, terms=lexical.terms, dense=lexical.dense, lexical=lexical.lexical)
        for reason, lexical in zip(reasons, _by_weights(retriever, encoded_query, documents), strict=True)
    ]


def _vectors(representation: Representation) -> int:
    return 0 if representation.vectors is None else representation.vectors.shape[1]


def _by_vectors(
    retriever: Retriever, query: str, texts: Sequence[Text], encoded_query: Representation, documents: Representation
) -> list[Found]:
    products = vector_scores(encoded_query, documents)[0]  # (m_q, D, m_d)
    best, nearest = (values.T for values in products.max(dim=2))  # (D, m_q)
    names = _token_names(retriever, texts, documents, "document")
    if len(products) == 1:
        return [_view(retriever, documents, row, int(nearest[row, 0]), names) for row in range(len(texts))]
    own = _token_names(retriever, [("", query)], encoded_query, "query")
    if own is None or names is None:
        return [Found("")] * len(texts)
    words = [token if is_word else "" for token, is_word in zip(own[0], _is_word(retriever, query), strict=True)]
    return [Found("", tokens=_pairs(words, names[row], best[row], nearest[row])) for row in range(len(texts))]


def _view(retriever: Retriever, documents: Representation, row: int, number: int, names: TokenNames) -> Found:
    """The document's vector that is nearest to the query's only vector."""
    mask = documents.vector_mask
    views = _vectors(documents) if mask is None else int(mask[row].sum())
    if views == 1:
        return Found("")
    label = retriever.pooler.view_names(number + 1)[number]
    token = names[row][number] if names is not None else ""
    return Found("", view=f"{label} '{token}'" if token else label, view_number=number, views=views)


def _pairs(words: Sequence[str], names: Sequence[str], best: Tensor, nearest: Tensor) -> tuple[TokenPair, ...]:
    """Each word of a query with the most similar token of a document, by descending similarity."""
    pairs: dict[str, TokenPair] = {}
    for token, score, number in zip(words, best.tolist(), nearest.tolist(), strict=True):
        if token:
            pairs.setdefault(token, TokenPair(token, names[number], round(score, 6)))
    return tuple(sorted(pairs.values(), key=lambda pair: -pair.score)[:MOST])


def _by_weights(retriever: Retriever, query: Representation, documents: Representation) -> list[Found]:
    """The terms shared by query and document, with their contributions; with vectors also both parts of the score."""
    assert query.weights is not None
    assert documents.weights is not None
    products = query.weights * documents.weights  # (D, vocabulary)
    values, terms = products.topk(min(MOST, products.shape[1]), dim=1)
    dense = None
    if query.vectors is not None:
        dense = scores(replace(query, weights=None), replace(documents, weights=None))[0]
    reasons = []
    for row, (own, numbers) in enumerate(zip(values.tolist(), terms.tolist(), strict=True)):
        shared = [(number, round(value, 6)) for number, value in zip(numbers, own, strict=True) if value > 0]
        names = retriever.tower("document").tokens([number for number, _ in shared])
        reason = Found("", terms={name: value for name, (_, value) in zip(names, shared, strict=True)})
        if dense is not None:
            reason = replace(reason, dense=float(dense[row]), lexical=float(products[row].sum()))
        reasons.append(reason)
    return reasons


def _token_names(retriever: Retriever, texts: Sequence[Text], encoded: Representation, side: Side) -> TokenNames:
    """The tokens of the vectors, if there is one vector per token."""
    encoder = retriever.tower(side)
    batch = encoder.collate(encoder.tokenize(texts, side), side)
    if batch.input_ids.shape[1] != _vectors(encoded) or (side == "document" and encoded.vector_mask is None):
        return None
    return [encoder.tokens(ids) for ids in batch.input_ids.tolist()]


def _is_word(retriever: Retriever, query: str) -> list[bool]:
    """For each token of a query, whether it comes from the text; the encoder adds the others."""
    encoder = retriever.tower("query")
    batch = encoder.collate(encoder.tokenize([("", query)], "query"), "query")
    words: list[bool] = ((batch.attention_mask > 0) & ~batch.special_mask)[0].tolist()
    return words
