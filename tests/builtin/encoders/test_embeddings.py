"""Embeddings apart from the layers are what the first layer is given, in every architecture."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch
import transformers

from retrievalkit import registry
from retrievalkit.contracts import Needs
from retrievalkit.errors import UnsupportedError
from retrievalkit.model.pretrained import quiet

TEXTS = [("", "what is the capital of france"), ("", "rome")]
NARROW = {"embedding_size": 12, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
OTHERS = {
    "albert": ("AlbertForMaskedLM", NARROW),
    "electra": ("ElectraForMaskedLM", NARROW),
    "deberta-v2": ("DebertaV2ForMaskedLM", {name: value for name, value in NARROW.items() if "emb" not in name}),
}


def model_of(folder, architecture):
    """A tiny model, also of architectures that `testing` lacks."""
    testing.tiny_model(folder, architecture=architecture if architecture in testing.ARCHITECTURES else "bert")
    if architecture in OTHERS:
        name, sizes = OTHERS[architecture]
        config = transformers.AutoConfig.for_model(architecture, vocab_size=264, intermediate_size=64, **sizes)
        with quiet(), torch.random.fork_rng(devices=[]):
            getattr(transformers, name)(config).save_pretrained(folder)
    return str(folder)


def encoder_of(folder, *, head=True):
    encoder = registry.create("encoder", "transformer", folder, new_vocabulary_head=True)
    encoder.prepare(Needs(vocabulary_head=head))
    return encoder.eval()


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "mpnet", "modernbert", *OTHERS])
def test_embeddings_are_layer_0_and_are_trained(tmp_path, architecture, head):
    encoder = encoder_of(model_of(tmp_path, architecture), head=head)
    batch = encoder.collate(encoder.tokenize(TEXTS, "document"), "document")
    found = encoder.embed(batch)
    real = batch.attention_mask.bool()
    torch.testing.assert_close(found[real], encoder(batch, (0,)).layers[0][real])
    found.sum().backward()
    assert encoder.model.get_input_embeddings().weight.grad.any()


@pytest.mark.parametrize("architecture", ["t5", "llama"])
def test_an_architecture_without_such_a_module_is_refused(tmp_path, architecture):
    encoder = encoder_of(model_of(tmp_path, architecture), head=False)
    batch = encoder.collate(encoder.tokenize(TEXTS, "document"), "document")
    with pytest.raises(UnsupportedError, match=f"'{architecture}' has no module for them"):
        encoder.embed(batch)
