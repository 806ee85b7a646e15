"""The pooler on token states made by hand: the equations, every option, padding, order, gradients and saving."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, Progress, Representation, TokenStates, VocabularyHead
from retrievalkit.score import scores

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

    def test_without_sep(self):
        """max(2 softmax(t1), 0.5 softmax(t2)), worked out by hand."""
        t1, t2 = (np.exp(self.LOGITS[token]) for token in (1, 2))
        expected = np.maximum(2 * t1 / t1.sum(), 0.5 * t2 / t2.sum())
        assert self.pooled(agg_dim="vocabulary", pooled_tokens="text") == pytest.approx(expected.tolist(), abs=1e-6)
        assert expected[[0, 6]] == pytest.approx([0.3797911309, 0.0513991403], abs=1e-9)

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
OTHERS = [
    {"slices": "seeded"},
    {"slices": "seeded", "slice_seed": 5},
    {"agg_dim": 7},
    {"agg_dim": 7, "remainder": "drop"},
    {"agg_dim": 7, "remainder": "drop", "drop_limit": 11},
    {"cls_dim": 0},
    {"agg_dim": 0},
    {"layers": (1, 3)},
    {"layers": (1, 3), "keep": "last"},
]


def ids_of(options):
    return ",".join(f"{name}={value}" for name, value in options.items()) or "default"


every_variant = pytest.mark.parametrize("options", VARIANTS, ids=ids_of)
every_case = pytest.mark.parametrize("options", VARIANTS + OTHERS, ids=ids_of)


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

    @pytest.mark.parametrize(
        ("options", "parts"),
        [
            ({}, {"cls": slice(0, 3), "agg": slice(3, 7)}),
            ({"cls_dim": 0}, {"agg": slice(0, 4)}),
            ({"agg_dim": 0}, {"cls": slice(0, 3)}),
            ({"agg_dim": "vocabulary"}, {"cls": slice(0, 3), "agg": slice(3, 43)}),
        ],
    )
    def test_columns(self, options, parts, info, make_states):
        made = create(info, **options)(make_states([4, 6]), "document")
        assert made.parts == parts
        assert made.vectors.shape == (2, 1, max(part.stop for part in parts.values()))

    def test_defaults_are_the_papers(self):
        """[CLS] in 128 dimensions and agg* in 640, of BERT's vocabulary."""
        pooler = registry.create("pooler", "aggretriever", EncoderInfo(768, 12, 30_522))
        assert pooler.parts == {"cls": slice(0, 128), "agg": slice(128, 768)}
        assert (pooler.aggregate.table.columns, pooler.aggregate.table.padded) == (1280, 198)
        assert pooler.needs.vocabulary_head
        assert pooler.default_loss == "aggretriever"

    def test_score_is_the_sum_of_the_parts(self, info, make_states):
        queries, documents = (create(info)(make_states(lengths), "query") for lengths in ([4, 6], [5, 3, 7]))
        of_parts = [
            scores(Representation(queries.vectors[:, :, part]), Representation(documents.vectors[:, :, part]))
            for part in queries.parts.values()
        ]
        torch.testing.assert_close(scores(queries, documents), of_parts[0] + of_parts[1])

    def test_sides_are_encoded_alike(self, info, make_states):
        pooler, states = create(info), make_states([4, 6])
        assert torch.equal(pooler(states, "query").vectors, pooler(states, "document").vectors)


class TestNeeds:
    """Only what is used is asked for."""

    @pytest.mark.parametrize(
        ("options", "head"),
        [
            ({}, True),
            ({"aggregation": "semi"}, True),
            ({"aggregation": "linear"}, True),
            ({"agg_dim": "vocabulary"}, True),
            ({"vocabulary_head": False}, False),
            ({"aggregation": "average"}, False),
            ({"agg_dim": 0}, False),
        ],
    )
    def test_head(self, options, head, info):
        assert create(info, **options).needs.vocabulary_head is head

    def test_layers(self, info):
        """keep=last needs the other layers in training alone, and queries never."""
        pooler = create(info, layers=(1, -1), keep="last")
        assert pooler.needs.layers_of("document", info) == (1, 3)
        assert pooler.needs.layers_of("query", info) == (3,)
        assert pooler.eval().needs.layers_of("document", info) == (3,)
        assert create(info, layers=(1, -1)).eval().needs.layers_of("document", info) == (1, 3)


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


@every_case
@pytest.mark.parametrize("training", [True, False])
def test_padding_and_order_change_nothing(options, training, info, make_states):
    """More padding, padding on the left, another order, smaller batches: the same vectors for each text."""
    pooler, lengths = create(info, **options).train(training), [2, 7, 4, 1]
    expected = pooler(make_states(lengths), "document").vectors
    others = [
        pooler(make_states(lengths, padded_to=9), "document").vectors,
        pooler(make_states(lengths, padded_to=9, left=True), "document").vectors,
        pooler(make_states(lengths[::-1]), "document").vectors.flip(0),
        torch.cat([pooler(make_states([one]), "document").vectors for one in lengths]),
    ]
    assert expected.isfinite().all()
    for other in others:
        torch.testing.assert_close(other, expected)


