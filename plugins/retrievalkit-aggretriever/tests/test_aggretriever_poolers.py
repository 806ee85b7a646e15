"""The pooler on token states made by hand: the equations, every option, and what is refused."""

from __future__ import annotations

import numpy as np
import pytest
import retrievalkit_testing as testing
import torch

from retrievalkit import registry
from retrievalkit.contracts import EncoderInfo, TokenStates, VocabularyHead
from retrievalkit.errors import InputError, OptionError, UnsupportedError
from retrievalkit.models.retriever import Retriever

WIDTH, LAYERS, VOCABULARY = 6, 3, 40


@pytest.fixture
def info():
    """An encoder of 3 layers, width 6, and 40 terms."""
    return EncoderInfo(width=WIDTH, layers=LAYERS, vocabulary_size=VOCABULARY)


@pytest.fixture
def make_states():
    """Random token states, ids and a vocabulary head, for texts of given lengths; the same for each length."""

    def make(lengths, *, padded_to=None, left=False):
        n_tokens = padded_to or max(lengths)
        # What stands at padding must not matter, so it is large.
        layers = {layer: torch.full((len(lengths), n_tokens, WIDTH), 1e2) for layer in range(LAYERS + 1)}
        mask = torch.zeros(len(lengths), n_tokens, dtype=torch.long)
        special, ids = torch.zeros_like(mask, dtype=torch.bool), torch.zeros_like(mask)
        for row, length in enumerate(lengths):
            start = n_tokens - length if left else 0
            real = slice(start, start + length)
            generator = torch.Generator().manual_seed(length)
            for layer in layers.values():
                layer[row, real] = torch.randn(length, WIDTH, generator=generator)
            # Few different ids, so that a text has some of them twice.
            ids[row, real] = torch.randint(3, 9, (length,), generator=generator)
            mask[row, real] = 1
            special[row, start] = special[row, start + length - 1] = True
        return TokenStates(layers, mask, ids, special, head=make_head())

    return make


def make_head():
    """A head of a nonlinear map, a projection and a bias."""
    generator = torch.Generator().manual_seed(0)
    inner = torch.randn(WIDTH, WIDTH, generator=generator)
    weight, bias = torch.randn(VOCABULARY, WIDTH, generator=generator), torch.randn(VOCABULARY, generator=generator)
    return VocabularyHead(lambda hidden: torch.tanh(hidden @ inner.to(hidden.dtype)), weight, bias)


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

    ABSOLUTE = (
        0.3797911309, 0.139717349, 0.0513991403, 0.1508192612, 0.0554833055, 0.139717349, 0.2036189424, 0.1508192612,
        0.0513991403, 1.0323793296,
    )  # fmt: skip
    SIGNED = (
        0.3797911309, 0.139717349, 0.0513991403, 0.0513991403, 0.0513991403, 0.139717349, 0.2036189424, 0.0513991403,
        0.0513991403, 1.0323793296,
    )  # fmt: skip
    OF_NEGATIVE = (
        0.1898955654, 0.0698586745, 0.0256995701, 0.1508192612, 0.0554833055, 0.0698586745, 0.2036189424, 0.1508192612,
        0.0256995701, 0.5161896648,
    )  # fmt: skip
    RAW = (
        -0.003729411, -0.0101375902, -0.003729411, -0.003729411, -0.003729411, -0.003729411, -0.0204111674,
        -0.003729411, -0.0101375902, -0.003729411,
    )  # fmt: skip

    @pytest.mark.parametrize(
        ("weighing", "vocabulary", "middle"),
        [
            ({}, ABSOLUTE, 0.1508192612),
            ({"term_weight": "signed"}, SIGNED, 0.0513991403),
            ({"term_weight": "signed", "padding": "released"}, SIGNED, 0.0513991403),
        ],
        ids=str,
    )
    def test_weights_without_and_with_their_sign(self, weighing, vocabulary, middle):
        for options, expected in (
            ({"agg_dim": "vocabulary"}, vocabulary),
            ({"agg_dim": 5}, [0.3797911309, -middle, -0.139717349, 0.2036189424, -1.0323793296]),
            ({"agg_dim": 5, "aggregation": "semi"}, [0.3797911309, 0.2036189424, middle, middle, 1.0323793296]),
            (
                {"agg_dim": 5, "aggregation": "semi", "slices": "same_as_star"},
                [0.3797911309, middle, 0.139717349, 0.2036189424, 1.0323793296],
            ),
            ({"agg_dim": 2, "remainder": "drop"}, [0.2036189424, -1.0323793296]),
            ({"agg_dim": 2, "aggregation": "semi"}, [0.3797911309, 1.0323793296]),
        ):
            assert self.pooled(**weighing, **options) == pytest.approx(expected, abs=1e-6), options

    def test_negative_weights(self):
        """Signed: cut off at 0, in the released code only where the batch pads the text; abs: padding or not."""
        signed = {"weights": self.NEGATIVE, "agg_dim": "vocabulary", "term_weight": "signed"}
        assert self.pooled(**signed) == self.pooled(**signed, tokens=4) == [0.0] * 10
        assert self.pooled(**signed, padding="released") == [0.0] * 10
        assert self.pooled(**signed, padding="released", tokens=4) == pytest.approx(self.RAW, abs=1e-6)
        for tokens in (4, 5):
            pooled = self.pooled(weights=self.NEGATIVE, agg_dim="vocabulary", tokens=tokens)
            assert pooled == pytest.approx(self.OF_NEGATIVE, abs=1e-6)

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
        pooled = self.pooled(
            weights=(5.0, 2.0, 0.5, 0.25, 9.0, -3.0),
            tokens=6,
            ids=(1, 7, 3, 2, 0, 7),
            mask=(1, 1, 1, 1, 0, 1),
            agg_dim="vocabulary",
            vocabulary_head=False,
            **options,
        )
        assert pooled == pytest.approx(expected, abs=1e-6)


