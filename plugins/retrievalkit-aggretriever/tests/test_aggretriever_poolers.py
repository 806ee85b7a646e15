"""The pooler on token states made by hand: the equations, every option, padding, order, gradients and saving."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, TokenStates, VocabularyHead

SMALL = {"cls_dim": 3, "agg_dim": 4}


def create(info, **options):
    """A pooler of 3 + 4 dimensions, always with the same projections."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return registry.create("pooler", "aggretriever", info, **(SMALL | options))


class TestGolden:
    """Five tokens, [CLS] t1 t2 [SEP] [PAD], and a vocabulary of 10 terms; numbers worked out apart from this code."""

    LOGITS = (
        (9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
        (2.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 3.0),
        (0.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0),
        (0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0, 1.0, 0.0),
        (0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0),
    )
    WEIGHTS = (5.0, 2.0, -0.5, 0.25, 9.0)
    NEGATIVE = (5.0, -1.0, -0.5, -0.25, 9.0)

    def pooled(self, weights=WEIGHTS, tokens=5, ids=(1, 7, 3, 2, 0), mask=(1, 1, 1, 1, 0), **options):
        """The hidden states are the logits with the token's weight behind them."""
        logits = list(self.LOGITS) + [[0.0] * 10] * (len(ids) - 5)
        hidden = torch.tensor(
            [[*row, weight] for row, weight in zip(logits, weights, strict=True)], dtype=torch.float64
        )
        attention = torch.tensor([mask])[:, :tokens]
        special = torch.isin(torch.arange(tokens), torch.tensor([0, 3]))[None]
        states = TokenStates(
            {1: hidden[None, :tokens]}, attention, torch.tensor([ids])[:, :tokens], special, head=lambda h: h[..., :10]
        )
        pooler = create(EncoderInfo(width=11, layers=1, vocabulary_size=10), cls_dim=0, **options).double()
        if pooler.term_projection is not None:
            pooler.term_projection.weight.data = torch.eye(11, dtype=torch.float64)[10:]
            pooler.term_projection.bias.data.zero_()
        representation = pooler.eval()(states, "document")
        assert representation.vectors.shape[1] == 1
        return representation.vectors[0, 0].tolist()

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (
                {"agg_dim": "vocabulary"},
                [
                    0.3797911309,
                    0.139717349,
                    0.0513991403,
                    0.1508192612,
                    0.0554833055,
                    0.139717349,
                    0.2036189424,
                    0.1508192612,
                    0.0513991403,
                    1.0323793296,
                ],
            ),
            ({"agg_dim": 5}, [0.3797911309, -0.1508192612, -0.139717349, 0.2036189424, -1.0323793296]),
            (
                {"agg_dim": 5, "aggregation": "semi"},
                [0.3797911309, 0.2036189424, 0.1508192612, 0.1508192612, 1.0323793296],
            ),
            (
                {"agg_dim": 5, "aggregation": "semi", "slices": "same_as_star"},
                [0.3797911309, 0.1508192612, 0.139717349, 0.2036189424, 1.0323793296],
            ),
            ({"agg_dim": 2, "remainder": "drop"}, [0.2036189424, -1.0323793296]),
            ({"agg_dim": 2, "aggregation": "semi"}, [0.3797911309, 1.0323793296]),
        ],
    )
    def test_abs(self, options, expected):
        """The paper's |w|."""
        assert self.pooled(**options) == pytest.approx(expected, abs=1e-6)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            (
                {"agg_dim": "vocabulary"},
                [
                    0.3797911309,
                    0.139717349,
                    0.0513991403,
                    0.0513991403,
                    0.0513991403,
                    0.139717349,
                    0.2036189424,
                    0.0513991403,
                    0.0513991403,
                    1.0323793296,
                ],
            ),
            ({"agg_dim": 5}, [0.3797911309, -0.0513991403, -0.139717349, 0.2036189424, -1.0323793296]),
            (
                {"agg_dim": 5, "aggregation": "semi"},
                [0.3797911309, 0.2036189424, 0.0513991403, 0.0513991403, 1.0323793296],
            ),
            (
                {"agg_dim": 5, "aggregation": "semi", "slices": "same_as_star"},
                [0.3797911309, 0.0513991403, 0.139717349, 0.2036189424, 1.0323793296],
            ),
            ({"agg_dim": 2, "remainder": "drop"}, [0.2036189424, -1.0323793296]),
            ({"agg_dim": 2, "aggregation": "semi"}, [0.3797911309, 1.0323793296]),
        ],
    )
    @pytest.mark.parametrize("padding", ["masked", "released"])
    def test_signed(self, padding, options, expected):
        """The released code's w as it is."""
        assert self.pooled(term_weight="signed", padding=padding, **options) == pytest.approx(expected, abs=1e-6)

    def test_negative_weights(self):
        """Signed: cut off at 0, in the released code only where the batch pads the text; abs: padding or not."""
        signed = {"weights": self.NEGATIVE, "agg_dim": "vocabulary", "term_weight": "signed"}
        assert self.pooled(**signed) == [0.0] * 10
        assert self.pooled(**signed, tokens=4) == [0.0] * 10
        assert self.pooled(**signed, padding="released") == [0.0] * 10
        raw = [
            -0.003729411,
            -0.0101375902,
            -0.003729411,
            -0.003729411,
            -0.003729411,
            -0.003729411,
            -0.0204111674,
            -0.003729411,
            -0.0101375902,
            -0.003729411,
        ]
        assert self.pooled(**signed, padding="released", tokens=4) == pytest.approx(raw, abs=1e-6)
        absolute = [
            0.1898955654,
            0.0698586745,
            0.0256995701,
            0.1508192612,
            0.0554833055,
            0.0698586745,
            0.2036189424,
            0.1508192612,
            0.0256995701,
            0.5161896648,
        ]
        for tokens in (4, 5):
            made = self.pooled(weights=self.NEGATIVE, agg_dim="vocabulary", tokens=tokens)
            assert made == pytest.approx(absolute, abs=1e-6)

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ({"term_weight": "signed", "padding": "released"}, [9.0, 0.0, 0.25, 0.5, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0]),
            ({"term_weight": "signed"}, [0.0, 0.0, 0.25, 0.5, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0]),
            ({}, [0.0, 0.0, 0.25, 0.5, 0.0, 0.0, 0.0, 3.0, 0.0, 0.0]),
        ],
    )
    def test_without_vocabulary_head(self, options, expected):
        """Each token speaks of itself: [SEP] too, and padding in the released code."""
        made = self.pooled(
            weights=(5.0, 2.0, 0.5, 0.25, 9.0, -3.0),
            tokens=6,
            ids=(1, 7, 3, 2, 0, 7),
            mask=(1, 1, 1, 1, 0, 1),
            agg_dim="vocabulary",
            vocabulary_head=False,
            **options,
        )
        assert made == pytest.approx(expected, abs=1e-6)