class TestReleasedPadding:
    """Bit for bit what the released code does with padding, asked for by name."""

    def test_signed_weights(self, info, make_states):
        """Without padding values may be below 0; with it, they are cut off."""
        options = {"term_weight": "signed", "agg_dim": "vocabulary", "cls_dim": 0}
        pooler = create(info, **options, padding="released")
        pooler.term_projection.weight.data.zero_()
        pooler.term_projection.bias.data.fill_(-1.0)
        whole, padded = (pooler(make_states([5], padded_to=to), "document").vectors for to in (5, 6))
        assert (whole < 0).all()
        assert torch.equal(padded, torch.zeros_like(padded))
        mixed = pooler(make_states([5, 3]), "document").vectors
        torch.testing.assert_close(mixed[:1], whole)
        assert torch.equal(mixed[1], torch.zeros_like(mixed[1]))

    def test_without_head(self, info, make_states):
        """Padding is a token like others: its id gets its weight."""
        states = make_states([5], padded_to=7)
        made, masked = (
            create(info, vocabulary_head=False, agg_dim="vocabulary", padding=padding).terms(states)
            for padding in ("released", "masked")
        )
        assert made[0, 0] > 10
        assert masked[0, 0] == 0
        assert torch.equal(made[0, 1:], masked[0, 1:])


BASE = {"cls_dim": 3, "agg_dim": 4}
CHANGES = [
    ({}, {"cls_dim": 2}),
    ({}, {"agg_dim": 5}),
    ({}, {"aggregation": "semi"}),
    ({}, {"aggregation": "linear"}),
    ({}, {"aggregation": "average"}),
    ({}, {"term_weight": "signed"}),
    ({}, {"term_weight": "none"}),
    ({"term_weight": "signed"}, {"term_weight": "none"}),
    ({}, {"vocabulary_head": False}),
    ({}, {"head": "projection"}),
    ({}, {"pooled_tokens": "text"}),
    ({"vocabulary_head": False}, {"pooled_tokens": "text"}),
    ({"aggregation": "average"}, {"pooled_tokens": "text"}),
    ({}, {"slices": "seeded"}),
    ({"aggregation": "semi"}, {"slices": "same_as_star"}),
    ({"slices": "seeded"}, {"slice_seed": 1}),
    ({"agg_dim": 7}, {"remainder": "drop"}),
    ({"agg_dim": 7, "remainder": "drop"}, {"drop_limit": 11}),
    ({"term_weight": "signed"}, {"padding": "released"}),
    ({"vocabulary_head": False}, {"padding": "released"}),
    ({}, {"layers": (2,)}),
    ({"layers": (1, 3)}, {"keep": "last"}),
]


@pytest.mark.parametrize(("given", "change"), CHANGES, ids=[ids_of(given | change) for given, change in CHANGES])
def test_every_option_changes_the_vectors(given, change, info, make_states):
    """Nothing else being changed; projections of one size start alike."""
    states = make_states([5, 6, 9], padded_to=9)
    made = []
    for options in (given, given | change):
        pooler = create(info, **options).eval()
        if pooler.term_projection is not None:
            # Of both signs, so that the sign matters, and one text has none above 0.
            pooler.term_projection.bias.data.fill_(-1.5)
        made.append(pooler(states, "document").vectors)
    assert made[0].shape != made[1].shape or not torch.allclose(*made)


