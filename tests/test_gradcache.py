"""Cached gradients are the plain ones."""

from __future__ import annotations

import pytest
import torch

from retrievalkit import registry
from retrievalkit.contracts import Progress, Representation
from retrievalkit.data.batches import token_budget_batches
from retrievalkit.gradcache import Chunk, RandomState, cached_step, plain_step
from retrievalkit.retriever import Retriever

QUERIES = [("", "what is the capital of france"), ("", "rome"), ("", "which language is spoken in iceland and peru")]
DOCUMENTS = [
    ("France", "The seat of government is the city of Paris."),
    ("Peru", "lima"),
    ("Italy", "People pay with the euro, and the language that is spoken most is Italian."),
    ("", "rome"),
    ("Iceland", "Icelandic"),
]
POSITIVES = torch.tensor([0, 2, 4])
IGNORE = torch.zeros(3, 5, dtype=torch.bool)
IGNORE[1, 3] = True


def one_vector(states, side):
    return Representation(states.last[:, :1])


def many_vectors(states, side):
    """A vector a token, as many as the batch is long: texts of a step have different numbers of them."""
    return Representation(
        states.last[:, :1] if side == "query" else states.last,
        None if side == "query" else states.attention_mask.bool(),
    )


def vectors_and_weights(states, side):
    return Representation(states.last[:, 1:3], weights=states.last[:, 0].relu())


def weights_alone(states, side):
    return Representation(weights=states.last[:, 0].relu())


def first_in_training(states, side):
    return Representation(torch.stack([layer[:, 0] for layer in states.layers.values()], dim=1), kept=0)


POOLERS = [one_vector, many_vectors, vectors_and_weights, weights_alone, first_in_training]


class Setting:
    """A model, the chunks of a step, and the gradients that a step leaves."""

    def __init__(self, model, pooler, *, most, separate=False, dropout=0.3, precision=None):
        self.retriever = Retriever.create(model, separate_towers=separate, encoder_options={"dropout": dropout}, seed=1)
        self.retriever.train()
        self.loss = registry.create("loss", "contrastive", temperature=0.7)
        self.pooler = pooler
        self.precision = precision
        self.chunks = [
            chunk
            for side, texts in (("query", QUERIES), ("document", DOCUMENTS))
            for chunk in self.cut(side, texts, most)
        ]

    def cut(self, side, texts, most):
        tower = self.retriever.tower(side)
        ids = tower.tokenize(texts, side)
        for rows in token_budget_batches([len(one) for one in ids], 10_000, most=most):
            yield Chunk(side, rows, tower.collate([ids[row] for row in rows], side))

    def encode(self, batch, side):
        with torch.autocast("cpu", dtype=self.precision or torch.bfloat16, enabled=self.precision is not None):
            return self.pooler(self.retriever.tower(side)(batch, [1, 2]), side)

    def run(self, step, ignore=None, seed=0):
        torch.manual_seed(seed)
        self.retriever.zero_grad()
        loss = step(
            self.encode,
            self.chunks,
            lambda queries, documents: self.loss(queries, documents, POSITIVES, Progress(0, 0.0, 1), ignore),
            torch.autograd.backward,
        )
        named = self.retriever.named_parameters()
        gradients = {name: parameter.grad.clone() for name, parameter in named if parameter.grad is not None}
        return loss.total.detach(), gradients, torch.get_rng_state()


def assert_equal_gradients(one, other, **tolerance):
    assert one.keys() == other.keys()
    assert any(gradient.abs().max() > 1e-4 for gradient in one.values())
    for name, gradient in one.items():
        torch.testing.assert_close(gradient, other[name], msg=name, **tolerance or {"rtol": 1e-4, "atol": 1e-6})


@pytest.mark.parametrize("pooler", POOLERS)
@pytest.mark.parametrize("most", [1, 2, 100])
def test_cached_gradients_equal_plain_ones_with_the_same_dropout(tiny_model, pooler, most):
    setting = Setting(tiny_model, pooler, most=most)
    plain, cached = setting.run(plain_step), setting.run(cached_step)
    torch.testing.assert_close(plain[0], cached[0])
    assert_equal_gradients(plain[1], cached[1])


@pytest.mark.parametrize("model", ["tiny_model", "tiny_t5"])
@pytest.mark.parametrize("separate", [False, True])
def test_for_every_kind_of_towers(request, model, separate):
    setting = Setting(request.getfixturevalue(model), one_vector, most=2, separate=separate)
    plain, cached = setting.run(plain_step), setting.run(cached_step)
    assert_equal_gradients(plain[1], cached[1])
    towers = {name.split(".")[1] for name in plain[1]}
    assert towers == ({"query", "document"} if separate else {"shared"})


