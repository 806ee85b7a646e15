"""The pooler: golden numbers, an independent reference, what each option does, and that padding does nothing."""

from __future__ import annotations

import numpy as np
import pytest
import retrievalkit_testing as testing
import torch
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, TokenStates, VocabularyHead
from retrievalkit.errors import OptionError, UnsupportedError
from retrievalkit.models.retriever import Retriever
from retrievalkit.scoring import scores

WIDTH, LAYERS, VOCABULARY = 4, 3, 11


@pytest.fixture(scope="session")
def info():
    """An encoder of 3 layers, width 4, and 11 terms."""
    return EncoderInfo(width=WIDTH, layers=LAYERS, vocabulary_size=VOCABULARY)


@pytest.fixture(scope="session")
def head():
    """A vocabulary head of random weights."""
    generator = torch.Generator().manual_seed(7)
    weight = torch.randn(VOCABULARY, WIDTH, generator=generator)
    return VocabularyHead(torch.tanh, weight, torch.randn(VOCABULARY, generator=generator) / 2)


@pytest.fixture(scope="session")
def make_states(head):
    """Random token states of all layers for texts of given lengths, [CLS] and [SEP] included; its length seeds it."""

    def make(lengths, *, padded_to=None, left=False):
        n_tokens = padded_to or max(lengths)
        # What stands at padding must not matter, so it is large.
        layers = {layer: torch.full((len(lengths), n_tokens, WIDTH), 1e4) for layer in range(LAYERS + 1)}
        mask = torch.zeros(len(lengths), n_tokens, dtype=torch.long)
        special_mask = torch.zeros(len(lengths), n_tokens, dtype=torch.bool)
        for row, length in enumerate(lengths):
            start = n_tokens - length if left else 0
            mask[row, start : start + length] = 1
            special_mask[row, [start, start + length - 1]] = True
            generator = torch.Generator().manual_seed(length)
            for layer in layers.values():
                layer[row, start : start + length] = torch.randn(length, WIDTH, generator=generator)
        return TokenStates(layers, mask, torch.zeros_like(mask), special_mask, head=head)

    return make


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
        saturated = torch.tensor([[[0.5, 1.0, 0.5, 0.0, 0.5]]]).expm1()
        ones = torch.ones(1, 1, dtype=torch.long)
        states = TokenStates({1: saturated}, ones, ones, ~ones.bool(), head=lambda states: states)
        pooler = registry.create("pooler", "dense_sparse", EncoderInfo(5, 1, 5), views="sparse", top_k=2)
        assert pooler(states, "query").weights[0].tolist() == pytest.approx([0.5, 1.0, 0.0, 0.0, 0.0])

    def test_score_of_both_views(self):
        words = torch.tensor([[1.0, 1.0, 0.0], [0.0, 1.0, 2.0]]).expm1()  # their weights are 1, 1, 0 and 0, 1, 2
        hidden = torch.stack([torch.tensor([[3.0, -1.0, 0.5], [0.5, 1.0, 2.0]]), words], dim=1)  # [CLS], one word
        mask = torch.ones(2, 2, dtype=torch.long)
        states = TokenStates({1: hidden}, mask, mask, torch.tensor([[True, False]] * 2), head=lambda states: states)
        representation = registry.create("pooler", "dense_sparse", EncoderInfo(3, 1, 3), top_k=2)(states, "query")
        expected = [[10.25 + 2, 1.5 + 1], [1.5 + 1, 5.25 + 5]]
        np.testing.assert_allclose(scores(representation, representation).numpy(), expected, rtol=1e-6)


@settings(max_examples=40)
@given(
    lengths=st.lists(st.integers(2, 9), min_size=1, max_size=4, unique=True),
    top_k=st.sampled_from([1, 2, 5, 11, None]),
    special=st.booleans(),
    left=st.booleans(),
    head=st.sampled_from(["complete", "projection"]),
)
def test_sparse_weights_are_those_of_a_reference(info, make_states, lengths, top_k, special, left, head):
    """Eq. 4 is printed with one linear map; the head's own layer, tanh here, stands before it by default."""
    states = make_states(lengths, padded_to=10, left=left)
    pooler = make(info, views="sparse", top_k=top_k, pooled_tokens="all" if special else "text", sparse_head=head)
    transform = np.tanh if head == "complete" else np.asarray
    weights = pooler(states, "document").weights
    for row in range(len(lengths)):
        expected = reference_weights(states, row, special=special, top_k=top_k, transform=transform)
        np.testing.assert_allclose(weights[row].numpy(), expected, rtol=1e-5, atol=1e-6)