class TestGradient:
    """Where it goes, and where not."""

    def gradients(self, info, states, part, **options):
        """Of one part of the vectors, at the hidden states; and the names of the parameters that it reaches."""
        states.layers[3].requires_grad_()
        pooler = create(info, **options)
        if pooler.term_projection is not None:
            # So that signed weights are not all cut off.
            pooler.term_projection.bias.data.fill_(5.0)
        made = pooler(states, "document")
        made.vectors[:, :, made.parts[part]].sum().backward()
        named = dict(pooler.named_parameters())
        reached = {name for name, one in named.items() if one.grad is not None and one.grad.abs().sum() > 0}
        return states.layers[3].grad, reached

    @pytest.mark.parametrize("options", [one for one in VARIANTS if one.get("term_weight") != "none"], ids=ids_of)
    def test_none_to_cls_or_padding(self, options, info, make_states):
        """The agg part comes of the tokens behind [CLS], [SEP] included."""
        states = make_states([2, 6], padded_to=7)
        gradient, _ = self.gradients(info, states, "agg", **options)
        assert gradient[:, 0].abs().sum() == 0
        assert gradient[states.attention_mask == 0].abs().sum() == 0
        assert gradient[:, 1].abs().sum() > 0

    def test_of_the_cls_part(self, info, make_states):
        """To the first token, and to its own projection alone."""
        gradient, reached = self.gradients(info, make_states([4, 6]), "cls")
        assert gradient[:, 1:].abs().sum() == 0
        assert gradient[:, 0].abs().sum() > 0
        assert reached == {"cls_projection.weight", "cls_projection.bias"}

    def test_only_to_tokens_that_won(self, info, make_states):
        """Without a head, with two dimensions: the tokens of the two winning ids, and no other."""
        states = make_states([8])
        gradient, _ = self.gradients(info, states, "agg", vocabulary_head=False, agg_dim=2)
        touched = {int(token) for token in states.input_ids[0][gradient[0].abs().sum(dim=1) > 0]}
        assert 1 <= len(touched) <= 2
        assert (gradient[0].abs().sum(dim=1) > 0).sum() == len(touched)

    def test_of_the_head(self, info, make_states):
        """The head is trained with the rest."""
        states = make_states([5, 6])
        states.head.weight.requires_grad_()
        create(info)(states, "document").vectors.sum().backward()
        assert states.head.weight.grad.abs().sum() > 0

    def test_none_below_zero(self, info, make_states):
        """Signed weights that are all below 0 are cut off, and so is their gradient."""
        states = make_states([5])
        states.layers[3].requires_grad_()
        pooler = create(info, term_weight="signed", cls_dim=0)
        pooler.term_projection.weight.data.zero_()
        pooler.term_projection.bias.data.fill_(-1.0)
        pooler(states, "document").vectors.sum().backward()
        assert states.layers[3].grad.abs().sum() == 0

    def test_numerical(self, info, make_states):
        """Central differences, through softmax, maxima and projections."""
        states = make_states([5, 3])
        head = states.head
        double = type(head)(head.transform, head.weight.double(), head.bias.double())
        pooler = create(info).double()

        def vectors(hidden):
            mask, special = states.attention_mask, states.special_mask
            made = TokenStates({3: hidden}, mask, states.input_ids, special, head=lambda one: double(one))
            return pooler(made, "document").vectors

        hidden = torch.where(states.attention_mask[:, :, None].bool(), states.layers[3], 0.0).double().requires_grad_()
        assert torch.autograd.gradcheck(vectors, hidden)


class TestSaving:
    """Weights and random slices are stored; what was made anew does not matter."""

    @every_case
    def test_loaded_gives_equal_vectors(self, options, info, make_states):
        states, pooler = make_states([4, 6]), create(info, **options).eval()
        loaded = registry.create("pooler", "aggretriever", info, **(SMALL | options)).eval()
        loaded.load_state_dict(pooler.state_dict())
        assert torch.equal(loaded(states, "document").vectors, pooler(states, "document").vectors)

    def test_parameters(self, info):
        """No more than the variant has."""
        cls = ["cls_projection.weight", "cls_projection.bias"]
        term = ["term_projection.weight", "term_projection.bias"]
        assert list(create(info).state_dict()) == cls + term
        assert list(create(info, cls_dim=0).state_dict()) == term
        assert list(create(info, term_weight="none").state_dict()) == cls
        assert list(create(info, agg_dim=0).state_dict()) == cls
        linear = create(info, aggregation="linear").state_dict()
        assert [tuple(one.shape) for one in linear.values()] == [(3, 6), (3,), (1, 6), (1,), (4, 40), (4,)]
        average = create(info, aggregation="average").state_dict()
        assert [tuple(one.shape) for one in average.values()] == [(3, 6), (3,), (4, 6), (4,)]
        assert "aggregate.order" in create(info, slices="seeded").state_dict()


@every_case
def test_bf16_under_autocast(options, info, make_states):
    """What the processor computes in half precision is near to what it computes in float32."""
    states, pooler = make_states([4, 6]), create(info, **options).eval()
    expected = pooler(states, "document").vectors
    with torch.autocast("cpu", dtype=torch.bfloat16):
        made = pooler(states, "document").vectors
    assert (made.float() - expected).abs().max() < 0.1 * expected.abs().max() + 0.05


@pytest.mark.parametrize("loss", ["contrastive", "aggretriever"])
@every_case
def test_it_can_be_trained(loss, options, info, make_states):
    """Every variant with either loss, gradients finite and reaching the states."""
    pooler = create(info, **options)
    states = make_states([4, 6, 5], padded_to=8)
    states.layers[3].requires_grad_()
    made = pooler(states, "document")
    queries = pooler(make_states([3, 4]), "query")
    value = registry.create("loss", loss)(queries, made, torch.tensor([0, 1]), Progress(0, 0.0, 1))
    value.total.backward()
    assert states.layers[3].grad.isfinite().all()
    assert states.layers[3].grad.abs().sum() > 0
