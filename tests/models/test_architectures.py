"""Embeddings, layer shapes and vocabulary heads of all architectures equal those of transformers."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch
import transformers

from retrievalkit import registry
from retrievalkit.contracts import Needs
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.models.architectures import layer_shape
from retrievalkit.models.pretrained import quiet

TEXTS = [("", "what is the capital of france"), ("Peru", "The seat of government is the city of Lima.")]
WITH_HEAD = ["bert", "roberta", "distilbert", "mpnet", "modernbert", "llama"]
NEEDS = Needs(vocabulary_head=True)


def prepared(model, needs=NEEDS, **options):
    encoder = registry.create("encoder", "transformer", model, **options)
    encoder.prepare(needs)
    return encoder.eval()


def states_of(encoder):
    batch = encoder.collate(encoder.tokenize(TEXTS, "document"), "document")
    return batch, encoder(batch, [encoder.info.layers])


@pytest.mark.parametrize("architecture", WITH_HEAD)
def test_logits_equal_those_of_transformers(architecture, model_of):
    encoder = prepared(model_of(architecture))
    batch, states = states_of(encoder)
    kind = transformers.AutoModelForCausalLM if architecture == "llama" else transformers.AutoModelForMaskedLM
    with quiet():
        whole = kind.from_pretrained(model_of(architecture)).eval()
    expected = whole(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    torch.testing.assert_close(states.head(states.last), expected)
    assert states.head.weight.shape[0] == encoder.info.vocabulary_size


def test_the_head_of_an_encoder_decoder_model_is_refused(model_of, tmp_path):
    with pytest.raises(UnsupportedError, match=r"the vocabulary head of the architecture 't5' is not supported"):
        prepared(testing.tiny_model(tmp_path, architecture="t5"))


@pytest.fixture
def headless(model_of, tmp_path):
    """A BERT without the vocabulary head, like most sentence encoders."""
    with quiet():
        transformers.BertModel.from_pretrained(model_of("bert"), add_pooling_layer=False).save_pretrained(tmp_path)
        transformers.AutoTokenizer.from_pretrained(model_of("bert")).save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_missing_head_is_refused(headless):
    with pytest.raises(InputError, match=r"lack it.*rkit pretrain --pretrainer mlm.*encoder.new_vocabulary_head=true"):
        prepared(headless)
    prepared(headless, Needs())


def test_new_head_bias_shifts_the_logits(headless):
    heads = []
    for bias in (0.0, -6.0):
        transformers.set_seed(3)
        heads.append(states_of(prepared(headless, new_vocabulary_head=True, new_head_bias=bias))[1])
    plain, low = (states.head(states.last) for states in heads)
    torch.testing.assert_close(low, plain - 6)
    torch.testing.assert_close(low.softmax(-1), plain.softmax(-1))


def test_new_head_bias_does_not_change_a_trained_head(model_of):
    """A checkpoint is loaded with the options of its training."""
    _, plain = states_of(prepared(model_of("bert")))
    _, after = states_of(prepared(model_of("bert"), new_head_bias=-6.0))
    assert torch.equal(plain.head(plain.last), after.head(after.last))


def test_new_head_bias_needs_a_head_with_bias(model_of, tmp_path):
    with quiet():
        transformers.AutoModel.from_pretrained(model_of("llama")).save_pretrained(tmp_path)
        transformers.AutoTokenizer.from_pretrained(model_of("llama")).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match=r"new_head_bias is -6\.0, and the new head .* has no bias"):
        prepared(str(tmp_path), new_vocabulary_head=True, new_head_bias=-6.0)


def test_a_new_head_starts_from_the_word_embeddings(headless, tmp_path_factory):
    encoder = prepared(headless, new_vocabulary_head=True)
    _, states = states_of(encoder)
    assert states.head.weight is encoder.model.get_input_embeddings().weight
    folder = tmp_path_factory.mktemp("saved")
    encoder.save(folder)
    _, after = states_of(prepared(str(folder)))
    assert torch.equal(states.head(states.last), after.head(after.last))


NARROW = {"embedding_size": 12, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
OTHERS = {
    "albert": ("AlbertForMaskedLM", NARROW),
    "electra": ("ElectraForMaskedLM", NARROW),
    "deberta-v2": ("DebertaV2ForMaskedLM", {name: value for name, value in NARROW.items() if "emb" not in name}),
}


def narrow_model(folder, architecture):
    """Write a tiny model, also of architectures that `testing` lacks."""
    testing.tiny_model(folder, architecture=architecture if architecture in testing.ARCHITECTURES else "bert")
    if architecture in OTHERS:
        name, sizes = OTHERS[architecture]
        config = transformers.AutoConfig.for_model(architecture, vocab_size=264, intermediate_size=64, **sizes)
        with quiet(), torch.random.fork_rng(devices=[]):
            getattr(transformers, name)(config).save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("head", [True, False])
@pytest.mark.parametrize("architecture", ["bert", "roberta", "distilbert", "mpnet", "modernbert", *OTHERS])
def test_embeddings_are_layer_0_and_get_gradients(tmp_path, architecture, head):
    encoder = prepared(narrow_model(tmp_path, architecture), Needs(vocabulary_head=head), new_vocabulary_head=True)
    batch = encoder.collate(encoder.tokenize(TEXTS, "document"), "document")
    embeddings = encoder.embed(batch)
    real = batch.attention_mask.bool()
    torch.testing.assert_close(embeddings[real], encoder(batch, (0,)).layers[0][real])
    embeddings.sum().backward()
    assert encoder.model.get_input_embeddings().weight.grad.any()


@pytest.mark.parametrize("architecture", testing.ARCHITECTURES)
def test_layer_shapes_come_from_the_configuration(architecture, tmp_path):
    encoder = registry.create("encoder", "transformer", testing.tiny_model(tmp_path, architecture=architecture))
    shape = encoder.layer_shape()
    assert (shape.heads, shape.inner) == (2, 64)
    dropped = {"modernbert": 0.0, "llama": 0.0}.get(architecture, 0.1)
    assert shape.dropout == dropped
    value = torch.tensor([-1.0, 2.0])
    expected = {"t5": torch.relu, "llama": torch.nn.functional.silu}.get(architecture, torch.nn.functional.gelu)
    torch.testing.assert_close(shape.activation(value), expected(value))


def test_the_option_dropout_sets_the_dropout_of_layers(tiny_model):
    shape = registry.create("encoder", "transformer", tiny_model, dropout=0.3).layer_shape()
    assert (shape.dropout, shape.attention_dropout) == (0.3, 0.3)


def test_defaults_of_layer_shapes_are_gpt2s():
    shape = layer_shape(transformers.GPT2Config(n_embd=24, n_head=3))
    assert (shape.heads, shape.inner, shape.dropout) == (3, 96, 0.0)
