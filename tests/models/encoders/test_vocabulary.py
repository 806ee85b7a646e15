"""Pieces, words and special tokens of the kinds of tokenizers that there are."""

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
LEARNT_FROM = [TEXT, "happen things believable un do", "it's what happens to things that one does not believe"] * 3


def fast(backend, trainer, **names):
    backend.train_from_iterator(LEARNT_FROM, trainer)
    special = {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"} | names
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, **special)


SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_level():
    """As RoBERTa's."""
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    made = fast(backend, trainers.BpeTrainer(vocab_size=50, special_tokens=SPECIAL), cls_token="<s>", sep_token="</s>")
    made.backend_tokenizer.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return made


def sentence_piece():
    """As XLM-R's and T5's."""
    backend = tokenizers.Tokenizer(models.Unigram())
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(vocab_size=60, special_tokens=SPECIAL, unk_token="<unk>")
    made = fast(backend, trainer, eos_token="</s>")
    made.backend_tokenizer.post_processor = processors.TemplateProcessing("$A </s>", special_tokens=[("</s>", 2)])
    return made


def sentence_piece_without_words():
    """As Llama 2's, which parts no words before it merges."""
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    made = fast(backend, trainers.BpeTrainer(vocab_size=60, special_tokens=SPECIAL))
    made.backend_tokenizer.pre_tokenizer = None
    return made


def word_piece():
    """As BERT's."""
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
def test_words_are_whole_in_every_kind_of_vocabulary(make, words):
    tokenizer = make()
    ((pieces, _),) = vocabulary_of(tokenizer).split([TEXT])
    assert len(pieces) > len(words), "some words are several tokens"
    assert words_of(tokenizer, TEXT) == words


@pytest.mark.parametrize("make", [word_piece, byte_level, sentence_piece, sentence_piece_without_words])
def test_pieces_with_special_tokens_are_what_the_tokenizer_makes(make):
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


def test_special_tokens_that_are_written_in_a_text_are_left_out():
    tokenizer = word_piece()
    ((pieces, ends),) = vocabulary_of(tokenizer).split(["the [SEP] language [MASK] is"])
    assert tokenizer.convert_ids_to_tokens(pieces.ids) == ["the", "language", "is"]
    assert list(ends) == [3, 18, 28]


@pytest.mark.parametrize("architecture", testing.ARCHITECTURES)
def test_encoders_give_their_vocabulary(tmp_path, architecture):
    encoder = registry.create("encoder", "transformer", testing.tiny_model(tmp_path, architecture=architecture))
    wrapped = {"t5": [7, 3], "llama": [7]}.get(architecture, [2, 7, 3])
    assert encoder.vocabulary().wrap([7]) == wrapped
