"""Fused pooling of vocabulary logits has the values and gradients of the plain expression, in less memory."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from retrievalkit.contracts import TokenStates, VocabularyHead
from retrievalkit.scoring import lexical
from retrievalkit.scoring.lexical import keep_top_k, max_saturated, max_weighted_softmax, text_mask

# [CLS] t1 t2 [SEP] [PAD]
SATURATED = [
    [5.0, -1.0, 0.0, 0.0, 0.0, 0.0],
    [0.5, 2.0, -3.0, 0.0, 1.0, 0.0],
    [-1.0, 0.5, 1.5, 0.0, 1.2, -2.0],
    [0.0, 0.0, 0.0, 3.0, 0.0, 0.0],
    [0.0, 0.0, 0.0, 0.0, 0.0, 9.0],
]
WEIGHTED = [
    [9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
    [2.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 3.0],
    [0.0, 0.0, 0.0, 2.0, 1.0, 0.0, 0.0, 2.0, 0.0, 0.0],
    [0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 4.0, 0.0, 1.0, 0.0],
    [0.0, 0.0, 9.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],
]
TOKEN_WEIGHTS = [5.0, 2.0, -0.5, 0.25, 9.0]
LEFT = [0.3797911309, 0.139717349, 0.0513991403]
RIGHT = [0.0513991403, 1.0323793296]


def plain_saturated(hidden, head, mask):
    """The equation: the maximum over the tokens of saturated logits."""
    weights = torch.log1p(torch.relu(head(hidden))) * mask[:, :, None]
    return weights.max(dim=1).values


def plain_weighted(hidden, head, weights, mask):
    """The equation, text by text."""
    rows = [
        (head(states[taken]).softmax(dim=1) * of[taken][:, None]).max(dim=0).values
        if taken.any()
        else head(states).new_zeros(head(states).shape[1])
        for states, of, taken in zip(hidden, weights, mask, strict=True)
    ]
    return torch.stack(rows)


class Setting:
    """Texts of different lengths, one of them empty, and a head; float64 by default."""

    def __init__(self, *, texts=5, tokens=7, width=4, vocabulary=11, seed=0, bias=True, dtype=torch.float64):
        random = torch.Generator().manual_seed(seed)

        def draw(*shape):
            return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype).requires_grad_()

        self.hidden, self.weights = draw(texts, tokens, width), draw(texts, tokens)
        self.weight, self.bias = draw(vocabulary, width), draw(vocabulary) if bias else None
        self.mask = torch.rand(texts, tokens, generator=random) < 0.6
        self.mask[-1] = False
        self.upstream = torch.randn(texts, vocabulary, generator=random, dtype=torch.float64).to(dtype)

    @property
    def head(self):
        return VocabularyHead(torch.tanh, self.weight, self.bias)

    @property
    def leaves(self):
        return [one for one in (self.hidden, self.weight, self.bias, self.weights) if one is not None]

    def gradients(self, pooled):
        """Of (pooled * upstream).sum(), for hidden states, weight, bias and token weights; None where there is none."""
        upstream = self.upstream.to(pooled.dtype)
        return torch.autograd.grad(pooled, self.leaves, upstream, allow_unused=True, retain_graph=True)

    def compare(self, fused, plain):
        torch.testing.assert_close(fused, plain)
        for ours, theirs in zip(self.gradients(fused), self.gradients(plain), strict=True):
            torch.testing.assert_close(ours, theirs)


@pytest.fixture(params=[1, 3, 1000])
def tile(request, monkeypatch):
    """Number of tokens to project at a time."""
    monkeypatch.setattr(lexical, "_most_tokens", lambda weight: request.param)


def identity_head(logits):
    """Hidden states and a VocabularyHead with these logits, to compute known numbers by the fused path."""
    logits = torch.tensor([logits])
    return logits, VocabularyHead(lambda hidden: hidden, torch.eye(logits.shape[2]))


@pytest.mark.parametrize("weighted", [False, True])
def test_whole_texts_are_pooled_like_their_unmasked_tokens(weighted, tile):
    """On a GPU, padding is computed too."""
    setting = Setting()
    setting.upstream[-1] = 0.0  # of a text without tokens, as poolers leave it
    weights = setting.weights if weighted else None
    whole = lexical._greatest_of_texts(
        setting.head.transform(setting.hidden), setting.weight, setting.bias, weights, setting.mask
    )
    setting.compare(whole, lexical._pooled(setting.hidden, setting.head, weights, setting.mask))


@pytest.mark.parametrize(
    ("attention", "special", "expected"),
    [([1, 1, 1, 1, 0], [1, 0, 0, 1, 0], [0, 1, 1, 0, 0]), ([1, 1, 0], [0, 0, 1], [1, 1, 0])],
)
def test_special_tokens_and_padding_are_masked(attention, special, expected):
    states = TokenStates({}, torch.tensor([attention]), torch.zeros(1), torch.tensor([special]).bool())
    assert text_mask(states).tolist() == [list(map(bool, expected))]


@pytest.mark.parametrize(
    ("mask", "expected"),
    [
        ([0, 1, 1, 0, 0], [0.4054651081, 1.0986122887, 0.9162907319, 0.0, 0.7884573604, 0.0]),
        ([1, 1, 1, 1, 0], [1.7917594692, 1.0986122887, 0.9162907319, 1.3862943611, 0.7884573604, 0.0]),
    ],
)
def test_saturated_numbers_worked_out_by_hand(mask, expected):
    """Without and with [CLS] and [SEP], by a `VocabularyHead` and by a function."""
    mask, expected = torch.tensor([mask]).bool(), torch.tensor([expected])
    hidden, head = identity_head(SATURATED)
    torch.testing.assert_close(max_saturated(hidden, head, mask), expected)
    torch.testing.assert_close(max_saturated(hidden, lambda states: states, mask), expected)


@pytest.mark.parametrize(
    ("weights", "middle"),
    [
        (
            [abs(weight) for weight in TOKEN_WEIGHTS],
            [0.1508192612, 0.0554833055, 0.139717349, 0.2036189424, 0.1508192612],
        ),
        (TOKEN_WEIGHTS, [0.0513991403, 0.0513991403, 0.139717349, 0.2036189424, 0.0513991403]),
    ],
)
def test_weighted_numbers_worked_out_by_hand(weights, middle):
    """[CLS] and padding are masked; with absolute and with signed weights."""
    mask, expected = torch.tensor([[0, 1, 1, 1, 0]]).bool(), torch.tensor([[*LEFT, *middle, *RIGHT]])
    hidden, head = identity_head(WEIGHTED)
    weights = torch.tensor([weights])
    torch.testing.assert_close(max_weighted_softmax(hidden, head, weights, mask), expected)
    torch.testing.assert_close(max_weighted_softmax(hidden, lambda states: states, weights, mask), expected)


def saturated(setting, head=None):
    return max_saturated(setting.hidden, head or setting.head, setting.mask)


def weighted(setting, head=None):
    return max_weighted_softmax(setting.hidden, head or setting.head, setting.weights, setting.mask)


def plain(pool, setting):
    if pool is saturated:
        return plain_saturated(setting.hidden, setting.head, setting.mask)
    return plain_weighted(setting.hidden, setting.head, setting.weights, setting.mask)


@pytest.mark.parametrize("pool", [saturated, weighted])
class TestBoth:
    @pytest.mark.parametrize("bias", [True, False])
    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("sign", [1, -1])
    def test_equals_the_plain_expression(self, pool, tile, bias, seed, sign):
        """Values and gradients; the zeros of masked tokens do not exceed negative weights."""
        setting = Setting(bias=bias, seed=seed)
        if sign < 0:
            setting.weights = (-setting.weights.abs() - 0.1).detach().requires_grad_()
        setting.compare(pool(setting), plain(pool, setting))
        setting.compare(pool(setting), pool(setting, head=lambda hidden: setting.head(hidden)))

    @pytest.mark.parametrize("k", [1, 2, 10])
    def test_with_a_gradient_at_few_terms(self, pool, tile, k):
        """Few or many rows of the weight are gathered; Aggretriever pools slices by maximum."""
        setting = Setting(vocabulary=30)
        setting.compare(*(keep_top_k(one, k) for one in (pool(setting), plain(pool, setting))))
        setting.upstream = setting.upstream[:, :10]
        both = (pool(setting), plain(pool, setting))
        setting.compare(*(one.unflatten(1, (3, 10)).max(dim=1).values for one in both))

    def test_padding_changes_nothing(self, pool):
        setting = Setting()
        before = pool(setting)
        gradients = setting.gradients(before)
        noise = torch.full_like(setting.hidden[:, :3], 100.0)
        setting.hidden = torch.cat([setting.hidden, noise], dim=1).detach().requires_grad_()
        setting.weights = torch.cat([setting.weights, noise[:, :, 0]], dim=1).detach().requires_grad_()
        setting.mask = torch.nn.functional.pad(setting.mask, (0, 3))
        after = pool(setting)
        assert torch.equal(after, before)
        of_hidden, *rest = setting.gradients(after)
        assert torch.equal(of_hidden[:, :-3], gradients[0])
        assert not of_hidden[:, -3:].any()
        assert torch.equal(rest[0], gradients[1])

    def test_the_first_of_equal_tokens_receives_the_gradient(self, pool, tile):
        """With exact products and sums, because a kernel may round the rows of a matrix differently."""
        setting = Setting()
        with torch.no_grad():
            for one in (setting.hidden, setting.weight, setting.bias):
                one.copy_((one * 8).round() / 8)
            setting.hidden[:] = setting.hidden[:, :1].clone()
            setting.weights[:] = 0.5
        setting.mask[:] = True
        head = VocabularyHead(torch.nn.Identity(), setting.weight, setting.bias)
        (of_hidden, *_) = setting.gradients(pool(setting, head=head))
        assert of_hidden[:, 0].any(dim=1).all()
        assert not of_hidden[:, 1:].any()

    @pytest.mark.parametrize("frozen", ["hidden", "weight", "bias", "weights"])
    def test_frozen_inputs_get_no_gradient_and_do_not_change_the_others(self, pool, frozen):
        setting = Setting()
        before = setting.gradients(pool(setting))
        names = ["hidden", "weight", "bias", "weights"]
        getattr(setting, frozen).requires_grad_(False)
        others = [getattr(setting, name) for name in names if name != frozen]
        after = torch.autograd.grad(pool(setting), others, setting.upstream, allow_unused=True)
        expected = [one for one, name in zip(before, names, strict=True) if name != frozen]
        assert all(one is other or torch.equal(one, other) for one, other in zip(after, expected, strict=True))

    @pytest.mark.parametrize("tokens", [64, 5])
    def test_autocast_multiplies_in_bfloat16_and_returns_float32(self, pool, tokens, monkeypatch):
        """Gradients have the types of the inputs, and are close to those of float32."""
        monkeypatch.setattr(lexical, "_most_tokens", lambda weight: tokens)
        setting = Setting(width=16, vocabulary=50, dtype=torch.float32)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            lower = pool(setting)
            plain = pool(setting, head=lambda hidden: setting.head(hidden))
        full = pool(setting)
        assert lower.dtype == full.dtype == torch.float32
        assert not torch.equal(lower, full)
        torch.testing.assert_close(lower, plain, atol=0.02, rtol=0.02)
        for leaf, ours, theirs in zip(setting.leaves, setting.gradients(lower), setting.gradients(full), strict=True):
            if theirs is not None:
                assert ours.dtype == leaf.dtype
                assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.98

    def test_logits_are_held_for_a_few_tokens_at_a_time(self, pool, monkeypatch):
        """In the forward and the backward pass, with a gradient at few terms or at all terms."""
        monkeypatch.setattr(lexical, "_most_tokens", lambda weight: 20)
        setting = Setting(texts=8, tokens=50, width=8, vocabulary=500, dtype=torch.float32)
        setting.mask[:] = True
        with LargestTensor() as largest:
            setting.gradients(keep_top_k(pool(setting), 20))
            setting.gradients(pool(setting))
        assert largest.elements == 20 * 500  # the logits of as many tokens as are projected at a time


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest tensor that an operation returns."""

    elements = 0

    def __torch_dispatch__(self, operation, types, arguments=(), keywords=None):
        result = operation(*arguments, **(keywords or {}))
        sizes = [one.numel() for one in tree_leaves(result) if isinstance(one, torch.Tensor)]
        self.elements = max([self.elements, *sizes])
        return result


@given(st.data())
def test_top_k_equals_a_stable_sort(data):
    """Exactly k weights, also zeros, are kept and receive the gradient; ties keep the first."""
    rows = data.draw(st.integers(1, 3))
    columns = data.draw(st.integers(1, 8))
    k = data.draw(st.integers(1, columns))
    values = st.sampled_from([-1.0, 0.0, 0.5, 1.0])
    weights = torch.tensor(
        data.draw(st.lists(st.lists(values, min_size=columns, max_size=columns), min_size=rows, max_size=rows))
    ).requires_grad_()
    order = weights.detach().sort(dim=1, descending=True, stable=True).indices[:, :k]
    expected = torch.zeros_like(weights).scatter(1, order, weights.gather(1, order))
    kept = keep_top_k(weights, k)
    assert torch.equal(kept, expected)
    (ours,), (theirs,) = (torch.autograd.grad(one.sum(), weights) for one in (kept, expected))
    assert torch.equal(ours, theirs)
    assert ours.sum() == k * rows
