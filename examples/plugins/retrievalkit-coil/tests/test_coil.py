"""COIL: the paper's score by hand, conformance, and a trained index."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch
from retrievalkit_coil.poolers import Coil

from retrievalkit.contracts import EncoderInfo, TokenStates
from retrievalkit.scoring import scores

CLS, SEP, PAD, A, B, C = range(6)


def states(*texts):
    """Texts of the state of [CLS], (token, state) pairs, and [SEP], with states of two numbers; padded."""
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
    """Creates a pooler whose vectors are the states."""

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
"""The first has token a twice, the second no token of the query, the third only c with a negative product."""


def test_coil_full_sums_cls_and_the_best_equal_tokens(pooler):
    """First document: 1*3 + 2*1 by [CLS], max(.5, 1.5) and max(2, -1) by the two a; b and c add nothing."""
    coil = pooler()
    values = scores(coil(states(QUERY), "query"), coil(states(*DOCUMENTS), "document"))
    torch.testing.assert_close(values, torch.tensor([[5.0 + 1.5 + 2.0, -2.0, -10.0]]))


def test_coil_tok_ignores_cls(pooler):
    coil = pooler(cls_dimension=0)
    values = scores(coil(states(QUERY), "query"), coil(states(*DOCUMENTS), "document"))
    torch.testing.assert_close(values, torch.tensor([[3.5, 0.0, -10.0]]))


def test_the_cls_vector_may_be_longer_than_token_vectors(pooler):
    """In pieces of one dimension, [CLS] adds the same product; tokens have only their first dimension."""
    coil = pooler(dimension=1)
    values = scores(coil(states(QUERY), "query"), coil(states(*DOCUMENTS), "document"))
    torch.testing.assert_close(values, torch.tensor([[5.0 + 1.5 + 0.0, -2.0, -5.0]]))


def test_a_text_without_tokens_scores_zero(pooler):
    coil = pooler(cls_dimension=0)
    values = scores(coil(states(QUERY, [(1.0, 1.0)]), "query"), coil(states([(1.0, 1.0)]), "document"))
    assert values.tolist() == [[0.0], [0.0]]


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"cls_dimension": 0}, {"dimension": 5, "cls_dimension": 7}], ids=str)
def test_the_pooler_conforms(options, tiny_model):
    testing.check("pooler", "coil", model=tiny_model, **options)


def test_a_trained_index_is_exact_and_loses_deleted_texts(train_and_index, ndcg, rkit):
    index, output = train_and_index("coil")
    assert "recall@10 1.0000" in output
    assert ndcg(index) > 0.5
    run = index.with_suffix(".trec")
    first = run.read_text().split()[2]
    rkit("index", index, "--delete", first, "--compact")
    ndcg(index)
    assert f" {first} " not in run.read_text()