def test_without_dropout_the_size_of_the_chunks_changes_nothing(tiny_model):
    """Nor whether gradients are cached: a step is one batch, however it is cut."""
    whole = Setting(tiny_model, one_vector, most=100, dropout=0.0).run(plain_step)
    for most in (1, 2, 3):
        cut = Setting(tiny_model, one_vector, most=most, dropout=0.0).run(cached_step)
        torch.testing.assert_close(whole[0], cut[0])
        assert_equal_gradients(whole[1], cut[1])


def test_what_is_ignored_is_ignored_in_both(tiny_model):
    setting = Setting(tiny_model, one_vector, most=2, dropout=0.0)
    free, plain, cached = setting.run(plain_step), setting.run(plain_step, IGNORE), setting.run(cached_step, IGNORE)
    torch.testing.assert_close(plain[0], cached[0])
    assert not torch.isclose(plain[0], free[0])
    assert_equal_gradients(plain[1], cached[1])


def test_in_half_precision_too(tiny_model):
    setting = Setting(tiny_model, many_vectors, most=2, precision=torch.bfloat16)
    plain, cached = setting.run(plain_step), setting.run(cached_step)
    torch.testing.assert_close(plain[0], cached[0])
    assert_equal_gradients(plain[1], cached[1], rtol=0.05, atol=0.01)


def test_a_scaled_loss_scales_the_gradients(tiny_model):
    """As mixed precision in fp16 does."""
    setting = Setting(tiny_model, one_vector, most=2)
    _, expected, _ = setting.run(cached_step)

    def scaled(encode, chunks, compare, backward):
        return cached_step(encode, chunks, compare, lambda total: backward(total * 8))

    _, gradients, _ = setting.run(scaled)
    assert_equal_gradients({name: 8 * one for name, one in expected.items()}, gradients)


def test_the_random_numbers_go_on_as_after_a_plain_step(tiny_model):
    """So that a training with gradient caching sees the same dropout as one without."""
    setting = Setting(tiny_model, one_vector, most=2)
    states = [setting.run(step)[2] for step in (plain_step, cached_step)]
    assert torch.equal(*states)


def test_dropout_differs_from_step_to_step(tiny_model):
    setting = Setting(tiny_model, one_vector, most=2)
    assert setting.run(cached_step, seed=0)[0] != setting.run(cached_step, seed=1)[0]


def test_a_loss_with_weights_of_its_own_is_trained_too(tiny_model):
    setting = Setting(tiny_model, one_vector, most=2)
    scale = torch.ones((), requires_grad=True)
    found = []
    for step in (plain_step, cached_step):
        torch.manual_seed(0)
        scale.grad = None

        def compare(queries, documents):
            loss = setting.loss(queries, documents, POSITIVES, Progress(0, 0.0, 1))
            loss.total = loss.total * scale
            return loss

        step(setting.encode, setting.chunks, compare, torch.autograd.backward)
        found.append(scale.grad.clone())
    torch.testing.assert_close(*found)
    assert found[0] != 0


def test_representations_come_in_the_order_of_the_texts(tiny_model):
    setting = Setting(tiny_model, one_vector, most=2, dropout=0.0)
    seen = []

    def compare(queries, documents):
        seen.append((queries.vectors.detach(), documents.vectors.detach()))
        return setting.loss(queries, documents, POSITIVES, Progress(0, 0.0, 1))

    for step in (plain_step, cached_step):
        step(setting.encode, setting.chunks, compare, torch.autograd.backward)
    for queries, documents in seen:
        for texts, side, vectors in ((QUERIES, "query", queries), (DOCUMENTS, "document", documents)):
            expected = setting.retriever.encode(texts, side, precision="fp32").vectors
            torch.testing.assert_close(vectors, expected, rtol=1e-4, atol=1e-5)


def test_a_side_that_the_loss_does_not_use_gets_no_gradient(tiny_model):
    setting = Setting(tiny_model, one_vector, most=2, separate=True)

    def documents_alone(queries, documents):
        return setting.loss(queries.detach(), documents, POSITIVES, Progress(0, 0.0, 1))

    cached_step(setting.encode, setting.chunks, documents_alone, torch.autograd.backward)
    assert all(parameter.grad is None for parameter in setting.retriever.tower("query").parameters())
    assert any(parameter.grad is not None for parameter in setting.retriever.tower("document").parameters())


def test_only_one_chunk_has_a_graph_at_a_time(tiny_model):
    """Which is what bounds the memory."""
    setting = Setting(tiny_model, one_vector, most=1)
    with_graph = []

    def encode(batch, side):
        with_graph.append(torch.is_grad_enabled())
        return setting.encode(batch, side)

    cached_step(
        encode, setting.chunks, lambda q, d: setting.loss(q, d, POSITIVES, Progress(0, 0.0, 1)), torch.autograd.backward
    )
    assert with_graph == [False] * 8 + [True] * 8


def test_a_random_state_draws_again_what_was_drawn():
    state = RandomState.now(torch.device("cpu"))
    first = torch.rand(3)
    state.restore()
    assert torch.equal(torch.rand(3), first)