class TestDense:
    """The first token's state."""

    @pytest.mark.parametrize("side", ["query", "document"])
    @pytest.mark.parametrize(("left", "size"), [(False, None), (True, None), (False, 4), (False, 7)])
    @pytest.mark.parametrize("normalize", [False, True])
    def test_of_each_layer(self, side, left, size, normalize, info, make_states):
        states, pooler = (
            make_states(TEXTS, padded_to=8, left=left),
            make(info, layers="2,-1,1", dimension=size, normalize=normalize),
        )
        representation = pooler(states, side)
        starts = [8 - length if left else 0 for length in TEXTS]
        layers = (3, 2, 1) if side == "document" else (3,)
        expected = torch.stack([states.layers[layer][range(len(TEXTS)), starts] for layer in layers], dim=1)
        if size is not None:
            assert pooler.projection.weight.shape == (size, 4)
            expected = expected @ pooler.projection.weight.T + pooler.projection.bias
        if normalize:
            expected = expected / expected.square().sum(-1, keepdim=True).sqrt()
        torch.testing.assert_close(representation.vectors, expected)
        assert representation.kept is None
        assert torch.equal(representation.weights, make(info, views="sparse")(states, side).weights)
        assert pooler.view_names(3) == ["layer 3", "layer 2", "layer 1"]

    def test_keep_last(self, info, make_states):
        states, pooler = make_states(TEXTS), make(info, layers=(1, 3), keep="last")
        training, query = pooler(states, "document"), pooler(states, "query")
        assert pooler.needs.layers_of("document", info) == (1, 3)
        indexed = pooler.eval()(states, "document")
        assert pooler.needs.layers_of("document", info) == (3,)
        assert training.vectors.shape == (4, 2, 4)
        assert torch.equal(indexed.vectors, training.vectors[:, :1])
        assert (training.kept, indexed.kept, query.kept) == (0, 0, None)


@pytest.mark.parametrize("views", ["dense", "sparse"])
def test_a_view_does_not_depend_on_the_other_view(views, info, make_states):
    states, pooler = make_states(TEXTS), make(info, views=views)
    alone, both = pooler(states, "document"), make(info)(states, "document")
    for name in ("vectors", "weights"):
        first, other = getattr(alone, name), getattr(both, name)
        assert first is None or torch.equal(first, other)
    assert (alone.vectors is None, alone.weights is None) == (views == "sparse", views == "dense")
    assert pooler.needs.vocabulary_head == (views == "sparse")
    last = make(info, **({"layers": (1, 2), "views": views} if views == "dense" else {"views": views})).needs
    assert last.layers_of("document", info) == ((1, 2) if views == "dense" else (3,))
    assert last.layers_of("query", info) == (3,)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"top_k": 0}, OptionError, "option 'top_k' of pooler 'dense_sparse' cannot be 0"),
        ({"top_k": 12}, OptionError, "is 12, but the vocabulary has 11 terms.*top_k=11 or less"),
        ({"layers": "2,9"}, UnsupportedError, "layer 9 .* 0 .embeddings. to 3"),
        ({"layers": "2,1", "keep": "last"}, UnsupportedError, r"last layer \(3\).*layers=2,1,-1"),
        ({"views": "sparse", "dimension": 2}, OptionError, "dimension=2 has no effect with views=sparse"),
        ({"views": "sparse", "layers": (1, 3)}, OptionError, "layers=1,3 has no effect with views=sparse"),
        ({"views": "sparse", "keep": "last"}, OptionError, "keep=last has no effect with views=sparse"),
        ({"views": "sparse", "normalize": True}, OptionError, "normalize=true has no effect with views=sparse"),
        ({"views": "dense", "pooled_tokens": "all"}, OptionError, "pooled_tokens=all has no effect with views=dense"),
        ({"views": "dense", "sparse_head": "projection"}, OptionError, "sparse_head=projection has no effect"),
    ],
)
def test_wrong_options(options, error, message, info):
    with pytest.raises(error, match=message):
        make(info, **options)


def test_top_k_does_not_matter_without_weights():
    """It always has a value, so with views=dense it stands idle, also for a model without a vocabulary."""
    make(EncoderInfo(4, 2, 0), views="dense", top_k=768)


CASES = [
    {},
    *(
        pytest.param(options, marks=pytest.mark.slow)
        for options in (
            {"layers": (1, 2), "keep": "last"},
            {"views": "dense"},
            {"views": "sparse"},
            {"top_k": None, "pooled_tokens": "all"},
            {"dimension": 8, "normalize": True},
            {"layers": (0, 1, 2)},
        )
    ),
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_the_contract_is_kept(options, tiny_model):
    testing.check("pooler", "dense_sparse", model=tiny_model, **{"top_k": 16} | options)


def test_weights_are_of_the_models_own_head(tiny_model):
    retriever = Retriever.create(tiny_model, pooler="dense_sparse", pooler_options={"views": "sparse", "top_k": None})
    model = transformers.AutoModelForMaskedLM.from_pretrained(tiny_model).eval()
    text = "what is the capital of france"
    with torch.no_grad():
        inputs = transformers.AutoTokenizer.from_pretrained(tiny_model)(text, return_tensors="pt")
        expected = model(**inputs).logits[0, 1:-1].relu().log1p().amax(dim=0)
    assert (expected > 0).sum() > 5
    torch.testing.assert_close(retriever.to("cpu").encode([("", text)], "query", precision="fp32").weights[0], expected)
