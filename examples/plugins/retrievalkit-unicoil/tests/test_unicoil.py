"""uniCOIL: the paper's score by hand, conformance, and a trained index."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch
from retrievalkit_unicoil.poolers import UniCoil

from retrievalkit.contracts import EncoderInfo, TokenStates
from retrievalkit.scoring import scores

CLS, SEP, PAD, A, B, C = range(6)


def states(*texts):
    """Texts of (token, state) pairs between [CLS] and [SEP], with states of one number; padded to the longest."""
    longest = max(map(len, texts)) + 2
    rows = [[(CLS, 9.0), *text, (SEP, 2.0), *[(PAD, float("inf"))] * (longest - 2 - len(text))] for text in texts]
    ids = torch.tensor([[token for token, _ in row] for row in rows])
    hidden = torch.tensor([[state for _, state in row] for row in rows])[:, :, None]
    return TokenStates({1: hidden}, (ids != PAD).long(), ids, (ids == CLS) | (ids == SEP))


@pytest.fixture
def pooler():
    """Creates a pooler whose weights are relu of the states."""

    def create(**options):
        pooler = UniCoil(EncoderInfo(width=1, layers=1, vocabulary_size=6), **options)
        torch.nn.init.ones_(pooler.projection.weight)
        torch.nn.init.zeros_(pooler.projection.bias)
        return pooler

    return create


def test_the_score_equals_the_papers_equation(pooler):
    """The query has tokens a, a, c; of the two a in a document, the larger weight counts; c is in no document."""
    query = pooler()(states([(A, 0.3), (A, 0.4), (C, 1.0)]), "query")
    documents = pooler()(states([(A, 0.5), (B, 2.0), (A, 1.5)], [(B, 3.0)]), "document")
    torch.testing.assert_close(scores(query, documents), torch.tensor([[0.3 * 1.5 + 0.4 * 1.5, 0.0]]))


def test_terms_with_a_negative_weight_are_not_indexed(pooler):
    weights = pooler()(states([(A, -0.5), (B, 1.0)]), "document").weights
    assert weights.nonzero().tolist() == [[0, B]]


def test_the_largest_weight_of_a_repeated_query_term_may_count(pooler):
    weights = pooler(query_repeats="max")(states([(A, 0.3), (A, 0.4)]), "query").weights
    assert weights[0, A].item() == pytest.approx(0.4)


@pytest.mark.parametrize("side", ["query", "document"])
def test_the_separator_may_have_a_weight_but_not_cls(pooler, side):
    text = states([(A, 1.0)], [(A, 1.0), (B, 1.0)])
    assert not pooler()(text, side).weights[:, [CLS, SEP, PAD]].any()
    weights = pooler(separator=True)(text, side).weights
    assert weights[:, SEP].tolist() == [2.0, 2.0]
    assert not weights[:, [CLS, PAD]].any()


@pytest.mark.parametrize(
    ("architecture", "options"),
    [("bert", {}), ("bert", {"query_repeats": "max"}), ("t5", {"separator": True})],
    ids=str,
)
def test_the_pooler_conforms(options, architecture, tmp_path):
    model = testing.tiny_model(tmp_path / "model", architecture=architecture)
    testing.check("pooler", "unicoil", model=model, **options)


def test_a_trained_index_retrieves_answers(train_and_index, ndcg):
    index, output = train_and_index("unicoil", indexer="sparse")
    assert "recall@10 1.0000" in output
    assert ndcg(index) > 0.5
