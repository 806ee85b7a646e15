"""ColBERTer: words and gates by hand, conformance, and a training that drops words."""

from __future__ import annotations

import json

import numpy as np
import pytest
import retrievalkit_testing as testing
import torch
from retrievalkit_colberter import words
from retrievalkit_colberter.losses import Stopwords
from retrievalkit_colberter.poolers import ColBERTer

from retrievalkit.contracts import EncoderInfo, Progress, Representation, TokenStates
from retrievalkit.errors import UnsupportedError
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import scores

CLS, SEP, PAD, BE, ING, LIMA = range(6)
INFO = EncoderInfo(width=2, layers=1, vocabulary_size=6)


def states(*texts):
    """Texts of (token, state) pairs between [CLS] and [SEP], with states of two numbers; padded to the longest."""
    longest = max(map(len, texts)) + 2
    rows = [
        [(CLS, (9.0, 9.0)), *text, (SEP, (9.0, 9.0)), *[(PAD, (np.inf, np.inf))] * (longest - 2 - len(text))]
        for text in texts
    ]
    ids = torch.tensor([[token for token, _ in row] for row in rows])
    hidden = torch.tensor([[state for _, state in row] for row in rows])
    return TokenStates({1: hidden}, (ids != PAD).long(), ids, (ids == CLS) | (ids == SEP))


@pytest.fixture
def pooler():
    """Creates a pooler of two dimensions whose projection is the identity, and whose gate is relu of the first."""

    def create(**options):
        pooler = ColBERTer(INFO, dimension=2, **options)
        with torch.no_grad():
            pooler.projection.weight.copy_(torch.eye(2))
            pooler.projection.bias.zero_()
            if pooler.gate is not None:
                pooler.gate.weight.copy_(torch.tensor([[1.0, 0.0]]))
                pooler.gate.bias.zero_()
        pooler.continues[ING] = True
        return pooler.eval()

    return create


BEING_LIMA_BEING = [(BE, (1.0, 0.0)), (ING, (3.0, 2.0)), (LIMA, (-1.0, 4.0)), (BE, (2.0, 0.0)), (ING, (2.0, 2.0))]


def test_a_word_is_the_mean_of_all_its_tokens(pooler):
    """In "being lima being", the first word has four tokens."""
    document = pooler(gate=False)(states(BEING_LIMA_BEING), "document")
    assert document.vectors.tolist() == [[[2.0, 1.0], [-1.0, 4.0]]]
    assert document.vector_mask.tolist() == [[True, True]]


def test_words_with_a_common_token_differ(pooler):
    """Such as "be" and "being"; a continuing token at the start of a text starts a word."""
    text = [(BE, (1.0, 0.0)), (BE, (1.0, 0.0)), (ING, (3.0, 0.0))]
    assert pooler(gate=False)(states(text), "query").vectors.tolist() == [[[1.0, 0.0], [2.0, 0.0]]]
    assert pooler(gate=False)(states([(ING, (3.0, 0.0))]), "query").vectors.tolist() == [[[3.0, 0.0]]]


def test_without_whole_words_each_token_has_a_vector(pooler):
    document = pooler(gate=False, whole_words=False)(states(BEING_LIMA_BEING), "document")
    assert document.vectors[0].tolist() == [list(state) for _, state in BEING_LIMA_BEING]


def test_a_document_drops_words_with_closed_gates(pooler):
    """r = relu(g . u): 2 for "being", 0 for "lima"; the vector is r u. Queries have no gate."""
    document = pooler()(states(BEING_LIMA_BEING), "document")
    assert document.vectors[document.vector_mask].tolist() == [[4.0, 2.0, 2.0]]
    assert pooler()(states(BEING_LIMA_BEING), "query").vector_mask.all()


def test_a_document_whose_gates_are_closed_scores_0(pooler):
    """Not -inf: it keeps a word."""
    closed = pooler()(states([(LIMA, (-1.0, 4.0))], BEING_LIMA_BEING), "document")
    query = pooler()(states([(BE, (1.0, 1.0))]), "query")
    assert scores(query, closed).tolist() == [[0.0, 6.0]]


def test_the_gates_column_does_not_affect_scores(pooler):
    """It is the last column of document vectors, and 0 in query vectors."""
    text = states(BEING_LIMA_BEING, [(BE, (0.5, -1.0))])
    queries, documents = pooler()(text, "query"), pooler()(text, "document")
    assert documents.vectors[:, :, documents.parts["gate"]][:, :, 0].tolist() == [[2.0, 0.0], [0.5, 0.0]]
    words = [Representation(side.vectors[:, :, side.parts["words"]], side.vector_mask) for side in (queries, documents)]
    torch.testing.assert_close(scores(*words), scores(queries, documents))


def test_the_loss_is_the_l1_norm_of_the_gates(pooler):
    """2 + 0 and 0.5, so 1.25 per document, times lambda; its gradient closes the gates."""
    model, text = pooler(), states(BEING_LIMA_BEING, [(BE, (0.5, -1.0))])
    queries, documents = model(text, "query"), model(text, "document")
    value = Stopwords(weight=0.1)(queries, documents, torch.tensor([0, 1]), Progress(0, 0.0, 1))
    assert value.total.item() == pytest.approx(0.125)
    assert value.terms["words_kept"] == 1.0
    value.total.backward()
    assert model.gate.bias.grad.item() == pytest.approx(0.1)


def test_the_loss_needs_gates():
    vectors = Representation(torch.ones(2, 1, 4))
    with pytest.raises(UnsupportedError, match="Choose --pooler colberter"):
        Stopwords()(vectors, vectors, torch.tensor([0, 1]), Progress(0, 0.0, 1))


@pytest.mark.parametrize("options", [{}, {"gate": False, "dimension": 8}], ids=str)
def test_the_pooler_conforms(options, tiny_model):
    testing.check("pooler", "colberter", model=tiny_model, **options)


def test_other_vocabularies_than_wordpiece_are_refused(tmp_path, monkeypatch):
    """Such as T5's; without whole words, they are supported."""
    model = testing.tiny_model(tmp_path / "t5", architecture="t5")
    monkeypatch.setattr(words, "CONTINUES", "@@")
    with pytest.raises(UnsupportedError, match=r"pooler\.whole_words=false"):
        Retriever.create(model, pooler="colberter")
    Retriever.create(model, pooler="colberter", pooler_options={"whole_words": False})


@pytest.mark.slow
def test_the_loss_makes_the_index_smaller(rkit, ndcg, tiny_model, tiny_collection, tmp_path):
    """Half of the words, at a high nDCG@10."""
    vectors, figures = [], []
    for weight in (0, 0.01):
        out, data = tmp_path / str(weight), tiny_collection.folder
        places = ["--corpus", data, "--examples", data, "--output", out / "checkpoint"]
        small = ["--epochs", 20, "--batch-size", 16, "--learning-rate", "1e-3", "--set", "encoder.dropout=0"]
        settings = ["--set", "negatives=0", "--set", f"loss.stopwords.weight={weight}"]
        rkit("train", "--model", tiny_model, "--pooler", "colberter", *places, *small, *settings)
        encoded = rkit("encode", out / "checkpoint", tiny_collection.corpus, "--output", out / "vectors", "--json")
        vectors.append(json.loads(encoded)["counts"]["vectors"])
        rkit("index", out / "vectors", "--output", out / "index")
        figures.append(ndcg(out / "index"))
    assert vectors[1] < vectors[0] / 2, vectors
    assert min(figures) > 0.8, figures