def softmax(logits):
    exponentials = [np.exp(logit - max(logits)) for logit in logits]
    return [exponential / sum(exponentials) for exponential in exponentials]


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
        head = VocabularyHead(lambda value: value, head.weight, head.bias)
    logits = head(states.layers[layer][row]).detach().double().numpy()
    tokens = pooled_tokens(states, row, options)
    v = [0.0] * 40 if rule == "signed" or not has_head or not tokens else [-np.inf] * 40
    for token in tokens:
        weight = 1.0
        if rule != "none":
            u, b = (parameter.detach().double().numpy() for parameter in pooler.term_projection.parameters())
            weight = float(hidden[token] @ u[0] + b[0])
        if rule == "abs":
            weight = abs(weight)
        if has_head:
            predicted = softmax(logits[token])
        else:
            predicted = [float(term == states.input_ids[row, token]) for term in range(40)]
        v = [max(old, weight * probability) for old, probability in zip(v, predicted, strict=True)]
    return v


def reference(pooler, states, row, layer, options):
    """The whole vector of one text."""
    hidden = states.layers[layer][row].detach().double().numpy()
    real = states.attention_mask[row].bool().tolist()
    first = real.index(True)
    weight, bias = (parameter.detach().double().numpy() for parameter in pooler.cls_projection.parameters())
    vector = list(weight @ hidden[first] + bias)
    how = options.get("aggregation", "full")
    if how == "average":
        rest = [hidden[token] for token in pooled_tokens(states, row, options)]
        mean = sum(rest) / len(rest) if rest else np.zeros(6)
        weight, bias = (parameter.detach().double().numpy() for parameter in pooler.aggregate.parameters())
        return [*vector, *(weight @ mean + bias)]
    v = reference_terms(pooler, states, row, layer, options)
    if how == "linear":
        weight, bias = (parameter.detach().double().numpy() for parameter in pooler.aggregate.parameters())
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


def test_a_new_linear_map_keeps_inner_products():
    """Johnson and Lindenstrauss: they differ by about their size over the root of the dimensions."""
    pooler = create(EncoderInfo(width=8, layers=1, vocabulary_size=3000), agg_dim=1000, aggregation="linear")
    first, second = torch.rand(2, 3000, generator=torch.Generator().manual_seed(1))
    mapped = [pooler.aggregate(vector) - pooler.aggregate.bias for vector in (first, second)]
    assert (mapped[0] @ mapped[1]).item() == pytest.approx((first @ second).item(), rel=0.15)


@pytest.mark.parametrize("options", VARIANTS, ids=str)
@pytest.mark.parametrize("left", [False, True])
def test_equals_plain_loops(options, left, info, make_states):
    states = make_states([2, 7, 5], padded_to=8, left=left)
    pooler = create(info, **options)
    for side in ("query", "document"):
        pooled = pooler(states, side).vectors
        assert pooled.shape[1] == 1
        for row in range(3):
            expected = reference(pooler, states, row, 3, options)
            np.testing.assert_allclose(pooled[row, 0].detach().numpy(), expected, rtol=1e-4, atol=1e-5)


def test_defaults_are_the_papers():
    pooler = registry.create("pooler", "aggretriever", EncoderInfo(768, 12, 30_522))
    assert pooler.parts == {"cls": slice(0, 128), "agg": slice(128, 768)}
    assert (pooler.aggregate.table.columns, pooler.aggregate.table.padded) == (1280, 198)
    assert pooler.default_loss == "aggretriever"


