"""Words and fusion in Milvus, compared with an independent BM25 and computed sums."""

import json
import math
import re
from collections import Counter

import numpy as np
import pytest
from milvus_cases import assert_hits, draw
from retrievalkit_milvus.indexer import Milvus

from retrievalkit.errors import InputError, OptionError, UnsupportedError

K1, B = 0.9, 0.4
WORDS = ["oak", "elm", "ash", "fir", "yew", "box", "bay", "fig"]
QUERIES = ["oak elm", "Fig, fig!", "ash", "yew box bay oak", "pine"]
_generator = np.random.default_rng(0)
TEXTS = [" ".join(_generator.choice(WORDS, size=_generator.integers(3, 10))) for _ in range(40)]
"""Forty texts of three to nine words."""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """The texts, and another that is not encoded."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    lines = [
        {"_id": f"t{row}", "title": text.split()[0], "text": " ".join(text.split()[1:])}
        for row, text in enumerate(TEXTS)
    ]
    lines.insert(3, {"_id": "not encoded", "title": "", "text": "oak"})
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(params=["folder", "server"])
def place(request, server):
    return {} if request.param == "folder" else {"uri": server}


@pytest.fixture(scope="module")
def case():
    case = draw(40, dim=6, vocabulary=12, seed=3)
    case.queries.texts = QUERIES
    return case


def bm25(query):
    """The scores (texts,) of a query."""
    documents = [Counter(re.findall(r"\w+", text.lower())) for text in TEXTS]
    mean = sum(map(Counter.total, documents)) / len(documents)
    df = Counter(word for document in documents for word in document)
    idf = {word: math.log((len(TEXTS) - df[word] + 0.5) / (df[word] + 0.5) + 1) for word in df}
    norms = [K1 * (1 - B + B * document.total() / mean) for document in documents]
    return np.array(
        [
            sum(
                n * idf.get(w, 0) * d[w] * (K1 + 1) / (d[w] + norm)
                for w, n in Counter(re.findall(r"\w+", query.lower())).items()
            )
            for d, norm in zip(documents, norms, strict=True)
        ]
    )


def ranked(scores, k):
    """The best texts with a score above 0, and their scores; ties in order."""
    order = [row for row in np.argsort(-scores, kind="stable")[:k] if scores[row] > 0]
    return [f"t{row}" for row in order], scores[order]


def test_words_are_ranked_by_bm25(place, case, corpus, indexed):
    index = indexed(case, texts=str(corpus), hybrid="weighted:0,0,1", **place)
    for k in (1, 7, 40):
        ids, scores = index.search(case.queries, k)
        for query, names, values in zip(QUERIES, ids, scores, strict=True):
            best_ids, best_scores = ranked(bm25(query).round(6), k)
            np.testing.assert_allclose(values, best_scores, rtol=1e-4)
            assert_same_up_to_ties(names, best_ids, best_scores)
    assert ids[-1] == []


def test_weighted_fusion_sums_scores(place, case, corpus, indexed):
    index = indexed(case, texts=str(corpus), hybrid="weighted:1,0.5,0.25", **place)
    vectors, weights = parts(case)
    for query, names, values in zip(range(5), *index.search(case.queries, 10), strict=True):
        total = vectors[query] + 0.5 * weights[query] + 0.25 * bm25(QUERIES[query])
        order = np.argsort(-total, kind="stable")[:10]
        assert names == [f"t{row}" for row in order]
        np.testing.assert_allclose(values, total[order], rtol=1e-4)


def test_rrf_sums_reciprocal_ranks(place, case, corpus, indexed):
    index = indexed(case, texts=str(corpus), hybrid="rrf", **place)
    vectors, weights = parts(case)
    for query, names, values in zip(range(5), *index.search(case.queries, 40), strict=True):
        fields = (vectors[query], weights[query], bm25(QUERIES[query]))
        assert sorted(values, reverse=True) == list(values)
        total = by_ranks(fields)
        assert names[0] in [f"t{row}" for row in np.flatnonzero(total >= total.max() - 1e-3)]
        assert values[0] == pytest.approx(max(total), rel=1e-4)


def test_without_hybrid_the_words_are_not_searched(place, case, corpus, indexed):
    index = indexed(case, texts=str(corpus), **place)
    assert_hits(index.search(case.queries, 9), case.expected(9))


def test_a_corpus_in_another_order_is_refused(case, store, tmp_path):
    path = tmp_path / "corpus.jsonl"
    path.write_text("".join(json.dumps({"_id": f"t{row}", "text": "oak"}) + "\n" for row in (0, 2, 1)))
    (tmp_path / "index").mkdir()
    with pytest.raises(InputError, match="lacks the text 't2', or has it at another position"):
        Milvus(texts=str(path)).build(store(case), tmp_path / "index")


def test_fusion_refuses_unsupported_texts_queries_and_weights(indexed, case, corpus):
    with pytest.raises(UnsupportedError, match="one vector each"):
        indexed(draw(5, dim=2, m=2), hybrid="rrf").search(draw(5, dim=2).queries, 3)
    with pytest.raises(OptionError, match="1 weights, but the index has vector, weights"):
        indexed(case, hybrid="weighted:1").search(case.queries, 3)
    index = indexed(case, hybrid="rrf", texts=str(corpus))
    with pytest.raises(UnsupportedError, match="the queries are only vectors"):
        index.search(case.queries.rows(slice(0, 5)).__class__(case.queries.vectors, None, case.queries.weights), 3)
    with pytest.raises(UnsupportedError, match="scores for its hits only"):
        index.scores(case.queries, [["t0"]] * 5)


def parts(case):
    """The scores (queries, texts) by vectors, and by weights."""
    queries, documents = case.queries, case.documents
    return (
        (queries.vectors[:, 0] @ documents.vectors[:, 0].T).numpy(),
        (queries.weights @ documents.weights.T).numpy(),
    )


def by_ranks(fields):
    """Sums of reciprocal ranks (texts,); texts with a score of 0 by words or weights have no rank there."""
    total = np.zeros(len(fields[0]))
    for number, scores in enumerate(fields):
        order = [row for row in np.argsort(-scores, kind="stable") if number == 0 or scores[row] > 0]
        total[order] += 1 / (60 + np.arange(1, len(order) + 1))
    return total


def assert_same_up_to_ties(ids, expected, scores):
    """Assert that ids are equal, in any order among scores that are equal up to rounding."""
    rounded = np.round(scores, 4)
    for score in dict.fromkeys(rounded[:-1].tolist() if len(rounded) else []):
        places = np.flatnonzero(rounded == score)
        if len(places) and places[-1] < len(ids) - 1:
            assert {ids[place] for place in places} == {expected[place] for place in places}
