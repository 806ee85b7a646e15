"""The decoders: their layers are those of BERT and of GPT-2, how they start, and what each place sees."""

from __future__ import annotations

import pytest
import torch
import transformers
from retrievalkit_cotmae.decoders import Decoder
from transformers.models.bert.modeling_bert import BertLayer
from transformers.models.gpt2.modeling_gpt2 import GPT2Block

from retrievalkit.contracts import LayerShape

WIDTH, HEADS, TOKENS = 12, 3, 6


def decoder(*, causal, dropout=0.0, layers=1, shaken=True, **options):
    torch.manual_seed(1)
    shape = LayerShape(HEADS, 20, torch.nn.functional.gelu, dropout, dropout)
    built = Decoder(WIDTH, shape, layers=layers, causal=causal, **options)
    for parameter in built.parameters() if shaken else ():  # so that norms and biases take part
        torch.nn.init.normal_(parameter, std=0.5)
    return built.eval()


def inputs(texts=2):
    generator = torch.Generator().manual_seed(0)
    vectors = torch.randn(texts, WIDTH, generator=generator)
    return vectors, torch.randn(texts, TOKENS, WIDTH, generator=generator), torch.ones(texts, TOKENS).long()


def parts_of(layer):
    """The weights of query, key and value, and their biases."""
    return layer.self_attn.in_proj_weight.chunk(3), layer.self_attn.in_proj_bias.chunk(3)


def bert_layer(layer):
    """transformers' layer of BERT with the same weights."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": HEADS, "intermediate_size": 20, "layer_norm_eps": 1e-5}
    block = BertLayer(transformers.BertConfig(**sizes, attn_implementation="eager")).eval()
    (query, key, value), biases = parts_of(layer)
    attention = block.attention
    pairs = zip((attention.self.query, attention.self.key, attention.self.value), (query, key, value), strict=True)
    with torch.no_grad():
        for (module, weight), bias in zip(pairs, biases, strict=True):
            module.weight.copy_(weight), module.bias.copy_(bias)
    attention.output.dense, attention.output.LayerNorm = layer.self_attn.out_proj, layer.norm1
    block.intermediate.dense, block.output.dense, block.output.LayerNorm = layer.linear1, layer.linear2, layer.norm2
    return block


def gpt2_block(layer):
    """transformers' block of GPT-2 with the same weights, which it holds the other way round."""
    config = transformers.GPT2Config(
        n_embd=WIDTH, n_head=HEADS, n_inner=20, activation_function="gelu", attn_implementation="eager"
    )
    block = GPT2Block(config, layer_idx=0).eval()
    pairs = {
        block.attn.c_attn: (layer.self_attn.in_proj_weight, layer.self_attn.in_proj_bias),
        block.attn.c_proj: (layer.self_attn.out_proj.weight, layer.self_attn.out_proj.bias),
        block.mlp.c_fc: (layer.linear1.weight, layer.linear1.bias),
        block.mlp.c_proj: (layer.linear2.weight, layer.linear2.bias),
    }
    with torch.no_grad():
        for module, (weight, bias) in pairs.items():
            module.weight.copy_(weight.T), module.bias.copy_(bias)
    block.ln_1, block.ln_2 = layer.norm1, layer.norm2
    return block


def first(output):
    """What transformers' layers return is a tuple in some versions."""
    return output[0] if isinstance(output, tuple) else output


def replaced(vectors, embeddings):
    return torch.cat([vectors[:, None], embeddings[:, 1:]], dim=1)


def test_the_ae_decoder_is_a_layer_of_bert():
    own = decoder(causal=False)
    vectors, embeddings, mask = inputs()
    mask[1, 4:] = 0
    hidden = torch.zeros(2, 1, 1, TOKENS).masked_fill(mask[:, None, None] == 0, -1e9)
    expected = first(bert_layer(own.layers[0])(replaced(vectors, embeddings), hidden))
    states = own(vectors, embeddings, mask)
    torch.testing.assert_close(states[0], expected[0])
    torch.testing.assert_close(states[1, :4], expected[1, :4])


def test_the_ar_decoder_is_a_block_of_gpt2_and_a_norm():
    own = decoder(causal=True)
    vectors, embeddings, mask = inputs()
    ahead = torch.full((TOKENS, TOKENS), -1e9).triu(1)[None, None]
    block = first(gpt2_block(own.layers[0])(replaced(vectors, embeddings), attention_mask=ahead))
    torch.testing.assert_close(own(vectors, embeddings, mask), own.norm(block))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("training", [False, True])
def test_positions_attend_to_the_right_positions(causal, training):
    """The vector in the first place; AE all places, AR none that follow; neither padding; not what [CLS] was."""
    own = decoder(causal=causal).train(training)
    vectors, embeddings, mask = inputs(1)
    mask[0, 5] = 0

    def changed(vectors, embeddings):
        with torch.set_grad_enabled(training):  # without gradients, torch's layers take another way
            states, other = (own(*pair, mask) for pair in (inputs(1)[:2], (vectors, embeddings)))
        return [not torch.allclose(state, another) for state, another in zip(states[0, :5], other[0, :5], strict=True)]

    def changed_by(place):
        other = embeddings.clone()
        other[0, place] += torch.linspace(0, 1, WIDTH)
        return changed(vectors, other)

    assert changed_by(0) == [False] * 5
    assert changed_by(2) == ([False, False, True, True, True] if causal else [True] * 5)
    assert changed_by(5) == [False] * 5
    assert changed(vectors.flip(1), embeddings) == [True] * 5


@pytest.mark.parametrize(("layers", "small"), [(1, 0.02 / 2**0.5), (2, 0.01)])
def test_weights_start_small(layers, small):
    """N(0, 0.02), biases 0, norms 1; what GPT-2's block adds to its input smaller, by the number of layers."""
    shape = LayerShape(4, 1024, torch.nn.functional.gelu, 0.1, 0.1)
    for causal in (False, True):
        own = Decoder(256, shape, layers=layers, causal=causal, positions=64)
        for name, parameter in own.named_parameters():
            if name.endswith("bias"):
                assert not parameter.any(), name
            elif parameter.dim() == 1:
                assert (parameter == 1.0).all(), name
            else:
                outputs = name.endswith(("out_proj.weight", "linear2.weight"))
                expected = small if causal and outputs else 0.02
                assert parameter.std().item() == pytest.approx(expected, rel=0.05), name
                assert abs(parameter.mean().item()) < 0.001, name


def test_the_decoder_learns_positions_if_embeddings_have_none():
    own = decoder(causal=False, positions=9)
    vectors, embeddings, mask = inputs()
    states = own(vectors, embeddings, mask)
    with_places = embeddings + own.positions.weight[:TOKENS]
    own.positions = None
    torch.testing.assert_close(own(vectors, with_places, mask), states)
