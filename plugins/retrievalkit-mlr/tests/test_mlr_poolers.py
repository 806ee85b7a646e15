"""The poolers: which vectors, how they are joined, and that padding, order and saving change nothing."""

from __future__ import annotations

import math

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, Representation, TokenStates
from retrievalkit.scoring import scores

POOLERS = ["multi_layer", "self_contrastive", "layer_average", "scalar_mix"]
every_pooler = pytest.mark.parametrize("name", POOLERS)


def pooled(name, info, states, side="document", training=True, **options):
    return registry.create("pooler", name, info, **options).train(training)(states, side)


def kept_vectors(representation):
    """Each text's vectors without padding."""
    vectors, mask = representation.vectors, representation.vector_mask
    return [one if mask is None else one[mask[row]] for row, one in enumerate(vectors)]


class TestQueries:
    """A query is one vector of the last layer, whatever the documents are."""

    @every_pooler
    @pytest.mark.parametrize("source", [{"layers": (2, 4)}, {"tokens": 3}])
    def test_one_vector_of_the_last_layer(self, name, source, info, make_states):
        states = make_states([4, 6])
        made = pooled(name, info, states, "query", **source)
        assert torch.equal(made.vectors, states.layers[4][:, :1])
        assert made.kept is None

    def test_last_layer_though_not_among_the_chosen(self, info, make_states):
        """Many-vector documents may leave the last layer out; queries still take it."""
        states = make_states([4])
        assert torch.equal(pooled("multi_layer", info, states, "query", layers=1).vectors, states.layers[4][:, :1])

    def test_masked_mean_without_cls(self, info, make_states):
        states = make_states([4, 6], special=False)
        made = pooled("self_contrastive", info, states, "query").vectors
        expected = torch.stack([states.layers[4][0, :4].mean(0), states.layers[4][1].mean(0)])
        torch.testing.assert_close(made[:, 0], expected)


class TestLayers:
    """One vector from each chosen layer."""

    def test_all_of_them_highest_first(self, info, make_states):
        states = make_states([4, 6])
        made = pooled("multi_layer", info, states, layers=(1, 4, 2))
        assert torch.equal(made.vectors, torch.stack([states.layers[one][:, 0] for one in (4, 2, 1)], dim=1))
        assert made.vector_mask is None
        assert made.kept is None

    def test_t5_takes_the_masked_mean_of_each_layer(self, info, make_states):
        """Where texts have no [CLS], each layer's vector is the mean over its real tokens, the end token included."""
        states = make_states([4, 6], special=False)
        made = pooled("multi_layer", info, states, layers=(2, 4)).vectors
        for row, length in enumerate([4, 6]):
            for index, layer in enumerate([4, 2]):
                torch.testing.assert_close(made[row, index], states.layers[layer][row, :length].mean(0))

    def test_rule_is_each_texts_own(self, info, make_states):
        """A text is encoded alike whether or not the others of its batch have a [CLS]."""
        mixed = pooled("multi_layer", info, make_states([4, 6], special=[True, False])).vectors
        torch.testing.assert_close(mixed[:1], pooled("multi_layer", info, make_states([4])).vectors)
        torch.testing.assert_close(mixed[1:], pooled("multi_layer", info, make_states([6], special=False)).vectors)

    def test_their_names(self, info):
        """In the order of the vectors: the layer's number, or the token's behind the text's ordinary vector."""
        assert registry.create("pooler", "multi_layer", info, layers=(1, 4, 2)).view_names(3) == [
            "layer 4",
            "layer 2",
            "layer 1",
        ]
        assert registry.create("pooler", "multi_layer", info, tokens="all").view_names(3) == [
            "lead",
            "token 1",
            "token 2",
        ]

    @every_pooler
    @pytest.mark.parametrize("side", ["query", "document"])
    def test_token_option(self, name, side, info, make_states):
        """`token` chooses first or mean against what "auto" would take."""
        for special, automatic, other in [(True, "first", "mean"), (False, "mean", "first")]:
            states = make_states([4, 6], special=special)
            by_default = pooled(name, info, states, side).vectors
            assert torch.equal(pooled(name, info, states, side, token=automatic).vectors, by_default)
            assert not torch.allclose(pooled(name, info, states, side, token=other).vectors, by_default)


class TestTokens:
    """One vector from each of the first tokens of the last layer, or of all tokens."""

    def test_first_tokens(self, info, make_states):
        """tokens=3: ME-BERT's first positions, [CLS] being the first."""
        states = make_states([4, 6])
        made = pooled("multi_layer", info, states, tokens=3)
        assert torch.equal(made.vectors, states.layers[4][:, :3])
        assert made.vector_mask.all()

    def test_short_texts_have_fewer(self, info, make_states):
        """A text of fewer tokens has as many vectors as tokens, in a batch of any length."""
        for padded_to in (6, 9):
            made = pooled("multi_layer", info, make_states([2, 6], padded_to=padded_to), tokens=8)
            assert made.vectors.shape == (2, 8, 3)
            assert made.vector_mask.sum(dim=1).tolist() == [2, 6]

    def test_all_tokens(self, info, make_states):
        """tokens=all: every real token, [CLS] and [SEP] included."""
        states = make_states([4, 6])
        made = pooled("multi_layer", info, states, tokens="all")
        assert torch.equal(made.vectors[1], states.layers[4][1])
        assert torch.equal(made.vector_mask, states.attention_mask.bool())
        assert torch.equal(made.vectors[0][:4], states.layers[4][0, :4])

    @pytest.mark.parametrize(("tokens", "n_tokens"), [(3, 2), ("all", 6)])
    def test_mean_comes_first_without_cls(self, tokens, n_tokens, info, make_states):
        """For T5, the vector that queries are compared with is the mean; the tokens follow it."""
        states = make_states([4, 6], special=False)
        made = kept_vectors(pooled("multi_layer", info, states, tokens=tokens))[1]
        torch.testing.assert_close(made[0], states.layers[4][1].mean(0))
        assert torch.equal(made[1:], states.layers[4][1, :n_tokens])

    def test_colbert_golden(self):
        """The best token counts, padding never; [CLS] alone gives 1, the masked mean 1.5."""
        hidden = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [5.0, 5.0]]])
        mask = torch.tensor([[1, 1, 0]])
        states = TokenStates({1: hidden}, mask, mask, torch.tensor([[True, False, False]]))
        query = Representation(vectors=torch.tensor([[[1.0, 1.0]]]))
        tiny = EncoderInfo(width=2, layers=1, vocabulary_size=10)
        for name, training, expected in [
            ("multi_layer", False, 2.0),
            ("self_contrastive", True, 2.0),
            ("self_contrastive", False, 1.0),
            ("layer_average", False, 1.5),
        ]:
            document = pooled(name, tiny, states, training=training, tokens="all")
            assert scores(query, document).tolist() == [[expected]]


