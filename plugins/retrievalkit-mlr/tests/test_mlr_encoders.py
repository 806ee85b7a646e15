"""BERT-like and T5 encoders: the poolers on what real architectures make, with small random weights."""

from __future__ import annotations

import pytest
import torch
import transformers
from retrievalkit_testing import check_loss, check_pooler

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, TokenStates

LAYERS = 3


def bert():
    config = transformers.BertConfig(
        vocab_size=30,
        hidden_size=8,
        num_hidden_layers=LAYERS,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
    )
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def t5():
    config = transformers.T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=16, num_layers=LAYERS, num_heads=2)
    return transformers.T5EncoderModel(config).eval()


# [CLS] is 1, [SEP] and </s> are 2, padding is 0.
TEXTS = {bert: [[1, 5, 6, 2], [1, 7, 8, 9, 10, 2]], t5: [[5, 6, 2], [7, 8, 9, 10, 2]]}


def states_of(model, texts, padded_to):
    ids = torch.tensor([text + [0] * (padded_to - len(text)) for text in texts])
    mask = (ids != 0).long()
    with torch.no_grad():
        hidden = model(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    return TokenStates(dict(enumerate(hidden)), mask, ids, (ids == 1) | (ids == 2))


@pytest.fixture(params=[bert, t5], ids=["bert", "t5"])
def kind(request):
    torch.manual_seed(0)
    return request.param


def test_the_vector_of_each_layer(kind):
    """BERT: the state at [CLS]. T5: the mean over real tokens, </s> included, of the raw states of each layer."""
    states = states_of(kind(), TEXTS[kind], 8)
    pooler = registry.create("pooler", "multi_layer", EncoderInfo(8, LAYERS, 30), layers="1,3")
    made = pooler(states, "document").vectors
    for row, text in enumerate(TEXTS[kind]):
        for index, layer in enumerate([3, 1]):
            hidden = states.layers[layer][row, : len(text)]
            torch.testing.assert_close(made[row, index], hidden[0] if kind is bert else hidden.mean(0))


@pytest.mark.parametrize("name", ["multi_layer", "self_contrastive", "layer_average", "scalar_mix"])
@pytest.mark.parametrize("options", [{"layers": "1,2"}, {"tokens": 3, "normalize": True}], ids=str)
def test_the_contract_is_kept(name, options, tiny_model):
    check_pooler(name, model=tiny_model, **options)


def test_the_contract_of_the_loss_is_kept():
    check_loss("self_contrastive", kept=0)