def softmax(logits):
    exponentials = [np.exp(one - max(logits)) for one in logits]
    return [one / sum(exponentials) for one in exponentials]


def pooled_tokens(states, row, options):
    """The positions of the tokens that the part agg is made of."""
    real = states.attention_mask[row].nonzero()[:, 0].tolist()
    special = states.special_mask[row].tolist()
    return [token for token in real[1:] if options.get("pooled_tokens") != "text" or not special[token]]


def reference_terms(pooler, states, row, layer, options):
    """v of one text, token by token and term by term."""
    hidden = states.layers[layer][row].double().numpy()
    rule, has_head = options.get("term_weight", "abs"), options.get("vocabulary_head", True)
    head = states.head
    if options.get("head") == "projection":
        head = VocabularyHead(lambda one: one, head.weight, head.bias)
    logits = head(states.layers[layer][row]).detach().double().numpy()
    tokens = pooled_tokens(states, row, options)
    v = [0.0] * 40 if rule == "signed" or not has_head or not tokens else [-np.inf] * 40
    for token in tokens:
        weight = 1.0
        if rule != "none":
            u, b = (one.detach().double().numpy() for one in pooler.term_projection.parameters())
            weight = float(hidden[token] @ u[0] + b[0])
        if rule == "abs":
            weight = abs(weight)
        if has_head:
            predicted = softmax(logits[token])
        else:
            predicted = [float(term == states.input_ids[row, token]) for term in range(40)]
        v = [max(old, weight * one) for old, one in zip(v, predicted, strict=True)]
    return v


def reference(pooler, states, row, layer, options):
    """The whole vector of one text."""
    hidden = states.layers[layer][row].detach().double().numpy()
    real = states.attention_mask[row].bool().tolist()
    first = real.index(True)
    weight, bias = (one.detach().double().numpy() for one in pooler.cls_projection.parameters())
    vector = list(weight @ hidden[first] + bias)
    how = options.get("aggregation", "full")
    if how == "average":
        rest = [hidden[token] for token in pooled_tokens(states, row, options)]
        mean = sum(rest) / len(rest) if rest else np.zeros(6)
        weight, bias = (one.detach().double().numpy() for one in pooler.aggregate.parameters())
        return [*vector, *(weight @ mean + bias)]
    v = reference_terms(pooler, states, row, layer, options)
    if how == "linear":
        weight, bias = (one.detach().double().numpy() for one in pooler.aggregate.parameters())
        return [*vector, *(weight @ np.array(v) + bias)]
    if options.get("agg_dim") == "vocabulary":
        return [*vector, *v]
    # 40 terms in 4 or 8 columns: nothing is dropped or appended.
    columns = [max(v[column::8]) for column in range(8)]
    pairs = list(zip(columns[0::2], columns[1::2], strict=True))
    if how == "full":
        return [*vector, *(a if a > b else -b for a, b in pairs)]
    if options.get("slices") == "same_as_star":
        return [*vector, *(max(pair) for pair in pairs)]
    return [*vector, *(max(v[column::4]) for column in range(4))]