class TestSelfContrastive:
    """All vectors while training, the last layer's when indexing."""

    @pytest.mark.parametrize("source", [{"layers": (4, 2, 1)}, {"tokens": 3}, {"tokens": "all"}])
    @pytest.mark.parametrize("special", [True, False])
    def test_keeps_the_first(self, source, special, info, make_states):
        """The vector indexed is the one that training marked as kept: a plain dual encoder's."""
        states = make_states([4, 6], special=special)
        training = pooled("self_contrastive", info, states, **source)
        indexed = pooled("self_contrastive", info, states, training=False, **source)
        plain = pooled("self_contrastive", info, states, "query", training=False, **source)
        assert training.kept == 0
        assert indexed.kept == 0
        assert training.vectors.shape[1] >= 3
        assert torch.equal(indexed.vectors, training.vectors[:, :1])
        assert torch.equal(indexed.vectors, plain.vectors)

    def test_needs_only_the_last_layer_when_indexing(self, info):
        """Layers other than the last are asked for in training, and for documents alone."""
        pooler = registry.create("pooler", "self_contrastive", info, layers=(4, 2, 1))
        assert pooler.needs.layers_of("document", info) == (1, 2, 4)
        assert pooler.needs.layers_of("query", info) == (4,)
        assert pooler.eval().needs.layers_of("document", info) == (4,)

    def test_names_its_loss(self):
        """It is trained with its own loss by default, the others with the plain one."""
        losses = {name: registry.get("pooler", name).default_loss for name in POOLERS}
        assert losses == dict.fromkeys(POOLERS, "contrastive") | {"self_contrastive": "self_contrastive"}


class TestJoined:
    """One vector out of several."""

    @pytest.mark.parametrize("source", [{"layers": (4, 2, 1)}, {"tokens": 5}, {"tokens": "all"}])
    def test_average_of_those_there_are(self, source, info, make_states):
        states = make_states([4, 6])
        many = kept_vectors(pooled("multi_layer", info, states, **source))
        made = pooled("layer_average", info, states, **source)
        torch.testing.assert_close(made.vectors[:, 0], torch.stack([one.mean(0) for one in many]))
        assert made.vector_mask is None

    @pytest.mark.parametrize("source", [{"layers": (4, 2, 1)}, {"tokens": 5}])
    def test_scalar_mix_starts_as_the_average(self, source, info, make_states):
        states = make_states([4, 6])
        torch.testing.assert_close(
            pooled("scalar_mix", info, states, **source).vectors,
            pooled("layer_average", info, states, **source).vectors,
        )

    def test_scalar_mix_weights(self, info, make_states):
        """alpha = [ln 3, 0] weighs the last layer 0.75 and the other 0.25; alpha gets a gradient."""
        states = make_states([4, 6])
        pooler = registry.create("pooler", "scalar_mix", info, layers=(2, 4))
        assert pooler.alpha.tolist() == [0.0, 0.0]
        pooler.alpha.data = torch.tensor([math.log(3), 0.0])
        made = pooler(states, "document").vectors
        torch.testing.assert_close(made[:, 0], 0.75 * states.layers[4][:, 0] + 0.25 * states.layers[2][:, 0])
        made.sum().backward()
        assert pooler.alpha.grad.abs().sum() > 0

    def test_scalar_mix_of_a_short_text(self, info, make_states):
        """The weights of the vectors that a text has add up to 1."""
        states = make_states([2, 6])
        pooler = registry.create("pooler", "scalar_mix", info, tokens=3)
        pooler.alpha.data = torch.tensor([math.log(3), 0.0, 9.0])
        made = pooler(states, "document").vectors
        torch.testing.assert_close(made[0, 0], 0.75 * states.layers[4][0, 0] + 0.25 * states.layers[4][0, 1])


@pytest.mark.parametrize("name", ["multi_layer", "self_contrastive", "layer_average", "scalar_mix"])
@pytest.mark.parametrize("training", [True, False])
def test_normalized_vectors_point_the_same_way_and_have_length_one(name, training, info, make_states):
    states = make_states([3, 5])
    plain = registry.create("pooler", name, info, layers=(2, 4)).train(training)
    normalized = registry.create("pooler", name, info, layers=(2, 4), normalize=True).train(training)
    for side in ("query", "document"):
        vectors = plain(states, side).vectors
        expected = vectors / vectors.square().sum(-1, keepdim=True).sqrt()
        torch.testing.assert_close(normalized(states, side).vectors, expected)
