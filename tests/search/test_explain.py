"""Explanations of a hit's score: terms, the nearest vector or sentence, pairs of tokens."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import retrievalkit_testing as testing
import torch

from retrievalkit.contracts import Representation
from retrievalkit.data.corpus import Corpus, Passage
from retrievalkit.data.queries import Query
from retrievalkit.errors import UnsupportedError
from retrievalkit.indexing.open_indexes import OpenIndex, OpenRun
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import scores
from retrievalkit.search.explain import explain
from retrievalkit.search.fusion import gather
from retrievalkit.search.hits import Found, TokenPair

CORPUS = Corpus.of([Passage("a", "", "first"), Passage("b", "", "second")])
TERMS = ("zero", "one", "two", "three")


class FakeRetriever:
    """Returns preset representations, and names of tokens and views."""

    def __init__(self, query, documents):
        self.given = {"query": query, "document": documents}
        self.encoded = []
        self.pooler = SimpleNamespace(view_names=lambda count: [f"layer {9 - number}" for number in range(count)])

    def encode(self, texts, side, *, precision):
        assert precision == "fp32"
        self.encoded += [text.body for text in texts]
        rows = [0] if side == "query" else [("first", "second").index(text.body) for text in texts]
        return self.given[side].rows(torch.tensor(rows))

    def tower(self, side):
        return self

    def tokenize(self, texts, side):
        return [[0, 1] for _ in texts]

    def collate(self, token_ids, side):
        ids = torch.tensor(token_ids)
        return SimpleNamespace(input_ids=ids, attention_mask=torch.ones_like(ids), special_mask=ids < 0)

    def tokens(self, ids):
        return [TERMS[one] for one in ids]


def index(label, retriever=None, counts=None, contributions=None, view="all"):
    indexer = SimpleNamespace(indexes="vectors" if retriever else "texts", contributions=contributions, view=view)
    return OpenIndex(SimpleNamespace(name=label), {"counts": counts or {}}, "fake", indexer)


def searcher_of(sources, retriever):
    encode = lambda _, texts, side: retriever.encode(texts, side, precision="fp32")  # noqa: E731
    encoders = SimpleNamespace(using=lambda _: nullcontext(retriever), encode=encode, compiled=lambda _: None)
    return SimpleNamespace(sources=sources, encoders=encoders)


def explained(source, retriever=None, *, hits=(("a", 2.0), ("b", 1.0)), corpus=CORPUS, searcher=None, **options):
    sources = [source] if not isinstance(source, list) else source
    searcher = searcher or searcher_of(sources, retriever)
    return list(explain(searcher, Query("q", "asked"), hits, corpus=corpus, **options))


def vectors(*rows):
    return Representation(torch.tensor(rows, dtype=torch.float32))


def test_an_index_of_texts_explains_its_scores_by_terms():
    given = [{"peru": 2.0}, {}]
    [[first], [second]] = explained(index("bm25", contributions=lambda query, ids: given if query == "asked" else None))
    assert first == Found("bm25", 1, 2.0, terms={"peru": 2.0})
    assert second == Found("bm25", 2, 1.0)

    def refuse(query, ids):
        raise UnsupportedError

    assert explained(index("bm25", contributions=refuse))[0] == (Found("bm25", 1, 2.0),)


def test_the_nearest_of_several_vectors_is_named():
    """Masked vectors do not count."""
    documents = vectors([[1, 0], [0, 2], [0, 0]], [[3, 0], [0, 1], [9, 9]])
    documents.vector_mask = torch.tensor([[True, True, True], [True, True, False]])
    retriever = FakeRetriever(vectors([[1, 1]]), documents)
    [[first], [second]] = explained(index("layers", retriever), retriever)
    assert (first.view, first.view_number, first.views) == ("layer 8", 1, 3)
    assert (second.view, second.view_number, second.views) == ("layer 9", 0, 2)


@pytest.fixture(scope="module")
def single(tiny_model):
    return Retriever.create(
        tiny_model, pooler="mean", pooler_options={"normalize": True}, encoder_options={"document_length": 40}
    ).eval()


SENTENCES = ["Lima is the capital of Peru.", "The seat of government is La Paz.", "People pay with the sol."]


@pytest.mark.parametrize("asked", SENTENCES)
def test_a_single_vector_is_explained_by_the_nearest_sentence(single, asked):
    """The nearest sentence is the query itself; a text of a single sentence is not explained."""
    corpus = Corpus.of([Passage("a", "Peru", " ".join(SENTENCES)), Passage("b", "", asked)])
    searcher = searcher_of([index("dense", single, {"texts": 2, "vectors": 2})], single)
    [[first], [second]] = explain(searcher, Query("q", asked), [("a", 2.0), ("b", 1.0)], corpus=corpus)
    assert first.sentence == asked
    vector = single.encode([("", asked)], "query")
    by_hand = scores(vector, single.encode([("", sentence) for sentence in SENTENCES], "document"))[0]
    assert first.sentence_score == pytest.approx(float(by_hand.max()), rel=1e-5)
    assert second == Found("dense", 2, 1.0)


def test_sentences_that_the_model_does_not_read_explain_nothing(single):
    """The end of a truncated text does not affect its vector."""
    asked = "the llama lives in the mountains"
    texts = {"cut": " ".join([*SENTENCES * 3, f"{asked}."]), "whole": f"{SENTENCES[0]} {asked}."}
    corpus = Corpus.of(Passage(name, "", text) for name, text in texts.items())
    searcher = searcher_of([index("dense", single, {"texts": 2, "vectors": 2})], single)
    [[cut], [whole]] = explain(searcher, Query("q", asked), [("cut", 2.0), ("whole", 1.0)], corpus=corpus)
    assert cut.sentence in SENTENCES
    assert whole.sentence == f"{asked}."


def test_shared_terms_have_their_contributions():
    weights = torch.tensor([[1.0, 2.0, 0.0, 3.0]])
    texts = torch.tensor([[0.5, 2.0, 5.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    retriever = FakeRetriever(Representation(weights=weights), Representation(weights=texts))
    [[first], [second]] = explained(index("splade", retriever), retriever)
    assert list(first.terms.items()) == [("one", 4.0), ("zero", 0.5)]
    assert (first.dense, first.lexical, second.terms) == (None, None, {})
    both = FakeRetriever(
        Representation(torch.ones(1, 1, 2), weights=weights), Representation(torch.ones(2, 1, 2), weights=texts)
    )
    [[first], [second]] = explained(index("both", both), both, hits=[("a", 6.5), ("b", 2.0)])
    assert (first.dense, first.lexical, second.lexical) == (2.0, 4.5, 0.0)


@pytest.mark.parametrize(
    ("view", "has_view", "has_terms"), [("all", True, True), ("weights", False, True), ("vectors", True, False)]
)
def test_parts_that_an_index_does_not_compare_are_not_explained(view, has_view, has_terms):
    query = Representation(torch.ones(1, 1, 2), weights=torch.tensor([[1.0, 2.0, 0.0, 3.0]]))
    texts = torch.tensor([[0.5, 2.0, 5.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    documents = Representation(torch.tensor([[[1.0, 2.0], [0, 0]], [[0, 1], [1, 2]]]), weights=texts)
    retriever = FakeRetriever(query, documents)
    [[first], [second]] = explained(index("both", retriever, view=view), retriever)
    assert (first.view is not None, bool(first.terms)) == (has_view, has_terms)
    assert (first.dense is not None) == (has_view and has_terms)
    assert (second.score, second.views) == (1.0, 2 if has_view else None)


def test_a_hit_without_its_text_keeps_its_rank():
    retriever = FakeRetriever(vectors([[1, 1]]), vectors([[1, 0], [0, 2]], [[3, 0], [0, 1]]))
    hits = [("z", 3.0), ("b", 1.0)]
    [[unknown], [known]] = explained(index("layers", retriever), retriever, hits=hits)
    assert unknown == Found("layers", 1, 3.0)
    assert known.view == "layer 9"
    assert explained(index("layers", retriever), retriever, hits=hits, corpus=None)[1] == (Found("layers", 2, 1.0),)
    assert explained(index("layers", retriever), retriever, hits=hits, why=False)[1] == (Found("layers", 2, 1.0),)


def test_each_of_several_indexes_is_explained(tmp_path):
    (tmp_path / "x.trec").write_text("q Q0 a 1 5 x\n")
    sources = [index("bm25", contributions=lambda query, ids: [{}, {}]), OpenRun(tmp_path / "x.trec", {})]
    found = gather([(["a", "b"], [5.0, 4.0]), (["b"], [0.5])], "q")
    assert explained(sources, candidates=found) == [
        (Found("bm25", 1, 5.0), Found("x.trec")),
        (Found("bm25", 2, 4.0), Found("x.trec", 1, 0.5)),
    ]


@pytest.fixture(scope="module")
def late_interaction(tiny_model):
    return Retriever.create(tiny_model, pooler="colbert", encoder_options={"query_length": 12}).eval()


def test_pairs_of_similar_tokens_are_named(late_interaction):
    corpus = Corpus.of([Passage("a", "", "the capital of peru"), Passage("b", "Peru", "people pay with the sol")])
    searcher = searcher_of([index("colbert", late_interaction)], late_interaction)
    query = Query("q", "the capital of peru")
    [[first], [second]] = explain(searcher, query, [("a", 2.0), ("b", 1.0)], corpus=corpus)
    assert {pair.query for pair in first.tokens} == {"the", "capital", "of", "peru"}
    assert all(pair.score <= 1 for pair in first.tokens)
    assert [pair.score for pair in second.tokens] == sorted((pair.score for pair in second.tokens), reverse=True)
    asked = late_interaction.encode([("", query.text)], "query")
    given = late_interaction.encode([("", "the capital of peru")], "document")
    assert max(pair.score for pair in first.tokens) <= float(scores(asked, given))
    documents = {pair.document for pair in (*first.tokens, *second.tokens)}
    assert documents <= {"the", "capital", "of", "peru", "people", "pay", "with", "sol", "[CLS]", "[SEP]", "[unused1]"}
    assert isinstance(first.tokens[0], TokenPair)


@pytest.mark.parametrize("architecture", ["bert", "roberta", "t5"])
def test_tokens_have_readable_names(architecture, tmp_path):
    encoder = Retriever.create(testing.tiny_model(tmp_path, architecture=architecture)).tower("query")
    names = encoder.tokens(encoder.tokenize([("", "capital of peru")], "query")[0])
    assert [name for name in names if not name.startswith(("[", "<"))] == ["capital", "of", "peru"]
    assert encoder.tokens([10**6]) == ["[1000000]"]
