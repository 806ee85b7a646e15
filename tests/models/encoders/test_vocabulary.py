"""Pieces, words and special tokens of tokenizers of all kinds."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import tokenizers
import transformers
from retrievalkit_testing.samples import tiny_tokenizer
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

from retrievalkit import registry
from retrievalkit.models.encoders.transformer import vocabulary_of

TEXT = "Unbelievable things, don't happen."
TRAINING_TEXTS = [TEXT, "happen things believable un do", "it's what happens to things that one does not believe"] * 3


def fast(backend, trainer, **names):
    backend.train_from_iterator(TRAINING_TEXTS, trainer)
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"} | names
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_level():
    """Train a byte-level BPE tokenizer, like RoBERTa's."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=50, special_tokens=SPECIAL)
    tokenizer = fast(backend, trainer, cls_token="<s>", sep_token="</s>")
    tokenizer.backend_tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return tokenizer


def sentence_piece():
    """Train a unigram tokenizer, like XLM-R's and T5's."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=SPECIAL, unk_token="<unk>")
    tokenizer = fast(backend, trainer, eos_token="</s>")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return tokenizer


def sentence_piece_without_words():
    """Train a BPE tokenizer that does not split texts into words first, like Llama 2's."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer = fast(backend, trainers.BpeTrainer(vocab_size=60, special_tokens=SPECIAL))
    tokenizer.backend_tokenizer.pre_tokenizer = None
    return tokenizer


def word_piece():
    """Return a WordPiece tokenizer, like BERT's."""
    return tiny_tokenizer("bert")


def words_of(tokenizer, text):
    ((pieces, ends),) = vocabulary_of(tokenizer).split([text])
    starts = [0, *ends]
    return [text[starts[word.start] : starts[word.stop]].strip() for word in pieces.words()]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (word_piece, ["Unbelievable", "things", ",", "don", "'", "t", "happen", "."]),
        (byte_level, ["Unbelievable", "things", ",", "don", "'t", "happen", "."]),
        (sentence_piece, ["Unbelievable", "things,", "don't", "happen."]),
        (sentence_piece_without_words, ["Unbelievable", "things,", "don't", "happen."]),
    ],
)
def test_all_pieces_of_a_word_belong_together(make, words):
    tokenizer = make()
    ((pieces, _),) = vocabulary_of(tokenizer).split([TEXT])
    assert len(pieces) > len(words), "some words are several tokens"
    assert words_of(tokenizer, TEXT) == words


@pytest.mark.parametrize("make", [word_piece, byte_level, sentence_piece, sentence_piece_without_words])
def test_wrapped_pieces_equal_the_output_of_the_tokenizer(make):
    tokenizer = make()
    vocabulary = vocabulary_of(tokenizer)
    ((pieces, ends), (empty, _)) = vocabulary.split([TEXT, ""])
    assert vocabulary.wrap(pieces.ids) == tokenizer(TEXT)["input_ids"]
    assert len(empty) == 0
    assert list(ends) == sorted(ends)
    assert len(ends) == len(pieces.ids) == len(pieces.starts)
    assert vocabulary.mask == tokenizer.mask_token_id
    special = set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    assert set(vocabulary.ordinary) == set(range(len(tokenizer))) - special
    assert vocabulary.special_tokens == len(tokenizer("")["input_ids"])


def test_truncation_and_padding_of_an_earlier_call_have_no_effect():
    tokenizer = word_piece()
    tokenizer(TEXT, truncation=True, max_length=5, padding="max_length")
    assert words_of(tokenizer, TEXT)[-1] == "."


def test_special_tokens_in_a_text_are_dropped():
    tokenizer = word_piece()
    ((pieces, ends),) = vocabulary_of(tokenizer).split(["the [SEP] language [MASK] is"])
    assert tokenizer.convert_ids_to_tokens(pieces.ids) == ["the", "language", "is"]
    assert list(ends) == [3, 18, 28]


@pytest.mark.parametrize("architecture", testing.ARCHITECTURES)
def test_the_vocabulary_of_an_encoder_adds_its_special_tokens(tmp_path, architecture):
    encoder = registry.create("encoder", "transformer", testing.tiny_model(tmp_path, architecture=architecture))
    wrapped = {"t5": [7, 3], "llama": [7]}.get(architecture, [2, 7, 3])
    assert encoder.vocabulary().wrap([7]) == wrapped
