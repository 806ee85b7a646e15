"""uniCOIL: the paper's score by hand, the contract, and from training to evaluation."""

from __future__ import annotations

import json

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
    """Makes a pooler whose weight is relu of the state itself."""

    def made(**options):
        pooler = UniCoil(EncoderInfo(width=1, layers=1, vocabulary_size=6), **options)
        torch.nn.init.ones_(pooler.projection.weight)
        torch.nn.init.zeros_(pooler.projection.bias)
        return pooler

    return made


def test_the_score_is_that_of_the_paper(pooler):
    """The query's tokens a, a, c; a document with a twice, where the greater weight counts; c is in no document."""
    query = pooler()(states([(A, 0.3), (A, 0.4), (C, 1.0)]), "query")
    documents = pooler()(states([(A, 0.5), (B, 2.0), (A, 1.5)], [(B, 3.0)]), "document")
    torch.testing.assert_close(scores(query, documents), torch.tensor([[0.3 * 1.5 + 0.4 * 1.5, 0.0]]))


def test_a_negative_weight_is_none(pooler):
    """ReLU: such a term is not in the index."""
    weights = pooler()(states([(A, -0.5), (B, 1.0)]), "document").weights
    assert weights.nonzero().tolist() == [[0, B]]


def test_a_repeated_term_of_a_query_may_count_once(pooler):
    weights = pooler(query_repeats="max")(states([(A, 0.3), (A, 0.4)]), "query").weights
    assert weights[0, A].item() == pytest.approx(0.4)


@pytest.mark.parametrize("side", ["query", "document"])
def test_the_separator_may_have_a_weight_and_cls_never_has(pooler, side):
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
def test_the_contract_is_kept(options, architecture, tmp_path):
    model = testing.tiny_model(tmp_path / "model", architecture=architecture)
    testing.check("pooler", "unicoil", model=model, **options)


def test_the_conformance_command_passes(rkit):
    assert " failed" not in rkit("plugins", "check", "unicoil")


def test_from_training_to_evaluation(rkit, tiny_model, tiny_collection, tmp_path):
    """Trained, it finds most answers; the index holds terms of the texts alone."""
    data = tiny_collection.folder
    words = ["--corpus", data, "--examples", data, "--output", tmp_path / "checkpoint"]
    small = ["--epochs", 8, "--batch-size", 16, "--learning-rate", "1e-2", "--set", "encoder.dropout=0"]
    rkit("train", "--model", tiny_model, "--pooler", "unicoil", *words, *small, "--set", "negatives=0")
    rkit("encode", tmp_path / "checkpoint", tiny_collection.corpus, "--output", tmp_path / "vectors")
    rkit("index", tmp_path / "vectors", "--indexer", "sparse", "--output", tmp_path / "index")
    run = tmp_path / "run.trec"
    rkit("search", tmp_path / "index", "--queries", tiny_collection.queries, "--k", 10, "--output", run)
    found = json.loads(rkit("evaluate", run, "--qrels", tiny_collection.qrels, "--metrics", "nDCG@10", "--json"))
    assert found["metrics"]["nDCG@10"] > 0.5
