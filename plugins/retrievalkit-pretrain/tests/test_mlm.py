"""The pretrainer `mlm`: its loss equals that of transformers, and its labels are the masked tokens."""

from __future__ import annotations

import random

import pytest
import retrievalkit_testing as testing
import torch

from retrievalkit import registry
from retrievalkit.contracts import Needs
from retrievalkit.errors import UnsupportedError


@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "mpnet", "modernbert"])
def test_the_loss_equals_that_of_transformers(pretrainer_of, loss_of, tmp_path, architecture):
    pretrainer = pretrainer_of("mlm", testing.tiny_model(tmp_path, architecture=architecture))
    value, batch = loss_of(pretrainer)
    texts, labels = batch["texts"], batch["labels"]
    expected = pretrainer.encoder.model(texts.input_ids, texts.attention_mask, labels=labels).loss
    torch.testing.assert_close(value.total, expected)
    assert value.terms == {"mlm": value.total}


def test_labels_are_the_masked_tokens_of_the_text(pretrainer_of, samples_of):
    pretrainer = pretrainer_of("mlm", mask_ratio=0.5, whole_words=False)
    samples = samples_of(pretrainer)
    batch = pretrainer.collate(samples, random.Random(0))
    texts, labels = batch["texts"], batch["labels"]
    assert texts.input_ids.shape == labels.shape
    for row, pieces in enumerate(samples):
        original = torch.tensor(pretrainer.vocabulary.wrap(pieces.ids))
        ids, own = texts.input_ids[row, : len(original)], labels[row, : len(original)]
        assert torch.equal(torch.where(own == -100, ids, own), original)
        assert (labels[row, len(original) :] == -100).all()
    assert (labels != -100).sum(dim=1).tolist() == [5, 2, 8], "half of 10, 3 and 15 tokens"


def test_a_tokenizer_without_a_mask_token_is_refused(tmp_path):
    encoder = registry.create("encoder", "transformer", testing.tiny_model(tmp_path, architecture="llama"))
    encoder.prepare(Needs(vocabulary_head=True))
    with pytest.raises(UnsupportedError, match="has no mask token"):
        registry.create("pretrainer", "mlm", encoder, 20)
