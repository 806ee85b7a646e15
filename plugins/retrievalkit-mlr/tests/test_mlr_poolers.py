"""The poolers: which vectors, how they are joined, and which options are refused; the kit checks the rest."""

from __future__ import annotations

import math

import pytest
import torch
import transformers
from retrievalkit_testing import check

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, Representation, TokenStates
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.scoring import scores

POOLERS = ["multi_layer", "self_contrastive", "layer_average", "scalar_mix"]
every_pooler = pytest.mark.parametrize("name", POOLERS)
CLS, NO_CLS = [True, True], [False, False]


@pytest.fixture
def info():
    """An encoder of 4 layers and width 3."""
    return EncoderInfo(width=3, layers=4, vocabulary_size=50)


@pytest.fixture
def make_states():
    """Random token states (layers 0 to 4, width 3) for texts of given lengths; `special`: which begin with [CLS]."""

    def make(lengths, *, special=CLS):
        mask = (torch.arange(6) < torch.tensor(lengths)[:, None]).long()
        generator = torch.Generator().manual_seed(0)
        # What stands at padding must not matter, so it is large.
        layers = {
            layer: torch.randn(len(lengths), 6, 3, generator=generator).masked_fill(mask[:, :, None] == 0, 1e4)
            for layer in range(5)
        }
        special_mask = torch.zeros_like(mask, dtype=torch.bool)
        special_mask[:, 0] = torch.tensor(special)
        return TokenStates(layers, mask, torch.zeros_like(mask), special_mask)

    return make


def pooled(name, info, states, side="document", training=True, **options):
    return registry.create("pooler", name, info, **options).train(training)(states, side)


@every_pooler
@pytest.mark.slow
@pytest.mark.parametrize("options", [{"layers": "1,2"}, {"tokens": 3, "normalize": True}], ids=str)
def test_the_contract_is_kept(name, options, tiny_model):
    check("pooler", name, model=tiny_model, **options)


def bert():
    sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 16, "max_position_embeddings": 16}
    config = transformers.BertConfig(vocab_size=30, num_hidden_layers=3, **sizes)
    return transformers.BertModel(config, add_pooling_layer=False).eval()


def t5():
    config = transformers.T5Config(vocab_size=30, d_model=8, d_kv=4, d_ff=16, num_layers=3, num_heads=2)
    return transformers.T5EncoderModel(config).eval()


# [CLS] is 1, [SEP] and </s> are 2, padding is 0.
@pytest.mark.parametrize(
    ("make", "texts"), [(bert, [[1, 5, 6, 2], [1, 7, 8, 9, 10, 2]]), (t5, [[5, 6, 2], [7, 8, 9, 10, 2]])]
)
def test_the_vector_of_each_layer(make, texts):
    """BERT: the state at [CLS]. T5: the mean over real tokens, </s> included, of the raw states of each layer."""
    ids = torch.tensor([text + [0] * (8 - len(text)) for text in texts])
    mask = (ids != 0).long()
    with torch.no_grad():
        hidden = make()(input_ids=ids, attention_mask=mask, output_hidden_states=True).hidden_states
    states = TokenStates(dict(enumerate(hidden)), mask, ids, (ids == 1) | (ids == 2))
    vectors = pooled("multi_layer", EncoderInfo(8, 3, 30), states, layers="1,3").vectors
    for row, text in enumerate(texts):
        for index, layer in enumerate([3, 1]):
            own = hidden[layer][row, : len(text)]
            torch.testing.assert_close(vectors[row, index], own[0] if make is bert else own.mean(0))


@every_pooler
@pytest.mark.parametrize("source", [{"layers": (2, 4)}, {"layers": "4,-3"}, {"tokens": 3}])
def test_a_query_is_one_vector_of_the_last_layer(name, source, info, make_states):
    states = make_states([4, 6])
    representation = pooled(name, info, states, "query", **source)
    assert torch.equal(representation.vectors, states.layers[4][:, :1])
    assert representation.kept is None
    means = pooled(name, info, make_states([4, 6], special=NO_CLS), "query", **source).vectors[:, 0]
    torch.testing.assert_close(means, torch.stack([states.layers[4][0, :4].mean(0), states.layers[4][1].mean(0)]))


@pytest.mark.parametrize("layers", [(1, 4, 2), "4,1,2", "-1,-4,2"])
def test_layers_are_in_descending_order(layers, info, make_states):
    states = make_states([4, 6])
    representation = pooled("multi_layer", info, states, layers=layers)
    assert torch.equal(representation.vectors, torch.stack([states.layers[layer][:, 0] for layer in (4, 2, 1)], dim=1))
    assert (representation.vector_mask, representation.kept) == (None, None)
    names = registry.create("pooler", "multi_layer", info, layers=layers).view_names(3)
    assert names == ["layer 4", "layer 2", "layer 1"]


@every_pooler
def test_default_is_the_papers_pair(name, info, make_states):
    """Layers L-2 and L: 10 and 12 of 12; trained with the plain loss, but for self-contrastive pooling."""
    states, pooler = make_states([4, 6]), registry.create("pooler", name, info)
    assert torch.equal(pooler(states, "document").vectors, pooled(name, info, states, layers="2,4").vectors)
    assert pooler.default_loss == ("self_contrastive" if name == "self_contrastive" else "contrastive")


@pytest.mark.parametrize("side", ["query", "document"])
def test_token_chooses_the_first_or_the_mean_text_by_text(side, info, make_states):
    states = make_states([4, 6], special=[True, False])
    auto, first, mean = (
        pooled("multi_layer", info, states, side, token=token).vectors for token in ("auto", "first", "mean")
    )
    torch.testing.assert_close(auto, torch.stack([first[0], mean[1]]))
    assert not torch.allclose(first, mean)
    assert torch.equal(first[:, 0], states.layers[4][:, 0])


