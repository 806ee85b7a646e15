"""Extra tokens in front of a text: their places, positions and embeddings, and their files."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file

from retrievalkit import registry
from retrievalkit.contracts import ExtraTokens, Needs
from retrievalkit.errors import InputError, UnsupportedError

TEXTS = [("", "what is the capital of france"), ("", "rome")]
EVERY = ["bert", "roberta", "distilbert", "mpnet", "modernbert", "t5", "llama"]
OFFSETS = {"roberta": 1, "mpnet": 2}


def prepared(model, seed=0, query=None, document=None, **options):
    encoder = registry.create("encoder", "transformer", model, **options)
    extra = {"query": query, "document": document}
    torch.manual_seed(seed)
    encoder.prepare(Needs(extra_tokens={side: tokens for side, tokens in extra.items() if tokens}))
    return encoder.eval()


def batch_of(encoder, side="document", texts=TEXTS):
    return encoder.collate(encoder.tokenize(texts, side), side)


def test_viewers_replace_the_first_token_and_share_its_position(model_of):
    """MVR, section 3.1: all viewers have position 0, and the text 1, 2, 3, ...; a query has a single viewer."""
    encoder = prepared(model_of("bert"), document=ExtraTokens(3), query=ExtraTokens(1))
    plain = registry.create("encoder", "transformer", model_of("bert"))
    plain.prepare(Needs())
    (ids,) = plain.tokenize(TEXTS[:1], "document")
    size = encoder.info.vocabulary_size
    batch = batch_of(encoder, texts=TEXTS[:1])
    assert batch.input_ids.tolist() == [[size + 1, size + 2, size + 3, *ids[1:]]]
    assert batch.extra.tolist() == [[0, 1, 2]]
    assert batch.special_mask[0].tolist() == [True] * 3 + [False] * (len(ids) - 2) + [True]
    assert batch.position_ids.tolist() == [[0, 0, 0, *range(1, len(ids))]]
    query = batch_of(encoder, "query", TEXTS[:1])
    assert query.input_ids.tolist() == [[size, *ids[1:]]]
    assert query.position_ids.tolist() == [[*range(len(ids))]]


@pytest.mark.parametrize("architecture", EVERY)
def test_the_model_gets_the_embeddings_and_positions_of_extra_tokens(architecture, model_of):
    position = None if architecture == "t5" else 0
    encoder = prepared(model_of(architecture), document=ExtraTokens(2, position=position))
    batch = batch_of(encoder, texts=TEXTS[:1])
    rows = encoder.model.get_input_embeddings()(batch.input_ids[:, 2:])
    embeddings = torch.cat([encoder.extra.new[None], rows], dim=1)
    inputs = {"inputs_embeds": embeddings, "attention_mask": batch.attention_mask}
    if position is not None:
        # The text starts at position 1 even without a [CLS] to replace (llama).
        text = torch.arange(1, embeddings.shape[1] - 1)
        inputs["position_ids"] = torch.cat([torch.zeros(2, dtype=torch.long), text])[None] + OFFSETS.get(
            architecture, 0
        )
    expected = encoder.model(**inputs).last_hidden_state
    torch.testing.assert_close(encoder(batch, [2]).last, expected)


def test_unused_rows_of_the_vocabulary_are_assigned_in_order(model_of):
    unused = {"source": "unused"}
    encoder = prepared(model_of("bert"), query=ExtraTokens(1, **unused), document=ExtraTokens(3, **unused))
    names = [encoder.tokenizer.convert_ids_to_tokens(encoder.extra.ids[side]) for side in ("query", "document")]
    assert names == [["[unused0]"], ["[unused1]", "[unused2]", "[unused3]"]]
    assert encoder.extra.new is None


@pytest.mark.parametrize(
    ("architecture", "tokens", "options", "message"),
    [
        ("bert", ExtraTokens(17, source="unused"), {}, "17 unused tokens, and the vocabulary has 16"),
        (
            "bert",
            ExtraTokens(8),
            {"document_length": 9},
            "8 extra tokens leave no room .* in document_length=9",
        ),
        ("bert", ExtraTokens(2, position=128), {}, "at position 128, and .* has the positions 0 to 127"),
        ("t5", ExtraTokens(2), {}, ".'t5'. takes no position numbers. Set the pooler's position=null"),
    ],
)
def test_unsupported_extra_tokens_are_refused(architecture, tokens, options, message, model_of):
    with pytest.raises(UnsupportedError, match=message):
        prepared(model_of(architecture), document=tokens, **options)


def test_new_embeddings_are_initialised_saved_and_loaded(model_of, tmp_path):
    encoder = prepared(model_of("bert"), document=ExtraTokens(60, standard_deviation=0.5))
    assert encoder.extra.new.std().item() == pytest.approx(0.5, rel=0.1)
    encoder.save(tmp_path)
    stored = load_file(tmp_path / "extra_tokens.safetensors")["new"]
    again = prepared(str(tmp_path), seed=1, document=ExtraTokens(60))
    assert torch.equal(again.extra.new, stored)
    assert torch.equal(again(batch_of(again), [2]).last, encoder(batch_of(encoder), [2]).last)
    with pytest.raises(InputError, match=r"\(60, 32\) of extra tokens, and the pooler needs \(4, 32\)"):
        prepared(str(tmp_path), document=ExtraTokens(4))


def test_only_used_new_embeddings_get_gradients(model_of):
    encoder = prepared(model_of("bert"), query=ExtraTokens(1), document=ExtraTokens(2))
    torch.autograd.backward(encoder(batch_of(encoder), [2]).last.square().sum())
    assert encoder.extra.new.grad[0].abs().sum() == 0
    assert (encoder.extra.new.grad[1:].abs().sum(dim=1) > 0).all()


def test_texts_are_truncated_to_fit_extra_tokens(model_of):
    encoder = prepared(model_of("bert"), document=ExtraTokens(4), document_length=8)
    assert [len(ids) for ids in encoder.tokenize(TEXTS, "document")] == [8, 6]


def test_mask_filling_needs_a_mask_token(model_of):
    encoder = registry.create("encoder", "transformer", model_of("llama"))
    with pytest.raises(UnsupportedError, match="has none"):
        encoder.prepare(Needs(mask_filled=("query",)))


def test_ids_of_tokens(model_of):
    encoder = prepared(model_of("bert"))
    vocabulary = encoder.tokenizer.get_vocab()
    assert encoder.token_ids([".", ",", "~"]) == sorted([vocabulary["."], vocabulary[","]])
    assert encoder.token_ids([]) == []
