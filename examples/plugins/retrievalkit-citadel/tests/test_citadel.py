"""CITADEL: score and loss by hand, conformance, and a trained index."""

from __future__ import annotations

from math import e, log

import pytest
import retrievalkit_testing as testing
import torch
from retrievalkit_citadel.losses import Citadel as CitadelLoss
from retrievalkit_citadel.poolers import Citadel

from retrievalkit.contracts import EncoderInfo, Progress, Representation, TokenStates
from retrievalkit.scoring import scores

CLS, SEP, PAD, A, B = range(5)
X, Y, Z = range(3)
"""Keys: a state is the logits of the three keys, and its first two numbers are the vector."""
ONE, TWO = e - 1, e**2 - 1
"""Logits of the weights 1 and 2."""


def states(*texts):
    """Texts of (token, state) pairs between [CLS] and [SEP], padded to the longest."""
    longest = max(map(len, texts)) + 2
    rows = [
        [(CLS, (3.0, 1.0, 0.0)), *text, (SEP, (9.0,) * 3), *[(PAD, (float("inf"),) * 3)] * (longest - 2 - len(text))]
        for text in texts
    ]
    ids = torch.tensor([[token for token, _ in row] for row in rows])
    hidden = torch.tensor([[state for _, state in row] for row in rows])
    return TokenStates({1: hidden}, (ids != PAD).long(), ids, (ids == CLS) | (ids == SEP), head=torch.nn.Identity())


def pooler(**options):
    """A pooler whose router is the state itself, and whose vectors are its first two numbers."""
    citadel = Citadel(EncoderInfo(width=3, layers=1, vocabulary_size=3), dimension=2, **options)
    with torch.no_grad():
        for layer in (citadel.tokens, citadel.text):
            if layer is not None:
                layer.weight.copy_(torch.eye(3)[: len(layer.weight)])
                layer.bias.zero_()
    return citadel.eval()


QUERY = states([(A, (ONE, 0.0, -1.0)), (B, (0.0, TWO, ONE))])
"""Token a is routed to X with weight 1, b to Y with weight 2."""
DOCUMENT = states([(B, (ONE, -5.0, TWO)), (A, (TWO, ONE, 0.0))])
"""Token b is routed to Z (2) and X (1), a to X (2) and Y (1)."""


def test_the_score_equals_the_papers_equation():
    """Key X: the best of two tokens, times the weights; key Y: a single token; [CLS] adds 3*3 + 1*1."""
    citadel = pooler(cls_dimension=2, document_keys=2)
    query, document = citadel(QUERY, "query"), citadel(DOCUMENT, "document")
    by_x = max(1 * 1 * ONE * ONE, 1 * 2 * ONE * TWO)
    by_y = 2 * 1 * TWO * ONE
    torch.testing.assert_close(scores(query, document), torch.tensor([[10.0 + by_x + by_y]]), rtol=1e-5, atol=0)


def test_a_token_has_no_more_keys_than_positive_weights():
    """Keys with a weight of 0 are not indexed."""
    document = pooler(cls_dimension=0, document_keys=3)(DOCUMENT, "document")
    assert document.keys[document.vector_mask].tolist() == [Z, X, X, Y]


def test_fewer_keys_match_less():
    """With one key, b is routed to Z alone and a to X: key Y of the query matches nothing."""
    citadel = pooler(cls_dimension=0, document_keys=1)
    value = scores(citadel(QUERY, "query"), citadel(DOCUMENT, "document"))
    assert value.item() == pytest.approx(1 * 2 * ONE * TWO, rel=1e-5)


def test_the_loss_trains_vectors_and_router_and_balances_the_keys():
    """Two queries and documents with one vector each; the weights of both sides are (1, 0) and (0, 2)."""
    vectors, weights = torch.eye(2)[:, None], torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    both = Representation(vectors, weights=weights, keys=torch.tensor([[7], [7]]))
    value = CitadelLoss(balance=0.1)(both, both, torch.tensor([0, 1]), Progress(0, 0.0, 1))
    of_vectors = log(1 + 1 / e)
    of_router = (log(1 + 1 / e) + log(1 + 1 / e**4)) / 2
    balance = 2 * (0.5**2 + 1.0**2)
    assert value.total.item() == pytest.approx(of_vectors + of_router + 0.1 * balance, rel=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"cls_dimension": 0, "query_keys": 2}], ids=str)
def test_the_pooler_conforms(options, tiny_model):
    testing.check("pooler", "citadel", model=tiny_model, **options)


@pytest.mark.slow
def test_the_loss_conforms():
    testing.check("loss", "citadel")


def test_a_trained_index_is_exact_and_retrieves_answers(train_and_index, ndcg):
    index, output = train_and_index("citadel")
    assert "recall@10 1.0000" in output
    assert ndcg(index) > 0.5