@pytest.mark.parametrize(("tokens", "counts"), [(3, [2, 3]), (8, [2, 6]), ("all", [2, 6])])
@pytest.mark.parametrize("special", [CLS, NO_CLS])
def test_tokens(tokens, counts, special, info, make_states):
    """As many vectors as tokens, [CLS] first (ME-BERT, ColBERT); for T5 the mean that queries are compared with."""
    states = make_states([2, 6], special=special)
    representation = pooled("multi_layer", info, states, tokens=tokens)
    for row, count in enumerate(counts):
        expected = states.layers[4][row, :count]
        if special == NO_CLS:
            mean = states.layers[4][row, : (2, 6)[row]].mean(0, keepdim=True)
            expected = torch.cat([mean, expected[: count if tokens != 3 else 2]])
        torch.testing.assert_close(representation.vectors[row][representation.vector_mask[row]], expected)
    assert registry.create("pooler", "multi_layer", info, tokens=tokens).view_names(2) == ["lead", "token 1"]


def test_colbert_golden():
    """The best token counts, padding never; [CLS] alone gives 1, the masked mean 1.5."""
    hidden = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [5.0, 5.0]]])
    mask = torch.tensor([[1, 1, 0]])
    states = TokenStates({1: hidden}, mask, mask, torch.tensor([[True, False, False]]))
    query = Representation(vectors=torch.tensor([[[1.0, 1.0]]]))
    for name, training, expected in [
        ("multi_layer", False, 2.0),
        ("self_contrastive", True, 2.0),
        ("self_contrastive", False, 1.0),
        ("layer_average", False, 1.5),
    ]:
        document = pooled(name, EncoderInfo(2, 1, 10), states, training=training, tokens="all")
        assert scores(query, document).tolist() == [[expected]]


@pytest.mark.parametrize("source", [{"layers": (4, 2, 1)}, {"tokens": 3}, {"tokens": "all"}])
@pytest.mark.parametrize("special", [CLS, NO_CLS])
def test_self_contrastive_keeps_the_first(source, special, info, make_states):
    states, pooler = make_states([4, 6], special=special), registry.create("pooler", "self_contrastive", info, **source)
    training, layers = pooler(states, "document"), (1, 2, 4) if "layers" in source else (4,)
    assert pooler.needs.layers_of("document", info) == layers
    assert pooler.needs.layers_of("query", info) == pooler.eval().needs.layers_of("document", info) == (4,)
    indexed = pooler(states, "document")
    assert (training.kept, indexed.kept) == (0, 0)
    assert training.vectors.shape[1] >= 3
    assert torch.equal(indexed.vectors, training.vectors[:, :1])
    assert torch.equal(indexed.vectors, pooler(states, "query").vectors)


@pytest.mark.parametrize("source", [{"layers": (4, 2, 1)}, {"tokens": 5}])
def test_the_average_and_the_start_of_the_mix(source, info, make_states):
    states = make_states([4, 6])
    many = pooled("multi_layer", info, states, **source)
    mask = torch.ones(2, 3, dtype=torch.bool) if many.vector_mask is None else many.vector_mask
    expected = torch.stack([vector[mask[row]].mean(0) for row, vector in enumerate(many.vectors)])
    for name in ("layer_average", "scalar_mix"):
        representation = pooled(name, info, states, **source)
        torch.testing.assert_close(representation.vectors[:, 0], expected)
        assert representation.vector_mask is None


def test_scalar_mix_weights(info, make_states):
    """alpha = [ln 3, 0, 9] weighs 0.75 and 0.25 where a text has two vectors; alpha gets a gradient."""
    states = make_states([2, 6])
    pooler = registry.create("pooler", "scalar_mix", info, tokens=3)
    pooler.alpha.data = torch.tensor([math.log(3), 0.0, 9.0])
    vectors = pooler(states, "document").vectors
    torch.testing.assert_close(vectors[0, 0], 0.75 * states.layers[4][0, 0] + 0.25 * states.layers[4][0, 1])
    vectors[0].sum().backward()
    assert pooler.alpha.grad[:2].all()


@every_pooler
@pytest.mark.parametrize("side", ["query", "document"])
def test_normalized_vectors_keep_their_direction(name, side, info, make_states):
    plain, normalized = (
        pooled(name, info, make_states([3, 5]), side, normalize=normalize).vectors for normalize in (False, True)
    )
    torch.testing.assert_close(normalized, plain / plain.square().sum(-1, keepdim=True).sqrt())


@pytest.mark.parametrize(
    ("name", "options", "error", "message"),
    [
        *(
            (name, options, error, message)
            for name in POOLERS
            for options, error, message in (
                ({"layers": "2,9"}, UnsupportedError, "layer 9 .* 0 .embeddings. to 4"),
                ({"layers": "2,4", "tokens": 8}, OptionError, "layers=2,4 and tokens=8 exclude each other"),
            )
        ),
        ("multi_layer", {"layers": "4,-1"}, OptionError, "layers=4,-1 names one layer twice"),
        ("multi_layer", {"layers": ""}, OptionError, "names no layer"),
        ("multi_layer", {"tokens": 0}, OptionError, "tokens is 0"),
        ("self_contrastive", {"layers": "2,1"}, UnsupportedError, r"last layer \(4\).*layers=1,2,-1"),
        ("scalar_mix", {"tokens": "all"}, OptionError, "tokens=all"),
    ],
)
def test_wrong_options(name, options, error, message, info):
    with pytest.raises(error, match=message):
        registry.create("pooler", name, info, **options)
