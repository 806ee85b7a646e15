"""COIL: the paper's score by hand, the contract, and from training to evaluation."""

from __future__ import annotations

import json

import pytest
import retrievalkit_testing as testing
import torch
from retrievalkit_coil.poolers import Coil

from retrievalkit.contracts import EncoderInfo, TokenStates
from retrievalkit.scoring import scores

CLS, SEP, PAD, A, B, C = range(6)


def states(*texts):
    """Texts: the state of [CLS], then (token, state) pairs, then [SEP]; states of two numbers, padded."""
    longest = max(map(len, texts)) + 1
    rows = [
        [(CLS, cls), *tokens, (SEP, (9.0, 9.0)), *[(PAD, (float("inf"),) * 2)] * (longest - 2 - len(tokens))]
        for cls, *tokens in texts
    ]
    ids = torch.tensor([[token for token, _ in row] for row in rows])
    hidden = torch.tensor([[state for _, state in row] for row in rows])
    return TokenStates({1: hidden}, (ids != PAD).long(), ids, (ids == CLS) | (ids == SEP))


@pytest.fixture
def pooler():
    """Creates a pooler whose vectors are the states, possibly in pieces."""

    def create(dimension=2, cls_dimension=2):
        pooler = Coil(
            EncoderInfo(width=2, layers=1, vocabulary_size=6), dimension=dimension, cls_dimension=cls_dimension
        )
        with torch.no_grad():
            for layer in (pooler.tokens, pooler.text):
                if layer is not None:
                    layer.weight.copy_(torch.eye(2)[: len(layer.weight)])
                    layer.bias.zero_()
        return pooler.eval()

    return create


QUERY = [(1.0, 2.0), (A, (1.0, 0.0)), (A, (0.0, 1.0)), (C, (5.0, 5.0))]
"""Tokens a, a, c."""
DOCUMENTS = [
    [(3.0, 1.0), (A, (0.5, 2.0)), (B, (9.0, 9.0)), (A, (1.5, -1.0))],
    [(0.0, -1.0), (B, (9.0, 9.0))],
    [(0.0, 0.0), (C, (-1.0, -1.0))],
]
"""The first has token a twice, the second no token of the query, the third only c, with a negative product."""


def test_coil_full_adds_the_text_and_the_best_of_equal_tokens(pooler):
    """Of the first document: 1*3 + 2*1 of [CLS], then max(.5, 1.5) and max(2, -1) of the two a; nothing of b and c."""
    coil = pooler()
    values = scores(coil(states(QUERY), "query"), coil(states(*DOCUMENTS), "document"))
    torch.testing.assert_close(values, torch.tensor([[5.0 + 1.5 + 2.0, -2.0, -10.0]]))


def test_coil_tok_has_no_vector_of_the_text(pooler):
    coil = pooler(cls_dimension=0)
    values = scores(coil(states(QUERY), "query"), coil(states(*DOCUMENTS), "document"))
    torch.testing.assert_close(values, torch.tensor([[3.5, 0.0, -10.0]]))


def test_the_vector_of_the_text_may_be_longer_than_those_of_tokens(pooler):
    """In pieces of one number, [CLS] adds the same product; the tokens have only their first number."""
    coil = pooler(dimension=1)
    values = scores(coil(states(QUERY), "query"), coil(states(*DOCUMENTS), "document"))
    torch.testing.assert_close(values, torch.tensor([[5.0 + 1.5 + 0.0, -2.0, -5.0]]))


def test_a_text_without_tokens_scores_zero(pooler):
    coil = pooler(cls_dimension=0)
    values = scores(coil(states(QUERY, [(1.0, 1.0)]), "query"), coil(states([(1.0, 1.0)]), "document"))
    assert values.tolist() == [[0.0], [0.0]]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"cls_dimension": 0}, {"dimension": 5, "cls_dimension": 7}], ids=str)
def test_the_contract_is_kept(options, tiny_model):
    testing.check("pooler", "coil", model=tiny_model, **options)


def test_from_training_to_evaluation(rkit, tiny_model, tiny_collection, tmp_path):
    """Trained, it finds most answers; the index is exact, and a text can be deleted from it."""
    data = tiny_collection.folder
    words = ["--corpus", data, "--examples", data, "--output", tmp_path / "checkpoint"]
    small = ["--epochs", 8, "--batch-size", 16, "--learning-rate", "1e-2", "--set", "encoder.dropout=0"]
    rkit("train", "--model", tiny_model, "--pooler", "coil", *words, *small, "--set", "negatives=0")
    rkit("encode", tmp_path / "checkpoint", tiny_collection.corpus, "--output", tmp_path / "vectors")
    checked = rkit("index", tmp_path / "vectors", "--output", tmp_path / "index", "--check")
    assert "recall@10 1.0000" in checked, checked
    run = tmp_path / "run.trec"
    rkit("search", tmp_path / "index", "--queries", tiny_collection.queries, "--k", 10, "--output", run)
    judged = json.loads(rkit("evaluate", run, "--qrels", tiny_collection.qrels, "--metrics", "nDCG@10", "--json"))
    assert judged["metrics"]["nDCG@10"] > 0.5
    first = run.read_text().split()[2]
    rkit("index", tmp_path / "index", "--delete", first, "--compact")
    rkit(
        "search",
        tmp_path / "index",
        "--queries",
        tiny_collection.queries,
        "--k",
        10,
        "--output",
        tmp_path / "after.trec",
    )
    assert f" {first} " not in (tmp_path / "after.trec").read_text()
