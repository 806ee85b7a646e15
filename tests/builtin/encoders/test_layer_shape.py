"""What an encoder tells of its layers and its words, for decoders of pre-training."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch
import transformers

from retrievalkit import registry
from retrievalkit.builtin.encoders.architectures import layer_shape
from retrievalkit.contracts import Encoder, EncoderInfo, Needs
from retrievalkit.errors import UnsupportedError

ARCHITECTURES = ["bert", "roberta", "distilbert", "mpnet", "modernbert", "t5", "llama"]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_shape_is_that_of_the_configuration(architecture, tmp_path):
    """`testing.tiny_model` has two heads, and a feed-forward part of twice the width."""
    encoder = registry.create("encoder", "transformer", testing.tiny_model(tmp_path, architecture=architecture))
    shape = encoder.layer_shape()
    assert (shape.heads, shape.inner) == (2, 64)
    dropped = {"modernbert": 0.0, "llama": 0.0}.get(architecture, 0.1)
    assert shape.dropout == dropped
    value = torch.tensor([-1.0, 2.0])
    expected = {"t5": torch.relu, "llama": torch.nn.functional.silu}.get(architecture, torch.nn.functional.gelu)
    torch.testing.assert_close(shape.activation(value), expected(value))


def test_dropout_that_is_set_is_that_of_the_shape(tiny_model):
    shape = registry.create("encoder", "transformer", tiny_model, dropout=0.3).layer_shape()
    assert (shape.dropout, shape.attention_dropout) == (0.3, 0.3)


def test_settings_that_a_configuration_lacks_are_those_of_gpt2():
    shape = layer_shape(transformers.GPT2Config(n_embd=24, n_head=3))
    assert (shape.heads, shape.inner, shape.dropout) == (3, 96, 0.0)


def test_an_encoder_without_a_layer_shape_has_berts():
    """And no words, which is said."""

    class Silent(Encoder):
        info = EncoderInfo(768, 12, 10)
        tokenize = collate = forward = save = None

    shape = Silent().layer_shape()
    assert (shape.heads, shape.inner, shape.dropout, shape.attention_dropout) == (12, 3072, 0.1, 0.1)
    with pytest.raises(UnsupportedError, match="Silent has no vectors of words"):
        Silent().word_embeddings()


def test_word_embeddings_are_the_models_input_embeddings(tiny_model):
    encoder = registry.create("encoder", "transformer", tiny_model)
    encoder.prepare(Needs(vocabulary_head=True))
    assert encoder.word_embeddings() is encoder.model.bert.embeddings.word_embeddings.weight


def test_word_embeddings_narrower_than_the_states_are_refused(tmp_path):
    testing.tiny_model(tmp_path)
    sizes = {"embedding_size": 12, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.AutoConfig.for_model("electra", vocab_size=264, intermediate_size=64, **sizes)
    transformers.ElectraForMaskedLM(config).save_pretrained(tmp_path)
    encoder = registry.create("encoder", "transformer", str(tmp_path))
    encoder.prepare(Needs(vocabulary_head=True))
    with pytest.raises(UnsupportedError, match=r"as wide as the hidden states \(32\) .* are 12 wide"):
        encoder.word_embeddings()
