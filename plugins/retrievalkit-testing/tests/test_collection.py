"""The test kit for plugin authors: its collection and models, and its checks of broken components."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch

from retrievalkit.data.corpus import open_corpus
from retrievalkit.data.examples import check_examples, read_examples
from retrievalkit.data.qrels import read_qrels
from retrievalkit.data.queries import read_queries


def test_the_collection_is_whole(tiny_collection):
    corpus = open_corpus(tiny_collection.corpus)
    queries = {query.id: query for query in read_queries(tiny_collection.queries)}
    assert (len(corpus), len(queries)) == (42, 126)
    train = read_examples(tiny_collection.folder, corpus=corpus)
    check_examples(train, corpus)
    test = read_qrels(tiny_collection.qrels)
    assert len(train) + len(test) == 126
    assert not {row.query_id for row in train} & test.keys()
    for query_id, judged in test.items():
        (document_id,) = judged
        (answer,) = queries[query_id].answers
        assert answer in corpus.get(document_id).text


def test_the_collection_is_the_same_each_time(tiny_collection, tmp_path):
    again = testing.tiny_collection(tmp_path)
    for path in tiny_collection.folder.rglob("*.*"):
        assert path.read_bytes() == (again.folder / path.relative_to(tiny_collection.folder)).read_bytes()


@pytest.mark.parametrize("architecture", ["bert", "t5"])
def test_the_models_are_the_same_each_time_unless_another_seed_is_given(tmp_path, architecture):
    drawn = torch.random.get_rng_state()
    for name, seed in (("one", 0), ("same", 0), ("other", 1)):
        testing.tiny_model(tmp_path / name, architecture=architecture, seed=seed, width=8)
    assert torch.equal(torch.random.get_rng_state(), drawn)
    one, same, other = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("one", "same", "other"))
    assert one == same
    assert one != other


def test_the_tokenizer_knows_the_words_of_the_collection(tiny_collection, tiny_model):
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    for passage in open_corpus(tiny_collection.corpus):
        ids = tokenizer(passage.title, passage.text)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert len(ids) < 60