@pytest.mark.parametrize("keep", ["all", "last"])
def test_a_vector_from_each_of_several_layers(keep, info, make_states):
    states, pooler = make_states([4, 6]), create(info, layers=(1, 3, 0), keep=keep)
    representation = pooler(states, "document")
    for index, layer in enumerate((3, 1, 0)):
        alone = create(info, layers=(layer,))(states, "document").vectors[:, 0]
        assert torch.equal(representation.vectors[:, index], alone)
    query, indexed = pooler(states, "query"), pooler.eval()(states, "document")
    assert torch.equal(query.vectors, representation.vectors[:, :1])
    assert torch.equal(indexed.vectors, representation.vectors[:, :1] if keep == "last" else representation.vectors)
    assert (representation.kept, indexed.kept, query.kept) == ((0, 0, None) if keep == "last" else (None, None, None))
    assert pooler.default_loss == ("self_contrastive" if keep == "last" else "aggretriever")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"agg_dim": 21}, OptionError, r"agg_dim is 21, .* has 40\. Set agg_dim to 20 or less"),
        ({"agg_dim": 41, "aggregation": "semi"}, OptionError, r"agg_dim is 41, .* has 40\. Set agg_dim to 40 or less"),
        ({"agg_dim": 41, "aggregation": "linear"}, OptionError, "agg_dim is 41, .* Set agg_dim to 40 or less"),
        ({"cls_dim": 0, "agg_dim": 0}, OptionError, "cls_dim and agg_dim are both 0"),
        ({"cls_dim": 0, "term_weight": "none", "vocabulary_head": False}, OptionError, "leave nothing to train"),
        ({"layers": "9"}, UnsupportedError, "layer 9 .* 0 .embeddings. to 3"),
        ({"layers": "1,2", "keep": "last"}, UnsupportedError, r"keep=last needs the last layer \(3\).*1,2,-1"),
        *(
            (options, OptionError, rf"{idle} has no effect with .*{because}")
            for options, idle, because in (
                ({"agg_dim": "vocabulary", "aggregation": "linear"}, "aggregation=linear", "agg_dim=vocabulary"),
                ({"agg_dim": "vocabulary", "slices": "seeded"}, "slices=seeded", "agg_dim=vocabulary"),
                ({"agg_dim": 0, "term_weight": "none"}, "term_weight=none", "agg_dim=0"),
                ({"agg_dim": 0, "pooled_tokens": "text"}, "pooled_tokens=text", "agg_dim=0"),
                ({"aggregation": "average", "vocabulary_head": False}, "vocabulary_head=false", "aggregation=average"),
                ({"aggregation": "linear", "slices": "seeded"}, "slices=seeded", "aggregation=linear"),
                ({"slices": "same_as_star"}, "slices=same_as_star", "aggregation=full"),
                ({"slice_seed": 1}, "slice_seed=1", "slices=strided"),
                ({"aggregation": "linear", "remainder": "pad"}, "remainder=pad", "aggregation=linear"),
                ({"drop_limit": 3}, "drop_limit=3", "remainder=auto"),
                ({"padding": "released"}, "padding=released", "term_weight=abs"),
                (
                    {"vocabulary_head": False, "pooled_tokens": "text", "padding": "released"},
                    "padding=released",
                    "pooled_tokens=text",
                ),
                ({"vocabulary_head": False, "head": "projection"}, "head=projection", "vocabulary_head=false"),
            )
        ),
    ],
    ids=str,
)
def test_wrong_options(options, error, message, info):
    with pytest.raises(error, match=message):
        create(info, **options)


CASES = [
    {},
    *(
        pytest.param(options, marks=pytest.mark.slow)
        for options in (
            {"agg_dim": "vocabulary"},
            {"layers": (1, 2), "keep": "last"},
            {"term_weight": "signed"},
            {"vocabulary_head": False},
            {"aggregation": "linear"},
            {"aggregation": "average"},
            {"slices": "seeded", "slice_seed": 7},
            {"cls_dim": 0, "aggregation": "semi"},
            {"agg_dim": 0},
            {"layers": (1, 2)},
        )
    ),
]


@pytest.mark.parametrize("options", CASES, ids=str)
def test_the_contract_is_kept(options, tiny_model):
    # With signed weights, the released code's padding has an effect.
    without = ["batch", "padding"] if "signed" in options.values() else []
    options = {"cls_dim": 8, "agg_dim": 24} | options
    testing.check("pooler", "aggretriever", model=tiny_model, without=without, **options)


@pytest.mark.parametrize(
    ("architecture", "vocabulary_head", "error", "message"),
    [
        ("t5", True, InputError, "vocabulary head"),
        ("t5", False, UnsupportedError, r"\[CLS\]-like token .* adds none\. Choose a model that does"),
        ("llama", False, UnsupportedError, r"\[CLS\]-like token .* adds none\. Choose a model that does"),
    ],
)
def test_unsuitable_encoders_are_refused(architecture, vocabulary_head, error, message, tmp_path):
    model = testing.tiny_model(tmp_path, architecture=architecture)
    options = {"cls_dim": 8, "agg_dim": 24, "vocabulary_head": vocabulary_head}
    with pytest.raises(error, match=message):
        Retriever.create(model, pooler="aggretriever", pooler_options=options)
