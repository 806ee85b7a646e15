"""The vocabulary head: the model's own, whole, of every architecture; and never a random one in silence."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch
import transformers

from retrievalkit import registry
from retrievalkit.contracts import Needs
from retrievalkit.errors import InputError, UnsupportedError
from retrievalkit.model.pretrained import quiet

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
def test_logits_are_those_of_the_model_itself(architecture, model_of):
    """The head in two parts gives what the class of transformers with its head gives."""
    encoder = prepared(model_of(architecture))
    batch, states = states_of(encoder)
    kind = transformers.AutoModelForCausalLM if architecture == "llama" else transformers.AutoModelForMaskedLM
    with quiet():
        whole = kind.from_pretrained(model_of(architecture)).eval()
    expected = whole(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
    torch.testing.assert_close(states.head(states.last), expected)
    assert states.head.weight.shape[0] == encoder.info.vocabulary_size


@pytest.mark.parametrize("architecture", WITH_HEAD)
def test_a_saved_head_is_loaded_again(architecture, model_of, tmp_path):
    """Changed by training, the head is in the folder, which transformers reads as an ordinary one."""
    encoder = prepared(model_of(architecture))
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter += 0.01
    _, before = states_of(encoder)
    encoder.save(tmp_path)
    _, after = states_of(prepared(str(tmp_path)))
    assert torch.equal(before.head(before.last), after.head(after.last))


def test_gradient_reaches_the_head_and_the_embeddings_it_is_tied_to(model_of):
    """BERT's projection is its word embeddings: one tensor, one gradient."""
    encoder = prepared(model_of("bert"))
    _, states = states_of(encoder)
    torch.autograd.backward(states.head(states.last).sum())
    assert encoder.model.bert.embeddings.word_embeddings.weight is states.head.weight
    assert states.head.weight.grad.abs().sum() > 0
    assert encoder.model.cls.predictions.transform.dense.weight.grad.abs().sum() > 0


def test_without_need_there_is_no_head(model_of):
    """A pooler that does not ask for it gets None, and the model is loaded without it."""
    _, states = states_of(prepared(model_of("bert"), Needs()))
    assert states.head is None


def test_an_encoder_of_an_encoder_decoder_model_has_no_head(model_of, tmp_path):
    """T5's head belongs to its decoder."""
    with pytest.raises(UnsupportedError, match=r"vocabulary head, and the architecture 't5' has none"):
        prepared(testing.tiny_model(tmp_path, architecture="t5"))


@pytest.fixture
def headless(model_of, tmp_path):
    """A BERT whose weights lack the head, as most sentence encoders do."""
    with quiet():
        transformers.BertModel.from_pretrained(model_of("bert"), add_pooling_layer=False).save_pretrained(tmp_path)
        transformers.AutoTokenizer.from_pretrained(model_of("bert")).save_pretrained(tmp_path)
    return str(tmp_path)


def test_a_missing_head_is_never_random_in_silence(headless):
    """The message names the way to train one, and the flag that allows a random one."""
    with pytest.raises(InputError, match=r"lack it.*rkit pretrain --pretrainer mlm.*encoder.new_vocabulary_head=true"):
        prepared(headless)
    prepared(headless, Needs())


def test_a_new_head_starts_at_a_level(headless):
    """The logits are lower by it, and what a softmax makes of them is the same."""
    heads = []
    for bias in (0.0, -6.0):
        transformers.set_seed(3)
        heads.append(states_of(prepared(headless, new_vocabulary_head=True, new_head_bias=bias))[1])
    plain, low = (states.head(states.last) for states in heads)
    torch.testing.assert_close(low, plain - 6)
    torch.testing.assert_close(low.softmax(-1), plain.softmax(-1))


def test_a_trained_head_keeps_its_level(model_of):
    """A checkpoint is opened with the options that it was trained with."""
    _, plain = states_of(prepared(model_of("bert")))
    _, after = states_of(prepared(model_of("bert"), new_head_bias=-6.0))
    assert torch.equal(plain.head(plain.last), after.head(after.last))


def test_a_level_needs_a_bias(model_of, tmp_path):
    """Llama's head is a projection alone."""
    with quiet():
        transformers.AutoModel.from_pretrained(model_of("llama")).save_pretrained(tmp_path)
        transformers.AutoTokenizer.from_pretrained(model_of("llama")).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedError, match=r"new_head_bias is -6\.0, and the new vocabulary head .* has no bias"):
        prepared(str(tmp_path), new_vocabulary_head=True, new_head_bias=-6.0)


def test_a_new_head_starts_from_the_word_embeddings(headless, tmp_path_factory):
    """Allowed by the flag, its projection is the embeddings'; saved, it is an ordinary head."""
    encoder = prepared(headless, new_vocabulary_head=True)
    _, states = states_of(encoder)
    assert states.head.weight is encoder.model.get_input_embeddings().weight
    folder = tmp_path_factory.mktemp("saved")
    encoder.save(folder)
    _, after = states_of(prepared(str(folder)))
    assert torch.equal(states.head(states.last), after.head(after.last))