VARIANTS = [
    {},
    {"term_weight": "signed"},
    {"term_weight": "none"},
    {"vocabulary_head": False},
    {"vocabulary_head": False, "term_weight": "signed"},
    {"vocabulary_head": False, "term_weight": "none"},
    {"aggregation": "semi"},
    {"aggregation": "semi", "slices": "same_as_star"},
    {"aggregation": "linear"},
    {"aggregation": "average"},
    {"agg_dim": "vocabulary"},
    {"agg_dim": "vocabulary", "term_weight": "signed"},
    {"head": "projection"},
    {"head": "projection", "pooled_tokens": "text", "agg_dim": "vocabulary"},
    {"pooled_tokens": "text"},
    {"pooled_tokens": "text", "term_weight": "signed"},
    {"pooled_tokens": "text", "vocabulary_head": False},
    {"pooled_tokens": "text", "aggregation": "average"},
]


def ids_of(options):
    return ",".join(f"{name}={value}" for name, value in options.items()) or "default"


every_variant = pytest.mark.parametrize("options", VARIANTS, ids=ids_of)


def test_a_new_linear_map_keeps_inner_products():
    """Johnson and Lindenstrauss: they differ by about their size over the root of the dimensions."""
    pooler = create(EncoderInfo(width=8, layers=1, vocabulary_size=3000), agg_dim=1000, aggregation="linear")
    first, second = torch.rand(2, 3000, generator=torch.Generator().manual_seed(1))
    mapped = [pooler.aggregate(one) - pooler.aggregate.bias for one in (first, second)]
    assert (mapped[0] @ mapped[1]).item() == pytest.approx((first @ second).item(), rel=0.15)


@every_variant
@pytest.mark.parametrize("left", [False, True])
def test_equals_plain_loops(options, left, info, make_states):
    """An independent reference of every variant on random states, with padding on either side."""
    states = make_states([2, 7, 5], padded_to=8, left=left)
    pooler = create(info, **options)
    # Some weights of either sign, so that abs and signed differ.
    for side in ("query", "document"):
        made = pooler(states, side).vectors
        assert made.shape[1] == 1
        for row in range(3):
            expected = reference(pooler, states, row, 3, options)
            np.testing.assert_allclose(made[row, 0].detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_terms_are_the_vector_before_pooling(info, make_states):
    """`terms` shows what a text says of each term, of any layer."""
    states, pooler = make_states([7, 5]), create(info)
    for layer in (1, 3, -1):
        made = pooler.terms(states, layer).detach().numpy()
        for row in range(2):
            expected = reference_terms(pooler, states, row, layer % 4, {})
            np.testing.assert_allclose(made[row], expected, rtol=1e-4, atol=1e-6)


class TestParts:
    """The columns of [CLS] and of the terms."""

    def test_defaults_are_the_papers(self):
        """[CLS] in 128 dimensions and agg* in 640, of BERT's vocabulary."""
        pooler = registry.create("pooler", "aggretriever", EncoderInfo(768, 12, 30_522))
        assert pooler.parts == {"cls": slice(0, 128), "agg": slice(128, 768)}
        assert (pooler.aggregate.table.columns, pooler.aggregate.table.padded) == (1280, 198)
        assert pooler.needs.vocabulary_head
        assert pooler.default_loss == "aggretriever"


class TestLayers:
    """A vector from each of several layers."""

    def test_highest_first(self, info, make_states):
        states = make_states([4, 6])
        made = create(info, layers=(1, 3, 0))(states, "document")
        for index, layer in enumerate((3, 1, 0)):
            alone = create(info, layers=(layer,))(states, "document").vectors[:, 0]
            assert torch.equal(made.vectors[:, index], alone)
        assert made.kept is None

    def test_queries_have_the_last(self, info, make_states):
        states = make_states([4, 6])
        made = create(info, layers=(1, 2))(states, "query")
        assert torch.equal(made.vectors, create(info)(states, "document").vectors)
        assert made.kept is None

    def test_keep_last(self, info, make_states):
        """All while training, with the kept one marked; that one alone is indexed."""
        states, pooler = make_states([4, 6]), create(info, layers=(1, 3), keep="last")
        training = pooler(states, "document")
        indexed = pooler.eval()(states, "document")
        assert (training.kept, indexed.kept) == (0, 0)
        assert training.vectors.shape[1] == 2
        assert torch.equal(indexed.vectors, training.vectors[:, :1])
        assert pooler.default_loss == "self_contrastive"
