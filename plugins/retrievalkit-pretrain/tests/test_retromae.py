"""The pretrainer `retromae`: the equations of the decoder, the attention of its positions, the loss."""

from __future__ import annotations

import pytest
import retrievalkit_testing as testing
import torch
from retrievalkit_pretrain.retromae import EnhancedDecoder
from torch.nn.functional import cross_entropy, gelu, layer_norm

from retrievalkit.contracts import LayerShape
from retrievalkit.errors import UnsupportedError

WIDTH = 12


def decoder(**options):
    torch.manual_seed(1)
    shape = LayerShape(
        **({"heads": 3, "inner": 20, "activation": gelu, "dropout": 0.0, "attention_dropout": 0.0} | options)
    )
    module = EnhancedDecoder(WIDTH, 9, shape).double()
    for parameter in module.parameters():  # for norms and biases other than 1 and 0
        torch.nn.init.normal_(parameter, std=0.5)
    return module


def reference(own, vector, embeddings, visible):
    """Compute the decoder for a text, a query and a head at a time."""

    def linear(part, states):
        return states @ part.weight.T + part.bias

    def norm(part, states):
        return layer_norm(states, (WIDTH,), part.weight, part.bias)

    rows = []
    for text in range(len(embeddings)):
        keys = torch.stack([vector[text, 0], *embeddings[text, 1:]])
        for place in range(len(keys)):
            query = own.positions.weight[place] + vector[text, 0]
            projected, matched, values = linear(own.query, query), linear(own.key, keys), linear(own.value, keys)
            heads = []
            for head in range(3):
                part = slice(4 * head, 4 * head + 4)
                others = visible[text, place]
                weights = (matched[others][:, part] @ projected[part] / 4**0.5).softmax(0)
                heads.append(weights @ values[others][:, part])
            states = norm(own.attention_norm, query + linear(own.output, torch.cat(heads)))
            rows.append(norm(own.norm, states + linear(own.outer, gelu(linear(own.inner, states)))))
    return torch.stack(rows).view_as(embeddings)


def test_the_decoder_equals_an_independent_reference():
    own = decoder()
    vector, embeddings = torch.randn(2, 1, WIDTH).double(), torch.randn(2, 5, WIDTH).double()
    visible = torch.rand(2, 5, 5) > 0.5
    visible[:, :, 0] = True
    torch.testing.assert_close(own(vector, embeddings, visible), reference(own, vector, embeddings, visible))


def test_each_position_attends_to_the_vector_and_a_random_part_of_the_others(pretrainer_of):
    pretrainer = pretrainer_of("retromae", decoder_mask_ratio=0.3)
    torch.manual_seed(0)
    attention_mask = torch.tensor([[1] * 40, [1] * 30 + [0] * 10])
    visible = pretrainer._visible(attention_mask)
    assert visible[:, :, 0].all()
    assert not visible[:, range(1, 40), range(1, 40)].any(), "a position attends to itself"
    assert not visible[1, :, 30:].any(), "a position attends to padding"
    others = visible[0, :, 1:][~torch.eye(40, dtype=torch.bool)[:, 1:]]
    assert others.float().mean().item() == pytest.approx(0.7, abs=0.03)
    assert len({tuple(row) for row in visible[0, :, 1:].tolist()}) == 40, "positions attend to the same others"
    assert not torch.equal(visible, pretrainer._visible(attention_mask)), "the positions are not drawn again"


def test_the_loss_is_the_sum_of_encoder_and_decoder(pretrainer_of, loss_of):
    pretrainer = pretrainer_of("retromae")
    value, batch = loss_of(pretrainer)
    masked, texts, model = batch["masked"], batch["texts"], pretrainer.encoder.model
    output = model(masked.input_ids, masked.attention_mask, labels=batch["labels"], output_hidden_states=True)
    embeddings = model(texts.input_ids, texts.attention_mask, output_hidden_states=True).hidden_states[0]
    torch.manual_seed(0)
    visible = pretrainer._visible(texts.attention_mask)
    logits = model.cls(pretrainer.decoder(output.hidden_states[-1][:, :1], embeddings, visible))
    ordinary = texts.attention_mask.bool() & (texts.input_ids != 2) & (texts.input_ids != 3)
    decoded = cross_entropy(logits[ordinary], texts.input_ids[ordinary])
    torch.testing.assert_close(value.terms["encoder_mlm"], output.loss)
    torch.testing.assert_close(value.terms["decoder"], decoded)
    torch.testing.assert_close(value.total, output.loss + decoded)


@pytest.mark.parametrize("architecture", ["roberta", "distilbert", "mpnet", "modernbert"])
def test_other_architectures_are_supported(pretrainer_of, loss_of, tmp_path, architecture):
    pretrainer = pretrainer_of("retromae", testing.tiny_model(tmp_path, architecture=architecture))
    value, _ = loss_of(pretrainer)
    value.total.backward()
    assert value.total.isfinite()


def test_a_tokenizer_without_a_cls_token_is_refused(pretrainer_of, tmp_path):
    with pytest.raises(UnsupportedError, match="this tokenizer adds none"):
        pretrainer_of("retromae", testing.tiny_model(tmp_path, architecture="llama"))
