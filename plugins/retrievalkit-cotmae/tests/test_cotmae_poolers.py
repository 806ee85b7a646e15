"""The pooler: golden numbers, an independent reference, what each option does, and that padding does nothing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, TokenStates
from retrievalkit.scoring import scores

TEXTS = [2, 6, 4, 3]
"""Lengths of texts, [CLS] and [SEP] included: the first is empty."""


def make(info, training=True, **options):
    options = {"top_k": 3} | options
    return registry.create("pooler", "dense_sparse", info, **options).train(training)


def reference_weights(states, row, *, special=False, top_k=None, transform=np.tanh):
    """The equations in numpy for one text: loops over tokens, sorting by (-weight, term)."""
    weights = np.zeros(states.head.weight.shape[0])
    for token in range(states.attention_mask.shape[1]):
        if states.attention_mask[row, token] and (special or not states.special_mask[row, token]):
            inner = transform(states.layers[3][row, token].detach().double().numpy())
            logits = states.head.weight.double().numpy() @ inner + states.head.bias.double().numpy()
            weights = np.maximum(weights, np.log(1 + np.maximum(logits, 0)))
    kept = sorted(range(len(weights)), key=lambda term: (-weights[term], term))[:top_k]
    return np.where(np.isin(np.arange(len(weights)), kept), weights, 0)


class TestGolden:
    """Numbers worked out apart from this code."""

    LOGITS = (
        (5.0, -1.0, 0.0, 0.0, 0.0, 0.0),
        (0.5, 2.0, -3.0, 0.0, 1.0, 0.0),
        (-1.0, 0.5, 1.5, 0.0, 1.2, -2.0),
        (0.0, 0.0, 0.0, 3.0, 0.0, 0.0),
        (0.0, 0.0, 0.0, 0.0, 0.0, 9.0),
    )
    """Of [CLS], two words, [SEP] and padding."""

    def weights(self, **options):
        """The hidden states are the logits, the head hands them through."""
        hidden = torch.tensor([self.LOGITS], dtype=torch.float64).requires_grad_()
        mask = torch.tensor([[1, 1, 1, 1, 0]])
        special = torch.tensor([[True, False, False, True, False]])
        states = TokenStates({1: hidden}, mask, mask, special, head=lambda states: states)
        pooler = registry.create("pooler", "dense_sparse", EncoderInfo(6, 1, 6), views="sparse", **options)
        return pooler(states, "document").weights, hidden

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"top_k": None}, [0.4054651081, 1.0986122887, 0.9162907319, 0.0, 0.7884573604, 0.0]),
            (
                {"top_k": None, "pooled_tokens": "all"},
                [1.7917594692, 1.0986122887, 0.9162907319, 1.3862943611, 0.7884573604, 0.0],
            ),
            ({"top_k": 2}, [0.0, 1.0986122887, 0.9162907319, 0.0, 0.0, 0.0]),
            ({"top_k": 2, "pooled_tokens": "all"}, [1.7917594692, 0.0, 0.0, 1.3862943611, 0.0, 0.0]),
        ],
    )
    def test_weights(self, options, expected):
        weights, _ = self.weights(**options)
        assert weights[0].tolist() == pytest.approx(expected, abs=1e-6)

    def test_gradient(self):
        """1 / (1 + logit) at the token of the largest logit where that is above 0 and the weight was kept, else 0."""
        weights, hidden = self.weights(top_k=2)
        weights.sum().backward()
        expected = np.zeros((5, 6))
        expected[1, 1], expected[2, 2] = 1 / 3, 1 / 2.5
        np.testing.assert_allclose(hidden.grad[0].numpy(), expected, atol=1e-6)

    def test_ties(self):
        """Exactly k are kept, and among equals those of the lowest number."""
        saturated = torch.tensor([[[0.5, 1.0, 0.5, 0.0, 0.5]]]).expm1()
        one = torch.ones(1, 1, dtype=torch.long)
        states = TokenStates({1: saturated}, one, one, ~one.bool(), head=lambda states: states)
        pooler = registry.create("pooler", "dense_sparse", EncoderInfo(5, 1, 5), views="sparse", top_k=2)
        assert pooler(states, "query").weights[0].tolist() == pytest.approx([0.5, 1.0, 0.0, 0.0, 0.0])

    def test_score_of_both_views(self):
        """From token states to dense plus sparse scores, the weights being the golden ones."""
        words = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 2.0]]).expm1()  # their weights are 1, 1, 0 and 0, 1, 2
        hidden = torch.stack([torch.tensor([[3.0, -1.0, 0.5], [0.5, 1.0, 2.0]]), words], dim=1)  # [CLS], one word
        mask = torch.ones(2, 2, dtype=torch.long)
        states = TokenStates({1: hidden}, mask, mask, torch.tensor([[True, False]] * 2), head=lambda states: states)
        made = registry.create("pooler", "dense_sparse", EncoderInfo(3, 1, 3), top_k=2)(states, "query")
        expected = [[10.25 + 2, 1.5 + 1], [1.5 + 1, 5.25 + 5]]
        np.testing.assert_allclose(scores(made, made).numpy(), expected, rtol=1e-6)


class TestSparse:
    """Weights over the vocabulary."""

    @settings(max_examples=40)
    @given(
        lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4, unique=True),
        top_k=st.sampled_from([1, 2, 5, 11, None]),
        special=st.booleans(),
        left=st.booleans(),
    )
    def test_reference(self, info, make_states, lengths, top_k, special, left):
        states = make_states(lengths, padded_to=10, left=left)
        pooler = make(info, views="sparse", top_k=top_k, pooled_tokens="all" if special else "text")
        weights = pooler(states, "document").weights
        for row in range(len(lengths)):
            expected = reference_weights(states, row, special=special, top_k=top_k)
            np.testing.assert_allclose(weights[row].numpy(), expected, rtol=1e-5, atol=1e-6)

    def test_one_linear_map(self, info, make_states):
        """log(1 + relu(W h + b)) of the states themselves, as Eq. 4 is printed; the head's own layer is tanh."""
        states = make_states(TEXTS)
        made = make(info, views="sparse", sparse_head="projection")(states, "query").weights
        for row in range(len(TEXTS)):
            expected = reference_weights(states, row, top_k=3, transform=lambda hidden: hidden)
            np.testing.assert_allclose(made[row].numpy(), expected, rtol=1e-5, atol=1e-6)


class TestDense:
    """The first token's state."""

    @pytest.mark.parametrize("side", ["query", "document"])
    @pytest.mark.parametrize("left", [False, True])
    def test_first_real_token(self, side, left, info, make_states):
        states = make_states(TEXTS, padded_to=8, left=left)
        made = make(info, views="dense")(states, side).vectors
        starts = [8 - length if left else 0 for length in TEXTS]
        assert torch.equal(made[:, 0], states.layers[3][range(len(TEXTS)), starts])

    @pytest.mark.parametrize("size", [2, 4, 7])
    def test_projection_is_shared_by_both_sides(self, size, info, make_states):
        """One linear map with bias; also where it keeps the size."""
        states = make_states(TEXTS)
        pooler = make(info, dimension=size)
        assert {name: tuple(one.shape) for name, one in pooler.named_parameters()} == {
            "projection.weight": (size, 4),
            "projection.bias": (size,),
        }
        weight, bias = pooler.projection.weight.detach().numpy(), pooler.projection.bias.detach().numpy()
        expected = states.layers[3][:, 0].numpy() @ weight.T + bias
        for side in ("query", "document"):
            np.testing.assert_allclose(
                pooler(states, side).vectors[:, 0].detach().numpy(), expected, rtol=1e-5, atol=1e-6
            )

    def test_normalized(self, info, make_states):
        """Vectors of length 1 after the projection, and the same weights."""
        states, pooler = make_states(TEXTS), make(info, dimension=3)
        plain = pooler(states, "document")
        pooler.normalize = True
        made = pooler(states, "document")
        torch.testing.assert_close(made.vectors, plain.vectors / plain.vectors.square().sum(-1, keepdim=True).sqrt())
        assert torch.equal(made.weights, plain.weights)


class TestLayers:
    """Several dense vectors of a document."""

    def test_highest_first(self, info, make_states):
        states = make_states(TEXTS)
        for layers in [(1, 3, 2), "2,3,1", (-1, 1, 2)]:
            made = make(info, layers=layers)(states, "document")
            assert torch.equal(made.vectors, torch.stack([states.layers[one][:, 0] for one in (3, 2, 1)], dim=1))
            assert made.kept is None

    def test_their_names(self, info):
        assert make(info, layers=(1, 3, 2)).view_names(3) == ["layer 3", "layer 2", "layer 1"]
        assert make(info, layers=(1, 3), keep="last").view_names(1) == ["layer 3"]

    def test_queries_and_weights_are_of_the_last(self, info, make_states):
        states = make_states(TEXTS)
        plain, made = make(info), make(info, layers=(1, 2))
        assert torch.equal(made(states, "query").vectors, plain(states, "query").vectors)
        for side in ("query", "document"):
            assert torch.equal(made(states, side).weights, plain(states, side).weights)

    def test_projection_of_each(self, info, make_states):
        states, pooler = make_states(TEXTS), make(info, layers=(1, 3), dimension=2)
        made = pooler(states, "document").vectors
        torch.testing.assert_close(made[:, 1], pooler.projection(states.layers[1][:, 0]))

    def test_keep_last(self, info, make_states):
        """All in training, the last layer's when indexing, and marked as the one kept; queries have nothing to keep."""
        states = make_states(TEXTS)
        training = make(info, layers=(1, 3), keep="last")(states, "document")
        indexed = make(info, training=False, layers=(1, 3), keep="last")(states, "document")
        assert training.vectors.shape == (4, 2, 4)
        assert torch.equal(indexed.vectors, training.vectors[:, :1])
        assert torch.equal(indexed.weights, training.weights)
        assert (training.kept, indexed.kept) == (0, 0)
        assert make(info, layers=(1, 3), keep="last")(states, "query").kept is None


class TestViews:
    """Dense, sparse or both."""

    def test_parts_of_both(self, info, make_states):
        """Each view alone is what it is beside the other."""
        states = make_states(TEXTS)
        dense, sparse, both = (make(info, views=one)(states, "document") for one in ("dense", "sparse", "both"))
        assert dense.weights is None
        assert sparse.vectors is None
        assert torch.equal(dense.vectors, both.vectors)
        assert torch.equal(sparse.weights, both.weights)

    def test_needs(self, info):
        """The head only for the sparse view, and only the layers that are used."""
        assert make(info, views="dense").needs.vocabulary_head is False
        assert make(info, views="sparse").needs.vocabulary_head is True
        assert make(info, views="both").needs.vocabulary_head is True
        for views, layers in [("dense", (1, 2)), ("both", (1, 2, 3))]:
            needs = make(info, views=views, layers=(1, 2)).needs
            assert needs.layers_of("document", info) == layers
            assert needs.layers_of("query", info) == (3,)
        assert make(info, views="sparse").needs.layers_of("document", info) == (3,)
        kept = make(info, layers=(1, 3), keep="last")
        assert kept.needs.layers_of("document", info) == (1, 3)
        assert kept.eval().needs.layers_of("document", info) == (3,)
